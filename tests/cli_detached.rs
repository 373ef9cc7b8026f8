//! Detached processes, and the commands that list, follow, attach to, signal and forget them.

use rustix::process::Signal;
use serde_json::Value;

use crate::support::{Gate, PROGRAM, Running, Server, command, eventually, run_program, shell};

fn gated(gate: &Gate) -> String {
    format!("echo first; read x < {}; echo last; exit 7", gate.path())
}

fn detach(server: &Server, name: &str, script: &str) {
    let outcome = server.run(&["run", "--detach", "--name", name, "sh", "-c", script]);
    assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
    assert_eq!(outcome.stdout, format!("{name}\n"));
}

fn ps(server: &Server) -> Vec<Value> {
    let outcome = server.run(&["ps", "--json"]);
    assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
    serde_json::from_str(&outcome.stdout).unwrap()
}

fn wait_until_detached(server: &Server) {
    eventually("no client is attached", || {
        ps(server).iter().all(|process| process["attached"] == false)
    });
}

/// Waits until the launchers of all three processes have disconnected. A process may have finished.
fn wait_until_detached_all(server: &Server) {
    eventually("no launcher is attached", || {
        let listed = server.run(&["ps", "-a", "--json"]).stdout;
        let listed: Vec<Value> = serde_json::from_str(&listed).unwrap();
        let launched = listed.iter().filter(|one| one["clientName"] == "exec-server run --detach");
        launched.clone().count() == 3 && launched.clone().all(|one| one["attached"] == false)
    });
}

#[test]
fn a_detached_process_is_found_by_its_name() {
    let server = Server::start();
    let gate = Gate::new();
    detach(&server, "job", &gated(&gate));

    let listed = server.run(&["ps"]).stdout;
    let row = listed.lines().nth(1).unwrap();
    assert!(
        row.starts_with("job ") && row.contains("running") && row.contains("sh -c"),
        "{listed}"
    );
    assert_eq!(server.run(&["logs", "job"]).stdout, "first\n");

    let mut follower = Running::start(server.command(&["logs", "-f", "job"]));
    assert_eq!(follower.line(), "first\n");
    let waiter = Running::start(server.command(&["wait", "job"]));
    gate.open();
    assert_eq!(follower.line(), "last\n");
    assert_eq!(follower.finish().0.code(), Some(0));
    let (status, printed, _) = waiter.finish();
    assert_eq!((status.code(), printed.as_str()), (Some(7), "7\n"));

    assert_eq!(server.run(&["ps"]).stdout.lines().count(), 1, "only the heading");
    assert!(server.run(&["ps", "-a"]).stdout.contains("exited (7)"));
    assert_eq!(server.run(&["logs", "job"]).stdout, "first\nlast\n");
    assert_eq!(server.run(&["wait", "job"]).code, Some(7));
    assert_eq!(server.run(&["forget", "job"]).code, Some(0));
    assert_eq!(ps(&server), [] as [Value; 0]);
    let gone = server.run(&["logs", "job"]);
    assert_eq!(gone.code, Some(1));
    assert_eq!(gone.stderr, "exec-server: no process is called \"job\"; see exec-server ps -a\n");
}

#[test]
fn json_output_names_process_and_session() {
    let server = Server::start();
    let outcome = server.run(&["run", "-d", "--json", "sleep", "1000"]);
    let printed: Value = serde_json::from_str(&outcome.stdout).unwrap();
    let [process] = &ps(&server)[..] else { panic!("not exactly one process") };
    assert_eq!(process["processId"], printed["processId"]);
    assert_eq!(process["sessionId"], printed["sessionId"]);
    assert_eq!(process["argv"], serde_json::json!(["sleep", "1000"]));

    let name = printed["processId"].as_str().unwrap();
    server.run(&["kill", "-s", "KILL", name]);
    let waited = server.run(&["wait", "--json", name]);
    let waited: Value = serde_json::from_str(&waited.stdout).unwrap();
    let ids = (&waited["processId"], &waited["sessionId"]);
    assert_eq!(ids, (&printed["processId"], &printed["sessionId"]));
    assert_eq!(waited["exitCode"], 137);
}

#[test]
fn logs_can_start_at_the_last_lines() {
    let server = Server::start();
    let gate = Gate::new();
    let script =
        format!("seq 1 1000; read x < {}; while echo last; do sleep 0.01; done", gate.path());
    detach(&server, "job", &script);
    eventually("all is written", || server.run(&["logs", "job"]).stdout.ends_with("\n1000\n"));
    assert_eq!(server.run(&["logs", "--tail", "2", "job"]).stdout, "999\n1000\n");
    assert_eq!(server.run(&["logs", "--tail", "0", "job"]).stdout, "");
    assert_eq!(server.run(&["logs", "-n", "5000", "job"]).stdout.lines().count(), 1000);
    let mut none = Running::start(server.command(&["logs", "-f", "--tail", "0", "job"]));
    let mut one = Running::start(server.command(&["logs", "-f", "--tail", "1", "job"]));
    assert_eq!(one.line(), "1000\n");
    gate.open();
    assert_eq!((one.line(), none.line()), ("last\n".to_owned(), "last\n".to_owned()));
    assert_eq!(server.run(&["kill", "job"]).code, Some(0));
    for follower in [one, none] {
        let (status, rest, _) = follower.finish();
        assert_eq!(status.code(), Some(0));
        assert!(rest.lines().all(|line| line == "last"), "{rest}");
    }
}

#[test]
fn logs_can_start_at_a_time() {
    let server = Server::start();
    detach(&server, "job", "echo first");
    assert_eq!(server.run(&["wait", "job"]).code, Some(0));
    assert_eq!(server.run(&["logs", "--since", "1h", "job"]).stdout, "first\n");
    // Once 10 ms have passed, all events are older than that.
    eventually("time passes", || server.run(&["logs", "--since", "10ms", "job"]).stdout.is_empty());
    assert_eq!(server.run(&["logs", "--since", "0", "job"]).stdout, "");
    assert_eq!(server.run(&["logs", "--since", "10000y", "job"]).stdout, "first\n");
}

#[test]
fn wait_can_time_out() {
    let server = Server::start();
    detach(&server, "long", "exec sleep 1000");
    let outcome = server.run(&["wait", "--timeout", "10ms", "long"]);
    assert_eq!((outcome.code, outcome.stdout.as_str()), (Some(124), ""));
    assert_eq!(outcome.stderr, "exec-server: \"long\" is still running after 10ms\n");
    detach(&server, "short", "exit 3");
    assert_eq!(server.run(&["wait", "--timeout", "10m", "short"]).code, Some(3));
}

#[test]
fn forget_all_forgets_every_finished_detached_process() {
    let server = Server::start();
    let mut client = server.client();
    client.start(&shell("others", "true"));
    client.finish_process("others");
    for name in ["a", "b"] {
        detach(&server, name, "true");
        assert_eq!(server.run(&["wait", name]).code, Some(0));
    }
    detach(&server, "busy", "exec sleep 1000");
    wait_until_detached_all(&server);
    let forgotten = server.run(&["forget", "--all"]);
    assert_eq!((forgotten.code, forgotten.stdout.as_str()), (Some(0), "a\nb\n"));
    let left = server.run(&["ps", "-a", "--json"]).stdout;
    let left: Vec<Value> = serde_json::from_str(&left).unwrap();
    let names: Vec<_> = left.iter().map(|process| process["processId"].clone()).collect();
    assert_eq!(names, ["others", "busy"]);
    assert_eq!(server.run(&["forget", "--all"]).stdout, "", "nothing is left to forget");
}

#[test]
fn a_name_cannot_be_used_twice() {
    let server = Server::start();
    detach(&server, "job", "sleep 1000");
    let again = server.run(&["run", "-d", "--name", "job", "true"]);
    assert_eq!(again.code, Some(125));
    assert!(again.stderr.contains("taken"), "{}", again.stderr);
    assert_eq!(ps(&server).len(), 1);
    let failed = server.run(&["run", "-d", "--name", "other", "no-such-program"]);
    assert_eq!((failed.code, failed.stdout.as_str()), (Some(127), ""));
    assert_eq!(failed.stderr, "exec-server: program \"no-such-program\" not found on PATH\n");
    assert_eq!(ps(&server).len(), 1);
}

#[test]
fn one_of_twenty_launchers_gets_the_name() {
    let server = Server::start();
    let launch = || {
        let job = ["run", "-d", "--name", "job", "sleep", "1000"];
        Running::start(server.command(&job))
    };
    let launchers: Vec<_> = (0..20).map(|_| launch()).collect();
    let outcomes: Vec<_> = launchers.into_iter().map(Running::finish).collect();
    let codes: Vec<_> = outcomes.iter().map(|(status, ..)| status.code()).collect();
    assert_eq!(codes.iter().filter(|code| **code == Some(0)).count(), 1, "{outcomes:?}");
    assert_eq!(codes.iter().filter(|code| **code == Some(125)).count(), 19, "{outcomes:?}");
    assert_eq!(ps(&server).len(), 1);
    assert_eq!(server.run(&["forget", "-f", "job"]).code, Some(0));
    detach(&server, "job", "true");
}

#[test]
fn unread_output_is_kept_from_its_beginning() {
    let server = Server::start();
    for n in 0..5 {
        let name = format!("seq{n}");
        detach(&server, &name, "exec seq 1 300000");
        assert_eq!(server.run(&["wait", &name]).code, Some(0));
        let logs = server.run(&["logs", &name]);
        assert_eq!(logs.stderr, "");
        assert!(logs.stdout.starts_with("1\n2\n") && logs.stdout.ends_with("\n300000\n"));
        assert_eq!(logs.stdout.lines().count(), 300_000);
    }
}

#[test]
fn a_detached_process_ends_after_its_time_limit() {
    let server = Server::start();
    let job = ["run", "-d", "--name", "job", "--timeout", "100ms", "sleep", "1000"];
    assert_eq!(server.run(&job).code, Some(0));
    assert_eq!(server.run(&["wait", "job"]).code, Some(143));
    assert!(server.run(&["ps", "-a"]).stdout.contains("timed out (143)"));
}

#[test]
fn kill_ends_the_tree_or_sends_a_signal() {
    let server = Server::start();
    detach(&server, "tree", "setsid sleep 1000 & echo $!; exec sleep 1000");
    eventually("the child runs", || !server.run(&["logs", "tree"]).stdout.is_empty());
    let child = server.run(&["logs", "tree"]).stdout.trim().to_owned();
    assert_eq!(server.run(&["kill", "tree"]).code, Some(0));
    assert_eq!(server.run(&["wait", "tree"]).code, Some(128 + 15));
    eventually("the child that called setsid has ended", || {
        !std::path::Path::new("/proc").join(&child).exists()
    });

    detach(&server, "deaf", "trap 'echo heard' USR1; echo ready; while :; do sleep 0.01; done");
    eventually("the trap is set", || server.run(&["logs", "deaf"]).stdout.contains("ready"));
    assert_eq!(server.run(&["kill", "-s", "USR1", "deaf"]).code, Some(0));
    eventually("the signal has arrived", || server.run(&["logs", "deaf"]).stdout.contains("heard"));

    let refused = server.run(&["forget", "deaf"]);
    assert_eq!(refused.code, Some(1));
    assert!(refused.stderr.contains("is running"), "{}", refused.stderr);
    assert_eq!(server.run(&["forget", "-f", "deaf", "tree"]).code, Some(0));
    assert_eq!(ps(&server), [] as [Value; 0]);
}

#[test]
fn descendants_of_a_finished_process_are_named() {
    let server = Server::start();
    detach(&server, "parent", "sleep 1000 > /dev/null 2>&1 &");
    assert_eq!(server.run(&["wait", "parent"]).code, Some(0));
    for (command, expected) in [
        (&["forget", "parent"][..], "\"parent\" has exited, but has running descendants (1)"),
        (&["kill", "-s", "USR1", "parent"], "its descendants (1 running) cannot be signalled"),
    ] {
        let refused = server.run(command);
        assert_eq!(refused.code, Some(1), "{command:?}");
        assert!(refused.stderr.contains(expected), "{command:?}: {}", refused.stderr);
    }
    assert_eq!(server.run(&["forget", "-f", "parent"]).code, Some(0));
}

#[test]
fn kill_continues_after_an_unknown_name() {
    let server = Server::start();
    detach(&server, "a", "sleep 1000");
    detach(&server, "b", "sleep 1000");
    let outcome = server.run(&["kill", "a", "nobody", "b"]);
    assert_eq!(outcome.code, Some(1));
    assert_eq!(outcome.stderr.lines().count(), 1, "{}", outcome.stderr);
    assert_eq!(server.run(&["wait", "a", "b"]).stdout, "143\n143\n");
    let dead = server.run(&["kill", "a"]);
    assert_eq!(dead.stderr, "exec-server: \"a\" is not running\n");
}

#[test]
fn attach_resumes_input_and_output() {
    let server = Server::start();
    let started = server.run(&["run", "-d", "-i", "--name", "cat", "cat"]);
    assert_eq!(started.code, Some(0), "{}", started.stderr);
    wait_until_detached(&server);

    let mut first = Running::start(server.command(&["attach", "cat"]));
    first.say("one\n");
    assert_eq!(first.line(), "one\n");
    let second = server.run(&["attach", "cat"]);
    assert_eq!(second.code, Some(125));
    assert_eq!(
        second.stderr,
        "exec-server: another client is already attached to \"cat\"; follow its output with exec-server logs -f cat\n"
    );
    let mut watcher = Running::start(server.command(&["logs", "-f", "cat"]));
    assert_eq!(watcher.line(), "one\n");
    // Closing a terminal ends the command, but not the process that it is attached to.
    first.signal(Signal::HUP);
    assert_eq!(first.finish_with_input_open().0.code(), Some(129));

    wait_until_detached(&server);
    let mut again = Running::start(server.command(&["attach", "cat"]));
    assert_eq!(again.line(), "one\n");
    again.say("two\n");
    assert_eq!(again.line(), "two\n");
    assert_eq!(watcher.line(), "two\n");
    // The end of the command's input does not close the stdin of the process.
    again.end_input();
    assert_eq!(server.run(&["kill", "-s", "USR1", "cat"]).code, Some(0));
    assert_eq!(again.finish().0.code(), Some(128 + 10));
    assert_eq!(watcher.finish().0.code(), Some(0));
}

#[test]
fn attaching_without_input_does_not_end_the_process() {
    let server = Server::start();
    server.run(&["run", "-d", "-i", "--name", "cat", "cat"]);
    wait_until_detached(&server);
    let mut deaf = Running::start(server.command(&["attach", "cat"]));
    deaf.say("one\n");
    deaf.end_input();
    assert_eq!(deaf.line(), "one\n");
    deaf.signal(Signal::HUP);
    assert_eq!(deaf.finish().0.code(), Some(129));
    wait_until_detached(&server);
    let mut again = Running::start(server.command(&["attach", "cat"]));
    assert_eq!(again.line(), "one\n");
    again.say("two\n");
    assert_eq!(again.line(), "two\n");
}

#[test]
fn a_broken_pipe_of_attach_leaves_the_process_running() {
    let server = Server::start();
    server.run(&["run", "-d", "-i", "--name", "cat", "cat"]);
    wait_until_detached(&server);
    let mut attached = Running::start(server.command(&["attach", "cat"]));
    attached.say("one\n");
    assert_eq!(attached.line(), "one\n");
    attached.close_output();
    attached.say("two\n");
    assert_eq!(attached.finish_with_input_open().0.code(), Some(141));
    assert_eq!(ps(&server)[0]["running"], true);
}

#[test]
fn a_foreground_process_can_be_followed_and_killed() {
    let server = Server::start();
    let script = "echo ready; exec sleep 1000";
    let mut run = Running::start(server.command(&["run", "--name", "front", "sh", "-c", script]));
    assert_eq!(run.line(), "ready\n");
    assert_eq!(server.run(&["logs", "front"]).stdout, "ready\n");
    assert_eq!(server.run(&["kill", "-s", "INT", "front"]).code, Some(0));
    assert_eq!(run.finish().0.code(), Some(130));
}

#[test]
fn logs_report_dropped_output() {
    let limits =
        ["--retained-output-bytes-per-process", "10000", "--spill-output-bytes-per-process", "0"];
    let server = Server::with(&limits);
    detach(&server, "much", "seq 100000");
    assert_eq!(server.run(&["wait", "much"]).code, Some(0));
    let logs = server.run(&["logs", "much"]);
    assert!(logs.stdout.ends_with("99999\n100000\n"));
    let total: usize = (1..=100_000).map(|n: u32| n.to_string().len() + 1).sum();
    let left_out = total - logs.stdout.len();
    assert_eq!(logs.stderr, format!("[{left_out} bytes left out]\n"));

    let json = server.run(&["logs", "-f", "--json", "much"]).stdout;
    let events: Vec<Value> = json.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(events[0], serde_json::json!({"event": "gap", "droppedBytes": left_out}));
    let kinds: Vec<_> = events.iter().rev().take(2).map(|event| event["event"].clone()).collect();
    assert_eq!(kinds, ["closed", "exited"]);
}

#[test]
fn a_session_prefix_distinguishes_equal_names() {
    let server = Server::start();
    let mut clients = [server.client(), server.client()];
    for client in &mut clients {
        client.start(&shell("same", "exec sleep 1000"));
    }
    let ambiguous = server.run(&["kill", "same"]);
    assert_eq!(ambiguous.code, Some(1));
    let short = |client: &crate::support::Client| client.session()[..8].to_owned();
    for client in &clients {
        let name = format!("{}/same", short(client));
        assert!(ambiguous.stderr.contains(&name), "{}", ambiguous.stderr);
    }
    let first = format!("{}/same", short(&clients[0]));
    assert_eq!(server.run(&["kill", &first]).code, Some(0));
    assert_eq!(clients[0].finish_process("same").exit_code, Some(143));
    let running = server.run(&["ps"]).stdout;
    assert_eq!(running.lines().count(), 2, "{running}");
}

#[test]
fn forget_does_not_end_other_processes_of_a_session() {
    let server = Server::start();
    let mut client = server.client();
    client.start(&shell("done", "true"));
    client.start(&shell("busy", "exec sleep 1000"));
    client.finish_process("done");
    let outcome = server.run(&["forget", "-f", "done"]);
    assert_eq!(outcome.code, Some(1));
    assert!(outcome.stderr.contains("shares its session"), "{}", outcome.stderr);
}

#[test]
fn process_commands_fail_without_a_server() {
    for arguments in [&["ps"][..], &["logs", "x"], &["kill", "x"], &["forget", "x"]] {
        let outcome = run_program(arguments);
        assert_eq!((outcome.code, outcome.stdout.as_str()), (Some(1), ""));
        assert!(outcome.stderr.starts_with("exec-server: found no server; "), "{}", outcome.stderr);
        assert_eq!(outcome.stderr.lines().count(), 1);
    }
    assert_eq!(run_program(&["wait", "x"]).code, Some(125));
    let mut piped = command(PROGRAM);
    piped.args(["attach", "x"]);
    assert_eq!(crate::support::run_command(piped).code, Some(125));
}

//! `exec-server run` as a part of something larger: pipes, signals, limits, a connection that goes away.

use exec_server_test_support::{Cut, FaultProxy};
use rustix::process::Signal;

use crate::support::{PROGRAM, Running, Server, command, eventually, run_command, run_program};

fn embedded(arguments: &[&str]) -> Running {
    let mut run = command(PROGRAM);
    run.arg("run").args(arguments);
    Running::start(run)
}

#[test]
fn a_conversation_is_not_delayed() {
    let mut cat = embedded(&["cat"]);
    for n in 0..50 {
        let line = format!("{n}\n");
        cat.say(&line);
        assert_eq!(cat.line(), line);
    }
    cat.end_input();
    let (status, rest, errors) = cat.finish();
    assert_eq!((status.code(), rest.as_str(), errors.as_str()), (Some(0), "", ""));
}

#[test]
fn without_input_nothing_is_read() {
    let run = embedded(&["-n", "cat"]);
    // Our end of its input stays open until it has ended.
    let (status, out, _) = run.finish_with_input_open();
    assert_eq!((status.code(), out.as_str()), (Some(0), ""));
}

#[test]
fn input_that_cannot_be_read_is_not_an_end() {
    let mut run = command(PROGRAM);
    run.args(["run", "cat"]).stdin(std::fs::File::open("/").unwrap());
    let output = run.output().unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(125), "{errors}");
    assert!(errors.starts_with("exec-server: cannot read standard input: "), "{errors}");
}

#[test]
fn input_that_is_not_for_reading_is_none() {
    // As `nohup` gives it to its command.
    let null = std::fs::File::options().write(true).open("/dev/null").unwrap();
    let mut run = command(PROGRAM);
    run.args(["run", "cat"]).stdin(null);
    let output = run.output().unwrap();
    assert_eq!((output.status.code(), output.stderr), (Some(0), Vec::new()));
}

#[test]
fn a_terminal_gets_the_end_of_our_input_also_within_a_line() {
    for input in ["", "abc", "abc\n", "abc\ndef"] {
        let mut cat = embedded(&["-t", "sh", "-c", "stty -echo; echo ready; cat; echo; echo over"]);
        assert_eq!(cat.line(), "ready\r\n");
        cat.say(input);
        let (status, out, _) = cat.finish();
        assert_eq!(status.code(), Some(0));
        let shown = input.replace('\n', "\r\n");
        assert_eq!(out, format!("{shown}\r\nover\r\n"));
    }
}

#[test]
fn a_signal_ends_us_while_we_connect() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("ws://{}", silent.local_addr().unwrap());
    for (signal, number) in [(Signal::INT, 2), (Signal::TERM, 15), (Signal::HUP, 1)] {
        let run = embedded(&["--connect", &url, "true"]);
        let _connection = silent.accept().unwrap();
        run.signal(signal);
        assert_eq!(run.finish().0.code(), Some(128 + number));
    }
}

/// A server that does not answer a start.
#[test]
fn a_signal_ends_the_session_while_the_command_is_started() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("ws://{}", listener.local_addr().unwrap());
    let run = embedded(&["--connect", &url, "-w", "/", "true"]);
    let mut socket = tungstenite::accept(listener.accept().unwrap().0).unwrap();
    let mut called = |method: &str| loop {
        let message = socket.read().unwrap();
        let Ok(text) = message.to_text() else { continue };
        let Ok(call) = serde_json::from_str::<serde_json::Value>(text) else { continue };
        if call["method"] == "initialize" {
            let result =
                serde_json::json!({"sessionId": "s", "protocolVersion": "1", "acks": true});
            let answer = serde_json::json!({"id": call["id"], "result": result});
            socket.send(answer.to_string().into()).unwrap();
        }
        if call["method"] == method {
            return;
        }
    };
    called("process/start");
    run.signal(Signal::TERM);
    called("session/close");
    assert_eq!(run.finish().0.code(), Some(128 + 15));
}

#[test]
fn signals_reach_the_command() {
    for (signal, name) in [
        (Signal::INT, "INT"),
        (Signal::TERM, "TERM"),
        (Signal::HUP, "HUP"),
        (Signal::QUIT, "QUIT"),
        (Signal::USR1, "USR1"),
        (Signal::USR2, "USR2"),
    ] {
        let script = format!(
            "trap 'echo got {name}; exit 9' {name}; echo ready; while :; do sleep 0.01; done"
        );
        let mut run = embedded(&["sh", "-c", &script]);
        assert_eq!(run.line(), "ready\n");
        run.signal(signal);
        assert_eq!(run.line(), format!("got {name}\n"));
        assert_eq!(run.finish().0.code(), Some(9));
    }
}

#[test]
fn a_command_that_a_signal_ends_is_told_apart() {
    let mut run = embedded(&["sh", "-c", "echo ready; exec sleep 1000"]);
    assert_eq!(run.line(), "ready\n");
    run.signal(Signal::TERM);
    assert_eq!(run.finish().0.code(), Some(128 + 15));
}

#[test]
fn who_stops_reading_ends_the_command() {
    let mut yes = embedded(&["yes"]);
    assert_eq!(yes.line(), "y\n");
    yes.close_output();
    assert_eq!(yes.finish().0.code(), Some(128 + 13));
}

#[test]
fn a_time_limit_ends_also_the_deaf() {
    let outcome = run_program(&["run", "--timeout", "300ms", "sleep", "1000"]);
    let said = (outcome.code, outcome.stderr.as_str());
    assert_eq!(said, (Some(124), "exec-server: sleep timed out\n"));
    let deaf = "trap '' TERM; while :; do sleep 0.1; done";
    let outcome = run_program(&["run", "--timeout", "100ms", "sh", "-c", deaf]);
    let said = (outcome.code, outcome.stderr.as_str());
    assert_eq!(said, (Some(124), "exec-server: sh timed out\n"));
    assert_eq!(run_program(&["run", "--timeout", "1h", "true"]).code, Some(0));
}

#[test]
fn a_time_limit_holds_while_the_connection_is_dead() {
    let server = Server::start();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let upstream = server.url().strip_prefix("ws://").unwrap().parse().unwrap();
    let proxy = runtime.block_on(FaultProxy::start(upstream));
    let arguments = ["run", "--connect", &proxy.url(), "--name", "job", "--timeout", "3s"];
    let script = ["sh", "-c", "echo up; exec sleep 1000"];
    let mut run = Running::start(server.command(&[&arguments[..], &script[..]].concat()));
    assert_eq!(run.line(), "up\n");
    proxy.black_hole();
    let (status, _, errors) = run.finish();
    assert_eq!(status.code(), Some(124), "{errors}");
    assert!(errors.contains("exec-server: sh timed out"), "{errors}");
    eventually("the server has ended it", || {
        server.run(&["ps", "-a"]).stdout.contains("timed out (143)")
    });
}

#[test]
fn a_command_that_ends_with_its_server_says_so() {
    let mut server = Server::start();
    let script = ["run", "sh", "-c", "echo up; exec sleep 1000"];
    let mut run = Running::start(server.command(&script));
    assert_eq!(run.line(), "up\n");
    server.signal(Signal::TERM);
    let (status, _, errors) = run.finish_with_input_open();
    let said = (status.code(), errors.as_str());
    assert_eq!(said, (Some(143), "exec-server: the server stopped; the command was ended\n"));
    assert_eq!(server.wait().code(), Some(0));
}

#[test]
fn what_a_command_leaves_running_ends_with_it() {
    let outcome = run_program(&["run", "sh", "-c", "sleep 1000 > /dev/null 2>&1 & echo $!"]);
    let pid = outcome.stdout.trim();
    assert!(!std::path::Path::new("/proc").join(pid).exists(), "{pid} lives");
}

#[test]
fn a_terminal_is_given_on_request() {
    let script = "if [ -t 0 ] && [ -t 1 ]; then echo terminal; else echo pipes; fi";
    for (flag, expected) in [("-t", "terminal\r\n"), ("-T", "pipes\n")] {
        assert_eq!(run_program(&["run", flag, "sh", "-c", script]).stdout, expected);
    }
}

#[test]
fn directories_are_ours_where_the_server_is_ours() {
    let server = Server::start();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().canonicalize().unwrap();
    std::fs::create_dir(path.join("below")).unwrap();
    let pwd = |arguments: &[&str]| {
        let mut run = server.command(&[&["run"], arguments, &["pwd"]].concat());
        run.current_dir(&path);
        run_command(run)
    };
    let shown = |path: &std::path::Path| format!("{}\n", path.display());
    assert_eq!(pwd(&[]).stdout, shown(&path));
    assert_eq!(pwd(&["-w", "below"]).stdout, shown(&path.join("below")));
    assert_eq!(pwd(&["--cwd", "/"]).stdout, "/\n");
    // A server that was named may be anywhere, so its own directory counts.
    let here = std::env::current_dir().unwrap();
    assert_eq!(pwd(&["--connect", server.url()]).stdout, shown(&here));
    let missing = pwd(&["-w", "missing"]);
    assert_eq!(missing.code, Some(125));
    assert!(missing.stderr.contains("missing"), "{}", missing.stderr);
}

#[test]
fn variables_are_set_and_copied() {
    let server = Server::start();
    let mut run = server.command(&[
        "run",
        "--server-env",
        "-e",
        "SET=a=b",
        "--env",
        "COPIED",
        "-e",
        "ABSENT",
        "sh",
        "-c",
        "echo $SET $COPIED ${ABSENT-unset} ${OTHER-unset}",
    ]);
    run.env("COPIED", "mine").env("OTHER", "not for the server").env_remove("ABSENT");
    assert_eq!(run_command(run).stdout, "a=b mine unset unset\n");
}

#[test]
fn our_own_failures_have_a_code_of_their_own() {
    for (arguments, expected) in [
        (&["run"][..], "COMMAND"),
        (&["run", "--no-such-flag", "true"], "--no-such-flag"),
        (&["run", "--connect", "ws://127.0.0.1:1", "true"], "--connect: "),
        (&["run", "--connect", "nowhere", "true"], "ws://HOST:PORT"),
        (&["run", "--on", "nowhere", "true"], "nowhere"),
        (&["run", "-d", "true"], "no server is running"),
    ] {
        let outcome = run_program(arguments);
        assert_eq!((outcome.code, outcome.stdout.as_str()), (Some(125), ""), "{arguments:?}");
        assert!(outcome.stderr.contains(expected), "{arguments:?}: {}", outcome.stderr);
    }
}

#[test]
fn who_does_not_want_to_wait_for_the_connection_gives_up() {
    let mut server = Server::start();
    let mut run =
        Running::start(server.command(&["run", "sh", "-c", "echo ready; exec sleep 1000"]));
    assert_eq!(run.line(), "ready\n");
    server.signal(Signal::KILL);
    server.wait();
    assert_eq!(run.error_line(), "exec-server: connection lost, reconnecting…\n");
    run.signal(Signal::INT);
    assert!(run.error_line().contains("keeps running"));
    assert_eq!(run.finish().0.code(), Some(130));
}

#[test]
fn cuts_of_the_connection_are_not_heard_of() {
    const LINES: usize = 40;
    let server = Server::start();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let upstream = server.url().strip_prefix("ws://").unwrap().parse().unwrap();
    let proxy = runtime.block_on(FaultProxy::start(upstream));
    let mut run = Running::start(server.command(&["run", "--connect", &proxy.url(), "cat"]));
    for n in 0..LINES {
        let line = format!("{n}\n");
        run.say(&line);
        if n % 4 == 0 {
            runtime.block_on(proxy.cut([Cut::Fin, Cut::Rst, Cut::MidFrame][n / 4 % 3]));
        }
        assert_eq!(run.line(), line);
    }
    assert!(proxy.connections() > 1);
    let (status, rest, errors) = run.finish();
    assert_eq!((status.code(), rest.as_str(), errors.as_str()), (Some(0), "", ""));
}

#[test]
fn a_second_signal_ends_what_nobody_reads() {
    let mut yes = embedded(&["yes"]);
    assert_eq!(yes.line(), "y\n");
    // The first ends the command; what it has said by then fills our output, and we wait with it.
    eventually("a signal has ended us", || {
        yes.signal(Signal::TERM);
        yes.has_ended()
    });
    let (status, ..) = yes.finish();
    assert_eq!(status.code(), Some(128 + 15));
}

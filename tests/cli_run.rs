//! `exec-server run` in scripts and pipelines: pipes, signals, timeouts, lost connections.

use exec_server_test_support::{Cut, FaultProxy};
use rustix::process::Signal;

use crate::support::{PROGRAM, Running, Server, command, eventually, run_command, run_program};

fn embedded(arguments: &[&str]) -> Running {
    let mut run = command(PROGRAM);
    run.arg("run").args(arguments);
    Running::start(run)
}

#[test]
fn interactive_input_and_output_are_not_buffered() {
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
fn no_stdin_reads_no_input() {
    let run = embedded(&["-n", "cat"]);
    // The test keeps the input open until the command has ended.
    let (status, out, _) = run.finish_with_input_open();
    assert_eq!((status.code(), out.as_str()), (Some(0), ""));
}

#[test]
fn unreadable_input_is_an_error() {
    let mut run = command(PROGRAM);
    run.args(["run", "cat"]).stdin(std::fs::File::open("/").unwrap());
    let output = run.output().unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(125), "{errors}");
    assert!(errors.starts_with("exec-server: cannot read standard input: "), "{errors}");
}

#[test]
fn write_only_input_counts_as_empty() {
    // `nohup` gives its command such a standard input.
    let null = std::fs::File::options().write(true).open("/dev/null").unwrap();
    let mut run = command(PROGRAM);
    run.args(["run", "cat"]).stdin(null);
    let output = run.output().unwrap();
    assert_eq!((output.status.code(), output.stderr), (Some(0), Vec::new()));
}

#[test]
fn a_terminal_gets_the_end_of_input_even_within_a_line() {
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
fn a_signal_ends_the_command_while_it_connects() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("ws://{}", silent.local_addr().unwrap());
    for (signal, number) in [(Signal::INT, 2), (Signal::TERM, 15), (Signal::HUP, 1)] {
        let run = embedded(&["--connect", &url, "true"]);
        let _connection = silent.accept().unwrap();
        run.signal(signal);
        assert_eq!(run.finish().0.code(), Some(128 + number));
    }
}

/// The server does not respond to the start.
#[test]
fn a_signal_ends_the_session_during_a_start() {
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
fn signals_are_forwarded_to_the_process() {
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
fn a_process_killed_by_a_signal_gives_128_plus_its_number() {
    let mut run = embedded(&["sh", "-c", "echo ready; exec sleep 1000"]);
    assert_eq!(run.line(), "ready\n");
    run.signal(Signal::TERM);
    assert_eq!(run.finish().0.code(), Some(128 + 15));
}

#[test]
fn a_broken_pipe_ends_the_process() {
    let mut yes = embedded(&["yes"]);
    assert_eq!(yes.line(), "y\n");
    yes.close_output();
    assert_eq!(yes.finish().0.code(), Some(128 + 13));
}

#[test]
fn a_timeout_ends_a_process_that_ignores_term() {
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
fn a_timeout_holds_during_an_outage() {
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
    eventually("the server has ended the process", || {
        server.run(&["ps", "-a"]).stdout.contains("timed out (143)")
    });
}

#[test]
fn a_stopped_server_is_reported() {
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
fn background_processes_end_with_the_command() {
    let outcome = run_program(&["run", "sh", "-c", "sleep 1000 > /dev/null 2>&1 & echo $!"]);
    let pid = outcome.stdout.trim();
    assert!(!std::path::Path::new("/proc").join(pid).exists(), "{pid} lives");
}

#[test]
fn a_terminal_is_allocated_on_request() {
    let script = "if [ -t 0 ] && [ -t 1 ]; then echo terminal; else echo pipes; fi";
    for (flag, expected) in [("-t", "terminal\r\n"), ("-T", "pipes\n")] {
        assert_eq!(run_program(&["run", flag, "sh", "-c", script]).stdout, expected);
    }
}

#[test]
fn the_default_directory_is_the_current_one_on_a_local_server() {
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
    // A server named by URL may be anywhere, so its own directory is the default.
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
fn failures_of_exec_server_give_125() {
    for (arguments, expected) in [
        (&["run"][..], "COMMAND"),
        (&["run", "--no-such-flag", "true"], "--no-such-flag"),
        (&["run", "--connect", "ws://127.0.0.1:1", "true"], "--connect: "),
        (&["run", "--connect", "nowhere", "true"], "ws://HOST:PORT"),
        (&["run", "--on", "nowhere", "true"], "nowhere"),
        (&["run", "-d", "true"], "found no server"),
    ] {
        let outcome = run_program(arguments);
        assert_eq!((outcome.code, outcome.stdout.as_str()), (Some(125), ""), "{arguments:?}");
        assert!(outcome.stderr.contains(expected), "{arguments:?}: {}", outcome.stderr);
    }
}

#[test]
fn an_interrupt_stops_reconnecting() {
    let mut server = Server::start();
    let mut run =
        Running::start(server.command(&["run", "sh", "-c", "echo ready; exec sleep 1000"]));
    assert_eq!(run.line(), "ready\n");
    server.signal(Signal::KILL);
    server.wait();
    assert_eq!(run.error_line(), "exec-server: connection lost, reconnecting… (Ctrl-C gives up)\n");
    run.signal(Signal::INT);
    assert!(run.error_line().contains("keeps running"));
    assert_eq!(run.finish().0.code(), Some(130));
}

#[test]
fn cuts_of_the_connection_go_unnoticed() {
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
fn a_second_signal_ends_a_command_with_blocked_output() {
    let mut yes = embedded(&["yes"]);
    assert_eq!(yes.line(), "y\n");
    // The first signal ends the process. Its remaining output blocks the pipe of the command.
    eventually("a signal has ended the command", || {
        yes.signal(Signal::TERM);
        yes.has_ended()
    });
    let (status, ..) = yes.finish();
    assert_eq!(status.code(), Some(128 + 15));
}

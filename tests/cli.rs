//! The command line: settings and their errors, help, `bench`, and the log of the server.

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::{PROGRAM, ServerBuilder, command, run_command, run_program, shell};

#[test]
fn help_and_version_are_printed() {
    let help = run_program(&["--help"]);
    assert_eq!((help.code, help.stderr.as_str()), (Some(0), ""));
    for line in ["  run          Run a command", "      --listen <URL>", "  -h, --help"] {
        assert!(help.stdout.contains(line), "{}", help.stdout);
    }
    let settings = run_program(&["config", "--help"]).stdout;
    for flag in ["--listen", "--max-sessions", "--shutdown-grace-period-ms", "--log-format"] {
        assert!(settings.contains(flag), "{settings}");
    }
    let version = run_program(&["--version"]);
    assert_eq!(version.stdout, format!("exec-server {}\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn an_invalid_option_is_reported_in_one_line() {
    for (arguments, expected) in [
        (&["--listen", "nowhere"][..], "nowhere"),
        (&["--listen", "ws://localhost:0"], "localhost"),
        (&["--listen", "wss://localhost:0"], "localhost"),
        (&["--ws-token-file", "token"], "ws_auth"),
        (&["--ws-auth", "password"], "capability-token"),
        (&["--tls-cert", "cert.pem"], "tls_key"),
        (&["--max-sessions", "many"], "max-sessions"),
        (&["--max-sessions", "-1"], "max-sessions"),
        (&["--detached-session-ttl", "30"], "detached-session-ttl"),
        (&["--log", "exec_server=loud"], "loud"),
        (&["--config", "/does/not/exist.toml"], "/does/not/exist.toml"),
    ] {
        let outcome = run_program(arguments);
        assert_eq!((outcome.code, outcome.stdout.as_str()), (Some(2), ""), "{arguments:?}");
        assert_eq!(outcome.stderr.lines().count(), 1, "{}", outcome.stderr);
        assert!(outcome.stderr.starts_with("exec-server: "), "{}", outcome.stderr);
        assert!(outcome.stderr.contains(expected), "{arguments:?}: {}", outcome.stderr);
    }
    let early = run_program(&["--connect", "ws://127.0.0.1:1", "ps"]);
    assert_eq!(early.code, Some(2));
    assert!(early.stderr.contains("exec-server ps --connect"), "{}", early.stderr);
    assert_eq!(run_program(&["--no-such-flag"]).code, Some(2));
    assert_eq!(run_program(&["no-such-command"]).code, Some(2));
}

#[test]
fn an_error_in_the_settings_file_is_reported_with_its_line() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("server.toml");
    let path_text = path.to_str().unwrap();
    for (text, line, key) in [
        ("log = \"warn\"\nmax_session = 3\n", "2", "max_session"),
        ("\n\nmax_sessions = \"three\"\n", "3", "max_sessions"),
        ("max_sessions = 0\n", "1", "max_sessions"),
        ("max_sessions = [\n", "1", ""),
    ] {
        std::fs::write(&path, text).unwrap();
        let outcome = run_program(&["--config", path_text]);
        assert_eq!(outcome.code, Some(2), "{text}");
        let place = format!("{path_text}:{line}");
        assert!(outcome.stderr.contains(&place), "{place}: {}", outcome.stderr);
        assert!(outcome.stderr.contains(key), "{}", outcome.stderr);
    }
}

#[test]
fn flags_override_variables_and_variables_override_the_file() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("server.toml");
    std::fs::write(&path, "max_sessions = 1\nconcurrent_requests = 1\nlog = \"error\"\n").unwrap();
    let mut config = command(PROGRAM);
    config
        .args(["config", "--json", "--max-sessions", "3"])
        .env("EXEC_SERVER_CONFIG", &path)
        .env("EXEC_SERVER_MAX_SESSIONS", "2")
        .env("EXEC_SERVER_CONCURRENT_REQUESTS", "2");
    let outcome = run_command(config);
    assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
    let effective: Value = serde_json::from_str(&outcome.stdout).unwrap();
    assert_eq!(effective["max_sessions"]["value"], 3);
    assert_eq!(effective["concurrent_requests"]["value"], 2);
    assert_eq!(effective["log"]["value"], "error");
    assert_eq!(effective["listen"]["value"], "ws://127.0.0.1:0");
}

#[test]
fn config_warns_of_unknown_variables() {
    let mut config = command(PROGRAM);
    config.args(["config"]).env("EXEC_SERVER_MAX_SESION", "2");
    let outcome = run_command(config);
    assert_eq!(outcome.code, Some(0));
    assert!(outcome.stdout.contains("max_sessions = "), "{}", outcome.stdout);
    assert_eq!(
        outcome.stderr,
        "exec-server: unknown environment variable \"EXEC_SERVER_MAX_SESION\" is ignored \
         (did you mean \"EXEC_SERVER_MAX_SESSIONS\"?)\n"
    );
}

#[test]
fn deprecated_names_of_settings_work_and_are_not_shown() {
    let config = run_program(&["config", "--max-processes-per-connection", "7"]);
    assert_eq!(config.code, Some(0));
    assert!(config.stdout.contains("max_processes_per_session = 7"), "{}", config.stdout);
    assert_eq!(
        config.stderr,
        "exec-server: --max-processes-per-connection is deprecated; \
         use --max-processes-per-session\n"
    );
    for shown in [run_program(&["config", "--help"]), run_program(&["man"])] {
        let text = shown.stdout.replace('\\', "");
        assert!(text.contains("max-processes-per-session"), "{text}");
        assert!(!text.contains("max-processes-per-connection"), "{text}");
    }
}

#[test]
fn help_and_man_refuse_unknown_commands() {
    let help = run_program(&["help", "logs"]);
    assert_eq!((help.code, help.stdout), (Some(0), run_program(&["logs", "--help"]).stdout));
    assert_eq!(run_program(&["help"]).stdout, run_program(&["--help"]).stdout);
    assert_eq!(run_program(&["man", "logs"]).code, Some(0));
    for unknown in [["help", "fly"], ["man", "fly"]] {
        let outcome = run_program(&unknown);
        assert_eq!((outcome.code, outcome.stdout.as_str()), (Some(2), ""), "{unknown:?}");
    }
}

#[test]
fn json_output_is_one_value_on_one_line() {
    for command in ["config", "doctor", "ls"] {
        let outcome = run_program(&[command, "--json"]);
        assert_eq!(outcome.stdout.lines().count(), 1, "{command}: {}", outcome.stdout);
        serde_json::from_str::<Value>(&outcome.stdout).unwrap();
    }
    let server = ServerBuilder::new().start();
    let mut client = server.client();
    client.start(&shell("p", "cat").with_stdin());
    let ps = run_command(server.command(&["ps", "--json"]));
    let listed: Value = serde_json::from_str(&ps.stdout).unwrap();
    assert_eq!((listed.as_array().unwrap().len(), ps.stdout.lines().count()), (1, 1));
}

#[test]
fn the_output_of_config_is_an_equivalent_settings_file() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("printed.toml");
    let first = run_program(&["config", "--max-sessions", "7", "--allow-host", "box.example"]);
    std::fs::write(&path, &first.stdout).unwrap();
    let second = run_program(&["config", "--config", path.to_str().unwrap()]);
    let settings = |text: &str| -> Vec<String> {
        text.lines().map(|line| line.split("  #").next().unwrap().trim().to_owned()).collect()
    };
    assert_eq!(settings(&first.stdout), settings(&second.stdout));
    assert!(first.stdout.contains("max_sessions = 7"), "{}", first.stdout);
}

#[test]
fn the_log_contains_no_data_of_clients_or_processes() {
    let mut server = ServerBuilder::new()
        .arguments(&["--log", "trace", "--log-format", "json"])
        .capture_stderr()
        .start();
    let mut client = server.client();
    let start = shell("p", "read line; echo arg-secret $line $VARIABLE; echo out-secret >&2")
        .variable("VARIABLE", "variable-secret")
        .with_stdin();
    client.start(&start);
    client.write("p", "input-secret\n");
    let output = client.finish_process("p").output();
    assert!(output.starts_with(b"arg-secret input-secret variable-secret"));
    client.refused("process/start", shell("q", "true").with("cwd", "cwd-secret").params());
    client.refused("process/start", shell("r", "arg-secret").with("argv", json!(7)).params());
    client.send_text(r#"{"broken-secret"#);
    client.receive().unwrap();
    server.signal(Signal::TERM);
    let log = server.stderr();
    assert!(server.wait().success());
    assert!(!log.is_empty());
    for line in log.lines() {
        let _: Value = serde_json::from_str(line).unwrap_or_else(|_| panic!("not JSON: {line}"));
        assert!(!line.contains("secret"), "{line}");
    }
}

#[test]
fn bench_reports_every_measurement() {
    let outcome = run_program(&["bench", "--quick", "--json"]);
    assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
    let report: Value = serde_json::from_str(&outcome.stdout).unwrap();
    let text = report.to_string();
    for name in [
        "start to close",
        "in flight",
        "of output",
        "short lines",
        "keystroke",
        "idle",
        "listening",
        "getMetadata",
        "readFile of 32 MiB",
        "written in blocks",
        "walk",
        "search",
        "start with a managed network",
        "sent through a managed network",
        "received through a managed network",
        "connect and first byte",
        "managed processes at once",
        "with TLS and a token",
        "through a relay",
        "handshake of a relay",
        "routed by a rendezvous",
        "idle streams",
    ] {
        assert!(text.contains(name), "{name} is missing in {text}");
    }
}

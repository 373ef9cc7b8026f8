//! Monitoring of a server: metrics and the audit log.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Command, Stdio};

use exec_server_test_support::{skipped, uri};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::tokens::Issuer;
use crate::support::{PROGRAM, Running, ServerBuilder, command, eventually, run_command};

/// Starts a server with these flags and returns it with its URL.
pub(crate) fn serve(flags: &[&str]) -> (Running, String) {
    let mut program = command(PROGRAM);
    program.args(["--listen", "ws://127.0.0.1:0", "--discoverable=false"]).args(flags);
    let mut server = Running::start(program);
    let url = server.line().trim().to_owned();
    assert!(url.starts_with("ws://"), "{url:?}: {}", server.finish().2);
    (server, url)
}

/// Sends a GET request and returns the status and the body.
pub(crate) fn get(url: &str, path: &str, headers: &str) -> (u16, String) {
    let address = url.split_once("://").unwrap().1.trim_end_matches('/');
    let mut socket = TcpStream::connect(address).unwrap();
    write!(socket, "GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n{headers}\r\n")
        .unwrap();
    let mut response = String::new();
    socket.read_to_string(&mut response).unwrap();
    let (head, body) = response.split_once("\r\n\r\n").unwrap();
    (head[9..12].parse().unwrap(), body.to_owned())
}

fn run(url: &str, arguments: &[&str]) -> Option<i32> {
    let mut program = command(PROGRAM);
    program.args(["run", "-n", "--connect", url, "--"]).args(arguments);
    run_command(program).code
}

pub(crate) fn value(metrics: &str, name: &str) -> f64 {
    let line = metrics
        .lines()
        .find(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(' ')));
    line.unwrap_or_else(|| panic!("{name} is not in\n{metrics}"))[name.len()..]
        .trim()
        .parse()
        .unwrap()
}

fn records(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn metrics_are_served_if_enabled() {
    let (_server, url) = serve(&[]);
    assert_eq!(get(&url, "/metrics", "").0, 404);
    let (_server, url) = serve(&["--metrics"]);
    assert_eq!(run(&url, &["sh", "-c", "printf 12345; exit 3"]), Some(3));
    assert_eq!(run(&url, &["true"]), Some(0));
    assert_ne!(run(&url, &["/no/such/program"]), Some(0));
    let mut metrics = String::new();
    eventually("both exits are counted", || {
        let (status, text) = get(&url, "/metrics", "");
        assert_eq!(status, 200);
        metrics = text;
        value(&metrics, "exec_server_process_exits_total{cause=\"success\"}") == 1.0
            && value(&metrics, "exec_server_connections") == 0.0
    });
    for (name, expected) in [
        ("exec_server_process_exits_total{cause=\"failure\"}", 1.0),
        ("exec_server_output_bytes_total", 5.0),
        ("exec_server_requests_total{method=\"process/start\",outcome=\"ok\"}", 2.0),
        ("exec_server_requests_total{method=\"process/start\",outcome=\"failed\"}", 1.0),
        ("exec_server_queue_depth{queue=\"requests\"}", 0.0),
        ("exec_server_request_errors_total{kind=\"programNotFound\"}", 1.0),
        ("exec_server_session_events_total{event=\"opened\"}", 3.0),
        ("exec_server_connections_total", 3.0),
        ("exec_server_connections_refused_total{reason=\"credentials\"}", 0.0),
    ] {
        assert_eq!(value(&metrics, name), expected, "{name} in\n{metrics}");
    }
    check_with_promtool(&metrics);
    // Pages of other sites cannot read metrics.
    let (status, _) = get(&url, "/metrics", "origin: https://evil.example\r\n");
    assert_eq!(status, 403);
}

/// Returns a command for promtool: the one that `scripts/test` unpacked, or else the one on `PATH`.
pub(crate) fn promtool() -> Command {
    command(&std::env::var("PROMTOOL").unwrap_or_else(|_| "promtool".to_owned()))
}

pub(crate) fn check_with_promtool(metrics: &str) {
    let mut promtool = promtool();
    promtool.args(["check", "metrics"]).stdin(std::process::Stdio::piped());
    let mut promtool = match promtool.spawn() {
        Ok(promtool) => promtool,
        Err(error) => return skipped(format_args!("cannot start promtool: {error}")),
    };
    promtool.stdin.take().unwrap().write_all(metrics.as_bytes()).unwrap();
    assert!(promtool.wait().unwrap().success(), "{metrics}");
}

#[test]
fn metrics_of_a_server_with_tokens_need_the_admin_role() {
    let scratch = tempfile::tempdir().unwrap();
    let secret = scratch.path().join("secret");
    std::fs::write(&secret, "x".repeat(40)).unwrap();
    let secret = secret.to_str().unwrap();
    let (_server, url) = serve(&[
        "--metrics",
        "--ws-auth=signed-bearer-token",
        &format!("--ws-shared-secret-file={secret}"),
    ]);
    let bearer = |role: &str| {
        let mut sign = command(PROGRAM);
        sign.args(["token", "sign", "--secret-file", secret, "--subject", "a", "--role", role]);
        let token = run_command(sign).stdout;
        format!("authorization: Bearer {}\r\n", token.trim())
    };
    assert_eq!(get(&url, "/metrics", "").0, 401);
    assert_eq!(get(&url, "/metrics", "authorization: Bearer wrong\r\n").0, 401);
    assert_eq!(get(&url, "/metrics", &bearer("owner")).0, 403);
    assert_eq!(get(&url, "/metrics", &bearer("observer")).0, 403);
    let (status, metrics) = get(&url, "/metrics", &bearer("admin"));
    assert_eq!(status, 200);
    let refused = "exec_server_connections_refused_total{reason=\"credentials\"}";
    assert_eq!(value(&metrics, refused), 4.0);
}

#[test]
fn the_audit_log_records_starts_exits_and_file_changes() {
    let scratch = tempfile::tempdir().unwrap();
    let log = scratch.path().join("audit.jsonl");
    let target = format!("--audit-log={}", log.display());
    let (server, url) = serve(&[&target]);
    let hostile = "a\nb\u{1b}[31m\",\"event\":\"none\u{2028}";
    assert_eq!(run(&url, &["sh", "-c", "exit 5", hostile]), Some(5));
    let written = scratch.path().join("file");
    let mut cp = command(PROGRAM);
    cp.args(["mkdir", "--connect", &url]).arg(&written);
    assert_eq!(run_command(cp).code, Some(0));
    eventually("the last connection is closed", || {
        let closed = |record: &&Value| record["outcome"] == "closed";
        records(&log).iter().filter(closed).count() == 2
    });
    let records = records(&log);
    let of = |event: &str| -> Vec<&Value> {
        records.iter().filter(|record| record["event"] == event).collect()
    };
    assert_eq!(of("start").len(), 1);
    let start = of("start")[0];
    assert_eq!((&start["outcome"], &start["method"]), (&json!("ok"), &json!("process/start")));
    let subject = start["subject"].as_str().unwrap();
    assert!(!subject.is_empty() && start["address"].as_str().unwrap().starts_with("127.0.0.1:"));
    assert_eq!(start["command"], Value::Null, "command lines are opt-in");
    let exit = of("exit")[0];
    assert_eq!((&exit["exitCode"], &exit["process"]), (&json!(5), &start["process"]));
    assert_eq!(exit["session"], start["session"]);
    let file = of("file")[0];
    assert_eq!((&file["method"], &file["paths"]), (&json!("fs/createDirectory"), &Value::Null));
    assert!(!std::fs::read_to_string(&log).unwrap().contains(scratch.path().to_str().unwrap()));
    drop(server);

    let (_server, url) = serve(&[&target, "--audit-commands"]);
    assert_eq!(run(&url, &["sh", "-c", "exit 5", hostile]), Some(5));
    let started = |record: &Value| record["command"] == json!(["sh", "-c", "exit 5", hostile]);
    eventually("the command line is recorded", || self::records(&log).iter().any(started));
}

#[test]
fn sessions_and_uploads_are_recorded_to_their_end() {
    let scratch = tempfile::tempdir().unwrap();
    let log = scratch.path().join("audit.jsonl");
    let target = format!("--audit-log={}", log.display());
    let (server, url) = serve(&[&target, "--audit-commands", "--audit-required"]);
    let [source, uploaded] = ["source", "uploaded"].map(|name| scratch.path().join(name));
    // Large enough to be uploaded in blocks.
    std::fs::write(&source, vec![0; 8 << 20]).unwrap();
    let mut cp = command(PROGRAM);
    let destination = format!("{}:{}", "box", uploaded.display());
    let environments = scratch.path().join("environments.toml");
    std::fs::write(&environments, format!("[[environments]]\nid = \"box\"\nurl = {url:?}\n"))
        .unwrap();
    cp.args(["cp", source.to_str().unwrap(), &destination])
        .env("EXEC_SERVER_ENVIRONMENTS", &environments);
    let copied = run_command(cp);
    assert_eq!(copied.code, Some(0), "{}", copied.stderr);
    let mut detached = command(PROGRAM);
    detached.args(["run", "--detach", "--connect", &url, "--", "cat"]);
    assert_eq!(run_command(detached).code, Some(0));
    server.signal(Signal::TERM);
    server.finish();
    let records = records(&log);
    let find = |event: &str, method: &str, outcome: &str| {
        let found = records.iter().find(|record| {
            (&record["event"], &record["method"], &record["outcome"])
                == (&json!(event), &json!(method), &json!(outcome))
        });
        found.unwrap_or_else(|| panic!("{event} {method} {outcome} is not in {records:#?}"))
    };
    find("begun", "initialize", "begun");
    find("begun", "fs/close", "begun");
    let paths = &find("file", "fs/close", "ok")["paths"];
    assert_eq!(*paths, json!([uploaded.to_str().unwrap()]));
    let sessions = |outcome: &str| {
        let is_it = |it: &&Value| it["event"] == "session" && it["outcome"] == outcome;
        records.iter().filter(is_it).count()
    };
    assert!(sessions("opened") >= 2);
    assert_eq!(sessions("ended"), sessions("opened"), "{records:#?}");
    let of = |event: &str| records.iter().filter(|it| it["event"] == event).count();
    assert_eq!((of("start"), of("exit")), (1, 1), "{records:#?}");
    assert_eq!(of("begun"), of("file") + of("start") + of("request") + sessions("opened"));
}

#[test]
fn records_of_refused_clients_are_rate_limited() {
    let scratch = tempfile::tempdir().unwrap();
    let log = scratch.path().join("audit.jsonl");
    let (server, url) = serve(&[&format!("--audit-log={}", log.display())]);
    for _ in 0..100 {
        assert_eq!(get(&url, "/", "origin: https://evil.example\r\n").0, 403);
    }
    server.signal(Signal::TERM);
    server.finish();
    let records = records(&log);
    let refused = records.iter().filter(|it| it["outcome"] == "name").count() as u64;
    let left_out: u64 = records.iter().filter_map(|it| it["count"].as_u64()).sum();
    assert_eq!(refused + left_out, 100, "{records:#?}");
}

/// A text that would forge log lines, audit records and metrics if it were not escaped.
const HOSTILE: &str = "a\n2026-01-01T00:00:00Z  INFO forged\r\n{\"event\":\"forged\"}\u{1b}[31m\u{2028}\u{9b}\"\\,x=1} 1\nforged_total 1";

#[test]
fn hostile_names_forge_no_record_no_log_line_and_no_metric() {
    let scratch = tempfile::tempdir().unwrap();
    let log = scratch.path().join("audit.jsonl");
    let issuer = Issuer::new();
    let audit = format!("--audit-log={}", log.display());
    let flags = [&*audit, "--audit-commands", "--metrics", "--log=trace"];
    let mut server = issuer.server().arguments(&flags).capture_stderr().start();
    let admin = issuer.token(&json!({"sub": "admin", "role": "admin"}));
    let metrics = || {
        let authorization = format!("authorization: Bearer {admin}\r\n");
        get(server.url(), "/metrics", &authorization).1
    };
    // The listener accepts connections before the server exists, and there are no metrics until the
    // server exists. A response shows that it does.
    server.client_of(&admin).call("environment/status", json!({}));
    let names_before = series(&metrics());
    let forged = issuer.token(&json!({"sub": HOSTILE}));
    assert!(server.connect_with(&forged).is_err(), "a subject has no control characters");
    let megabyte = "x".repeat(1 << 20);
    for hostile in [HOSTILE, &megabyte] {
        let path = format!("{}/{}", scratch.path().display(), &hostile.replace('/', "_"));
        let uri = uri(&path);
        let mut client = server.connect_with(&issuer.token(&json!({"sub": "a"}))).unwrap();
        // Names that the server refuses are in its errors, and may be in its log.
        let name = &hostile[..hostile.len().min(10_000)];
        if client.initialize(&json!({"clientName": name})).is_err() {
            client.initialize(&json!({})).unwrap();
        }
        for (method, params) in [
            (hostile, json!({hostile: hostile})),
            (
                "process/start",
                json!({"processId": hostile, "argv": [hostile, hostile],
                "cwd": "file:///tmp", "env": {hostile: hostile}}),
            ),
            (
                "process/start",
                json!({"processId": "p", "argv": ["true", hostile],
                "cwd": "file:///tmp", "env": {}}),
            ),
            ("process/start", json!({"processId": "q", "argv": ["true"], "cwd": uri, "env": {}})),
            ("fs/createDirectory", json!({"path": uri})),
            ("fs/readFile", json!({"path": uri})),
            ("session/close", json!({"sessionId": hostile})),
            ("process/read", json!({"processId": hostile})),
            ("http/request", json!({"requestId": hostile, "method": hostile, "url": hostile})),
        ] {
            let trace = json!({"traceparent": hostile, "tracestate": hostile});
            let id = format!("{}-{method}", hostile.len());
            client.send(&json!({"id": id, "method": method, "params": params, "trace": trace}));
            client.answer_with(&json!(id));
        }
        client.send(&json!({"method": hostile, "params": {"x": hostile}}));
        client.call("environment/status", json!({}));
    }
    server.http("GET / HTTP/1.1\r\nHost: \u{9b}forged\r\nOrigin: \u{9b}31m\r\n\r\n");
    assert_eq!(series(&metrics()), names_before, "no series comes from a client");
    server.signal(Signal::TERM);
    let lines = server.stderr();
    for line in lines.lines() {
        let is_whole = line.starts_with("20") || line.starts_with("Listening") || line.is_empty();
        assert!(is_whole && !line.starts_with("2026-01-01T"), "{}", &line[..line.len().min(500)]);
        let is_control = |c: char| c.is_control() || c == '\u{2028}';
        assert!(!line.contains(is_control), "{line:?}");
        assert!(line.len() < 64 << 10, "{} bytes: {}", line.len(), &line[..500]);
    }
    let text = std::fs::read_to_string(&log).unwrap();
    for line in text.lines() {
        assert!(line.len() < 64 << 10, "{} bytes: {}", line.len(), &line[..500]);
        let record: Value = serde_json::from_str(line).unwrap();
        assert_ne!(record["event"], "forged", "{line}");
    }
    let hostile_start = |record: &Value| record["command"] == json!(["true", HOSTILE]);
    assert!(records(&log).iter().any(hostile_start), "{text}");
}

/// Returns the names and labels of all series, without their values.
fn series(metrics: &str) -> Vec<String> {
    let lines = metrics.lines().filter(|line| !line.starts_with('#'));
    lines.map(|line| line.rsplit_once(' ').unwrap().0.to_owned()).collect()
}

#[test]
fn a_rotated_audit_log_is_reopened_on_hangup() {
    let scratch = tempfile::tempdir().unwrap();
    let [log, old] = ["audit", "audit.1"].map(|name| scratch.path().join(name));
    let (server, url) = serve(&[&format!("--audit-log={}", log.display())]);
    assert_eq!(run(&url, &["true"]), Some(0));
    std::fs::rename(&log, &old).unwrap();
    server.signal(Signal::HUP);
    eventually("the server has opened a new file", || log.exists());
    let before = records(&old).len();
    assert_eq!(run(&url, &["true"]), Some(0));
    eventually("the exit is recorded in the new file", || {
        records(&log).iter().any(|it| it["event"] == "exit")
    });
    assert_eq!(records(&old).len(), before);
}

#[test]
fn a_required_audit_log_that_fails_blocks_changes() {
    let scratch = tempfile::tempdir().unwrap();
    let socket = scratch.path().join("journal");
    let journal = UnixDatagram::bind(&socket).unwrap();
    let target = format!("--audit-log=journald:{}", socket.display());
    let (_server, url) = serve(&[&target, "--audit-required", "--metrics"]);
    let witness = scratch.path().join("witness");
    assert_eq!(run(&url, &["true"]), Some(0));
    let mut entry = [0; 65536];
    let len = journal.recv(&mut entry).unwrap();
    assert!(String::from_utf8_lossy(&entry[..len]).contains("MESSAGE={"));
    // From here on, writes to journald fail.
    drop(journal);
    assert_ne!(run(&url, &["touch", witness.to_str().unwrap()]), Some(0));
    assert!(!witness.exists());
    let metrics = get(&url, "/metrics", "").1;
    assert!(value(&metrics, "exec_server_audit_failures_total") > 0.0, "{metrics}");
    // Not even a session was opened.
    assert_eq!(value(&metrics, "exec_server_request_errors_total{kind=\"auditFailed\"}"), 1.0);
    assert_eq!(value(&metrics, "exec_server_sessions{state=\"attached\"}"), 0.0);
}

#[test]
fn clients_read_and_resume_while_the_required_audit_log_fails() {
    let scratch = tempfile::tempdir().unwrap();
    let [socket, file] = ["journal", "file"].map(|name| scratch.path().join(name));
    let journal = UnixDatagram::bind(&socket).unwrap();
    std::fs::write(&file, "text").unwrap();
    let target = format!("--audit-log=journald:{}", socket.display());
    let server = ServerBuilder::new().arguments(&[&target, "--audit-required"]).start();
    let before = server.client();
    let session = before.session();
    drop(before);
    // From here on, writes to journald fail.
    drop(journal);
    let mut client = server.resume(&session, &json!({}));
    client.call("fs/open", json!({ "path": uri(&file), "handleId": "in" }));
    client.call("fs/close", json!({ "handleId": "in" }));
    let change = json!({ "path": uri(scratch.path().join("new")), "dataBase64": "" });
    let refused = client.refused("fs/writeFile", change);
    assert_eq!(refused.kind.as_deref(), Some("auditFailed"), "{refused:?}");
}

#[test]
fn a_command_whose_input_is_refused_fails_with_the_reason() {
    let scratch = tempfile::tempdir().unwrap();
    let socket = scratch.path().join("journal");
    let journal = UnixDatagram::bind(&socket).unwrap();
    let target = format!("--audit-log=journald:{}", socket.display());
    let (_server, url) = serve(&[&target, "--audit-required"]);
    let mut cat = command(PROGRAM);
    cat.args(["run", "--connect", &url, "--", "cat"]).stdin(Stdio::piped());
    let mut cat = cat.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut input = cat.stdin.take().unwrap();
    input.write_all(b"1").unwrap();
    cat.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
    // From here on, writes to journald fail.
    drop(journal);
    input.write_all(b"2").unwrap();
    let outcome = cat.wait_with_output().unwrap();
    let errors = String::from_utf8_lossy(&outcome.stderr).into_owned();
    assert_eq!(outcome.status.code(), Some(125), "{errors}");
    assert!(errors.contains("cannot write to cat") && errors.contains("audit log"), "{errors}");
}

#[test]
fn an_audit_log_that_cannot_be_opened_stops_the_server() {
    for (flags, why) in [
        (&["--audit-log=/no/such/directory/audit"][..], "cannot open the audit log"),
        (&["--audit-log=audit"], "journald, journald:SOCKET or an absolute path"),
        (&["--audit-required"], "no effect without audit.log"),
    ] {
        let mut program = command(PROGRAM);
        program.args(["--listen", "ws://127.0.0.1:0"]).args(flags);
        let outcome = run_command(program);
        assert!(outcome.code != Some(0) && outcome.stderr.contains(why), "{flags:?}: {outcome:?}");
    }
}

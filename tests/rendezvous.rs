//! `exec-server rendezvous` and the commands that manage its tokens.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixDatagram;
use std::path::Path;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::monitoring::{check_with_promtool, value};
use crate::support::relay::wait_until_online;
use crate::support::rendezvous::{Rendezvous, create_identity, create_token};
use crate::support::{
    Gate, PROGRAM, Relay, RelayBuilder, Running, command, eventually, run_program,
};

fn list(data: &Path) -> Vec<Value> {
    let outcome = run_program(&["token", "list", "--data", data.to_str().unwrap(), "--json"]);
    assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
    outcome.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn registration() -> Value {
    let key = json!({"suite": "s", "x25519_public_key": "x", "mlkem768_public_key": "m"});
    json!({"security_profile": "noise_hybrid_ik_v1", "executor_public_key": key})
}

const REGISTER: &str = "/cloud/environment/box/register";

#[test]
fn tokens_can_be_managed_with_and_without_a_running_service() {
    let data = tempfile::tempdir().unwrap();
    let before = create_token(data.path(), "environment");
    assert!(before.starts_with("esr_") && !before.contains(char::is_whitespace));
    let service = Rendezvous::start(data.path());
    let while_running = create_token(data.path(), "environment");
    let agent = create_identity(data.path(), "harness");
    assert_eq!(agent.split('.').count(), 3, "a JSON Web Token");
    for token in [&before, &while_running] {
        let (status, answer) = service.post(REGISTER, token, &registration());
        assert_eq!(status, 200, "{answer}");
        assert_eq!(answer["environment_id"], "box");
        let ticket = service.url.replace("http", "ws") + "/relay/environment?id=box&ticket=";
        assert!(answer["url"].as_str().unwrap().starts_with(&ticket));
    }
    let listed = list(data.path());
    assert_eq!(listed.len(), 3);
    let text = Value::from(listed.clone()).to_string();
    assert!(!text.contains(&before) && !text.contains("sha256"), "{text}");

    for token in listed.iter().filter(|token| token["kind"] == "token") {
        let (id, data) = (token["id"].as_str().unwrap(), data.path().to_str().unwrap());
        assert_eq!(run_program(&["token", "revoke", "--data", data, id]).code, Some(0));
        let again = run_program(&["token", "revoke", "--data", data, id]);
        assert_eq!(again.code, Some(1));
        assert!(again.stderr.contains("token list"), "{}", again.stderr);
    }
    assert_eq!(service.post(REGISTER, &before, &registration()).0, 401);
    service.stop();
    assert_eq!(list(data.path()).len(), 1);
    let service = Rendezvous::start(data.path());
    assert_eq!(service.post(REGISTER, &while_running, &registration()).0, 401);
    service.stop();
}

#[test]
fn the_operator_sees_health_and_a_status_page() {
    let data = tempfile::tempdir().unwrap();
    let service = Rendezvous::start(data.path());
    assert_eq!(service.get("/healthz").0, 200);
    assert_eq!(service.get("/readyz").0, 200);
    let (status, page) = service.get("/");
    assert_eq!(status, 200);
    assert!(page.contains("Environments online"), "{page}");
    let data = data.path().to_str().unwrap();
    let told = run_program(&["rendezvous", "status", "--json", "--data", data]);
    let node: Value = serde_json::from_str(&told.stdout).unwrap();
    assert_eq!(node["url"], service.url.replace("http", "ws"));
    assert_eq!(node["environments"], 0);
    service.stop();
    let told = run_program(&["rendezvous", "status", "--data", data]);
    assert_eq!(told.code, Some(1));
    let expected = format!("no rendezvous is running in {data}");
    assert!(told.stderr.contains(&expected), "{}", told.stderr);
}

#[test]
fn calls_and_sockets_are_audited_and_no_log_has_a_secret() {
    let data = tempfile::tempdir().unwrap();
    let audit_log = data.path().join("audit.jsonl");
    let token = create_token(data.path(), "environment");
    let service = Rendezvous::start_with(data.path(), "http://127.0.0.1:0", |program| {
        program.env("EXEC_SERVER_LOG", "trace").arg("--audit-log").arg(&audit_log);
    });
    let (_, answer) = service.post(REGISTER, &token, &registration());
    let url = answer["url"].as_str().unwrap();
    let ticket = url.split_once("ticket=").unwrap().1;
    let upgrade = format!(
        "GET /relay/environment?id=box&ticket={ticket} HTTP/1.1\r\nhost: localhost\r\n\
         upgrade: websocket\r\nconnection: upgrade\r\nsec-websocket-version: 13\r\n\
         sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    );
    let mut socket = service.socket();
    socket.write_all(upgrade.as_bytes()).unwrap();
    let mut head = [0; 12];
    socket.read_exact(&mut head).unwrap();
    assert_eq!(&head, b"HTTP/1.1 101");
    let wrong = "esr_wrong-secret";
    assert_eq!(service.post(REGISTER, wrong, &registration()).0, 401);
    assert_eq!(service.get("/relay/environment?id=box&ticket=other-secret").0, 404);
    drop(socket);
    let log = service.stop();
    assert!(log.contains("environment registered"), "{log}");
    let audit = std::fs::read_to_string(audit_log).unwrap();
    for secret in [&*token, ticket, wrong, "other-secret"] {
        assert!(!log.contains(secret), "{secret} is in {log}");
        assert!(!audit.contains(secret), "{secret} is in {audit}");
    }
    let records: Vec<Value> =
        audit.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let facts = |record: &Value| {
        ["event", "outcome", "method", "end"]
            .map(|name| record[name].as_str().unwrap_or("-"))
            .join(" ")
    };
    let facts: Vec<_> = records.iter().map(facts).collect();
    for expected in [
        "call ok register -",
        "socket opened - environment",
        "refused unauthorized - -",
        "refused not_found - -",
        "socket closed - environment",
    ] {
        assert!(facts.iter().any(|fact| fact == expected), "{expected} is not in {audit}");
    }
    assert_eq!(records[0]["environment"], "box");
    assert_eq!(records[0]["credential"], list(data.path())[0]["id"]);
    assert!(records[0]["address"].as_str().unwrap().starts_with("127."), "{audit}");
}

#[test]
fn failed_audit_records_are_counted() {
    let data = tempfile::tempdir().unwrap();
    let socket = data.path().join("journal");
    let journal = UnixDatagram::bind(&socket).unwrap();
    let service = Rendezvous::start_with(data.path(), "http://127.0.0.1:0", |program| {
        program.arg("--metrics").arg(format!("--audit-log=journald:{}", socket.display()));
    });
    // From here on, writes to journald fail.
    drop(journal);
    assert_eq!(service.post(REGISTER, "esr_wrong", &registration()).0, 401);
    let mut metrics = String::new();
    eventually("the lost record is counted", || {
        metrics = service.get("/metrics").1;
        value(&metrics, "exec_server_audit_failures_total") == 1.0
    });
    check_with_promtool(&metrics);
}

#[test]
fn the_tasks_of_agents_are_audited() {
    let data = tempfile::tempdir().unwrap();
    let audit_log = data.path().join("audit.jsonl");
    let identity = create_identity(data.path(), "environment");
    let service = Rendezvous::start_with(data.path(), "http://127.0.0.1:0", |program| {
        program.arg("--audit-log").arg(&audit_log);
    });
    let mut program = command(PROGRAM);
    program
        .args(["--remote", &service.url, "--environment-id", "box", "--use-agent-identity-auth"])
        .env("EXEC_SERVER_ACCESS_TOKEN", identity);
    let mut environment = Running::start(program);
    wait_until_online(&mut environment);
    drop(environment);
    service.stop();
    let audit = std::fs::read_to_string(audit_log).unwrap();
    let mut records = audit.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let task = records.find(|record| record["method"] == "registerTask");
    let task = task.unwrap_or_else(|| panic!("no task is in {audit}"));
    assert_eq!((&task["event"], &task["outcome"]), (&json!("call"), &json!("ok")), "{task}");
    assert_eq!(task["credential"], list(data.path())[0]["id"]);
    assert!(task["address"].is_string(), "{task}");
}

#[test]
fn invalid_arguments_are_refused() {
    let data = tempfile::tempdir().unwrap();
    let path = data.path().to_str().unwrap();
    let missing = data.path().join("missing");
    let missing = missing.to_str().unwrap();
    for (arguments, expected) in [
        (&["rendezvous", "--listen", "http://0.0.0.0:0", "--data", path][..], "--insecure"),
        (&["rendezvous", "--listen", "https://127.0.0.1:0", "--data", path], "--tls-self-signed"),
        (
            &["rendezvous", "--listen", "http://127.0.0.1:0", "--data", path, "--tls-self-signed"],
            "https://",
        ),
        (&["rendezvous", "--listen", "127.0.0.1:0", "--data", path], "http://IP:PORT"),
        (&["token", "list", "--data", missing], "contains no rendezvous store"),
        (
            &["token", "create", "--data", path, "--role", "harness", "--environment", "a b"],
            "environment id",
        ),
    ] {
        let outcome = run_program(arguments);
        assert!(outcome.code.is_some_and(|code| code > 0), "{arguments:?}");
        assert!(outcome.stderr.contains(expected), "{arguments:?}: {}", outcome.stderr);
        assert_eq!(outcome.stdout, "");
    }
    assert!(!Path::new(missing).exists());
}

#[test]
fn a_second_rendezvous_on_one_store_is_refused() {
    let data = tempfile::tempdir().unwrap();
    let service = Rendezvous::start(data.path());
    let second = run_program(&[
        "rendezvous",
        "--listen",
        "http://127.0.0.1:0",
        "--data",
        data.path().to_str().unwrap(),
    ]);
    assert_eq!(second.code, Some(1));
    assert!(second.stderr.contains("another rendezvous"), "{}", second.stderr);
    service.stop();
}

#[test]
fn a_self_signed_certificate_is_announced_by_its_fingerprint() {
    let data = tempfile::tempdir().unwrap();
    let mut program = command(PROGRAM);
    program
        .args(["rendezvous", "--listen", "https://127.0.0.1:0", "--tls-self-signed", "--data"])
        .arg(data.path());
    let mut running = Running::start(program);
    assert!(running.line().starts_with("https://127.0.0.1:"));
    let line = running.error_line();
    assert!(line.starts_with("certificate fingerprint: "), "{line}");
    running.signal(Signal::INT);
    let (status, out, log) = running.finish();
    assert_eq!((status.code(), &*out), (Some(0), ""), "{log}");
}

#[test]
fn a_command_survives_a_restart_of_the_rendezvous() {
    let mut relay = Relay::start();
    let gate = Gate::new();
    let script = format!("echo before; read x < {}; echo after; exit 7", gate.path());
    let command = relay.command(&["run", "--on", "box", "--", "sh", "-c", &script]);
    let mut run = Running::start(command);
    assert_eq!(run.line(), "before\n");
    relay.end_rendezvous(Signal::TERM);
    relay.start_rendezvous();
    gate.open();
    assert_eq!(run.line(), "after\n");
    let (status, _, errors) = run.finish();
    assert_eq!(status.code(), Some(7), "{errors}");
}

#[test]
fn an_agent_identity_registers_a_server() {
    let relay = RelayBuilder::new().agent_identities().start();
    let outcome = relay.run(&["run", "--on", "box", "--", "echo", "hello"]);
    assert_eq!((outcome.code, &*outcome.stdout), (Some(0), "hello\n"), "{}", outcome.stderr);
}

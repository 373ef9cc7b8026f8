//! Limits of processes hold against real bombs, the exit names the limit, and other clients are
//! served in the meantime.

mod guest;

use std::os::unix::net::UnixListener;

use serde_json::{Value, json};

use crate::support::daemons::marker;
use crate::support::machine::marked;
use crate::support::tokens::Issuer;
use crate::support::{Client, PROGRAM, Server, command, eventually, run_command, shell};

const MEBIBYTE: u64 = 1 << 20;

/// Starts a bomb, serves another client until it ends, and returns its exit.
fn set_off(server: &Server, id: &str, script: &str, limits: &Value) -> Value {
    let mut bomber = server.client();
    let mut other = server.client();
    let bomb = shell(id, script).with("limits", limits.clone());
    let answer = bomber.start(&bomb.variable("EXEC_SERVER_TEST", &marker(id)));
    assert_eq!(answer["limits"]["tier"], "rlimit", "{answer}");
    let waiting = bomber.request("process/wait", json!({ "processId": id }));
    // However long the bomb runs, other requests get responses in the meantime.
    for round in 0.. {
        let name = format!("{id}{round}");
        assert_eq!(other.run(&shell(&name, "echo served")).text(), "served\n");
        assert_eq!(server.get("/healthz"), 200);
        bomber.call("environment/status", json!({}));
        if bomber.has_answer(waiting) {
            break;
        }
    }
    let exit = bomber.answer(waiting).unwrap();
    eventually("all processes of the bomb have ended", || marked(&marker(id)).is_empty());
    exit
}

#[test]
fn a_memory_bomb_ends_at_its_limit() {
    let server = Server::start();
    let limits = json!({ "memoryBytes": 96 * MEBIBYTE });
    let exit = set_off(&server, "memory", "tail /dev/zero & wait; exit 3", &limits);
    assert_eq!(exit["limitsHit"], json!(["memory"]), "{exit}");
    assert_eq!(exit["signal"], 9);
    assert!(exit["peakMemoryBytes"].as_u64().unwrap() > 48 * MEBIBYTE, "{exit}");
}

#[test]
fn a_fork_bomb_ends_at_its_limit() {
    let server = Server::start();
    for (id, bomb) in [
        ("doubling", "b() { b & b & wait; }; b"),
        ("sessions", "while :; do setsid sh -c 'sleep 1000; :' & done"),
    ] {
        let exit = set_off(&server, id, bomb, &json!({ "pids": 60 }));
        assert_eq!(exit["limitsHit"], json!(["pids"]), "{exit}");
    }
}

#[test]
fn a_busy_loop_ends_at_its_cpu_limit() {
    let server = Server::start();
    let script = "(while :; do :; done) & while :; do :; done";
    let exit = set_off(&server, "burner", script, &json!({ "cpuTimeMs": 400 }));
    assert_eq!(exit["limitsHit"], json!(["cpuTime"]), "{exit}");
    assert!(exit["treeCpuMs"].as_u64().unwrap() >= 400, "{exit}");
}

/// Returns the limits in the response to a start.
fn granted(client: &mut Client, id: &str, limits: &Value) -> Value {
    let answer = client.start(&shell(id, "exit 0").with("limits", limits.clone()));
    client.finish_process(id);
    answer["limits"].clone()
}

#[test]
fn settings_and_tokens_lower_limits() {
    let issuer = Issuer::new();
    let server = issuer
        .server()
        .arguments(&["--limits-max-memory", "1G", "--limits-default-pids", "200"])
        .start();
    let mut developer = server.client_of(&issuer.token(&json!({ "sub": "alice" })));
    let claims =
        json!({ "sub": "alice", "limits": { "memoryBytes": 512 * MEBIBYTE, "cpus": 0.5 } });
    let mut agent = server.client_of(&issuer.token(&claims));
    let greedy = json!({ "memoryBytes": u64::MAX, "pids": 1000 });
    let by_operator = json!({ "tier": "rlimit", "memoryBytes": 1024 * MEBIBYTE, "pids": 1000 });
    assert_eq!(granted(&mut developer, "a", &greedy), by_operator);
    let by_token = json!({
        "tier": "rlimit", "memoryBytes": 512 * MEBIBYTE, "pids": 1000, "cpus": 0.5,
        "notEnforced": ["cpus"],
    });
    assert_eq!(granted(&mut agent, "a", &greedy), by_token);
    let by_default = json!({ "tier": "rlimit", "memoryBytes": 1024 * MEBIBYTE, "pids": 200 });
    assert_eq!(granted(&mut developer, "b", &json!({})), by_default);
    // The default limit of `pids` is enforced, not only reported.
    let bomb = shell("bomb", "while :; do sleep 1000 & done").with("limits", json!({}));
    agent.start(&bomb);
    let exit = agent.call("process/wait", json!({ "processId": "bomb" }));
    assert_eq!(exit["limitsHit"], json!(["pids"]), "{exit}");
}

#[test]
fn run_reports_the_limit_that_was_reached() {
    let run = |arguments: &[&str]| {
        let mut run = command(PROGRAM);
        run.arg("run").args(arguments);
        run_command(run)
    };
    let bomb = run(&["--limit", "memory=64M", "--", "tail", "/dev/zero"]);
    assert_eq!(bomb.code, Some(137), "{}", bomb.stderr);
    assert_eq!(bomb.stderr, "exec-server: limit reached: memory 64M\n");
    let fine = run(&["--limit", "memory=64M", "--limit", "pids=100", "--", "echo", "fine"]);
    assert_eq!((fine.code, fine.stdout.as_str(), fine.stderr.as_str()), (Some(0), "fine\n", ""));
    let slow = run(&["--limit", "wall-time=0.1", "--", "sleep", "1000"]);
    assert_eq!(slow.code, Some(124), "{}", slow.stderr);
    assert!(slow.stderr.contains("limit reached: wall-time 100ms\n"), "{}", slow.stderr);
    let strict = run(&["--limit", "memory=64M", "--require-limits", "--", "true"]);
    assert_eq!(strict.code, Some(125), "{}", strict.stderr);
    for part in ["cannot start true", "tier \"rlimit\"", "Delegate=yes"] {
        assert!(strict.stderr.contains(part), "{}", strict.stderr);
    }
}

#[test]
fn wait_ps_and_logs_name_the_limit() {
    let server = Server::start();
    let started = server.run(&[
        "run",
        "--detach",
        "--name",
        "bomb",
        "--limit",
        "pids=20",
        "--",
        "sh",
        "-c",
        "while :; do sleep 1000 & done",
    ]);
    assert_eq!(started.code, Some(0), "{}", started.stderr);
    let waited = server.run(&["wait", "--json", "bomb"]);
    let waited: Value = serde_json::from_str(&waited.stdout).unwrap();
    assert_eq!(waited["limitsHit"], json!(["pids"]), "{waited}");
    let listed = server.run(&["ps", "--all", "--json"]);
    let listed: Value = serde_json::from_str(&listed.stdout).unwrap();
    assert_eq!(listed[0]["limitsHit"], json!(["pids"]), "{listed}");
    let logs = server.run(&["logs", "--json", "bomb"]);
    assert!(logs.stdout.contains(r#""limitsHit":["pids"]"#), "{}", logs.stdout);
}

#[test]
fn doctor_names_the_tier() {
    let mut doctor = command(PROGRAM);
    doctor.args(["doctor", "--json"]);
    let report: Value = serde_json::from_str(&run_command(doctor).stdout).unwrap();
    let checks = report["checks"].as_array().unwrap();
    let limits = checks.iter().find(|check| check["name"] == "limits").unwrap();
    let detail = limits["detail"].as_str().unwrap();
    assert!(detail.starts_with("tier "), "{detail}");
    let remedy = limits["remedy"].as_str().unwrap_or_default();
    assert!(detail.contains("tier cgroup") || remedy.contains("Delegate=yes"), "{limits}");
}

#[test]
fn an_unresponsive_service_manager_affects_only_the_tier() {
    let directory = tempfile::tempdir().unwrap();
    // A socket without a listener.
    drop(UnixListener::bind(directory.path().join("bus")).unwrap());
    let run = |arguments: &[&str]| {
        let mut program = command(PROGRAM);
        program.args(arguments).env("XDG_RUNTIME_DIR", directory.path());
        run_command(program)
    };
    let limited = run(&["run", "--limit", "pids=50", "--", "echo", "limited"]);
    assert_eq!((limited.code, limited.stdout.as_str()), (Some(0), "limited\n"), "{limited:?}");
    let doctor = run(&["doctor", "--json"]).stdout;
    let said =
        ["tier cgroup", "systemd-run failed to create a scope", "systemd-run is not installed"];
    assert!(said.iter().any(|text| doctor.contains(text)), "{doctor}");
}

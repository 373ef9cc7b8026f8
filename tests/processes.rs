//! Starts of programs: many at once, failed ones, and limits.

use serde_json::json;

use crate::support::{
    Client, Cut, Server, ServerBuilder, Start, decoded, eventually, machine, program, shell,
};

const INVALID_REQUEST: i64 = -32600;

#[test]
fn one_of_twenty_starts_with_the_same_id_succeeds() {
    let server = Server::start();
    let mut client = server.client();
    let starts: Vec<u64> = (0..20)
        .map(|n| {
            let start = shell("contested", &format!("echo {n}; read line")).with_stdin();
            client.request("process/start", start.params())
        })
        .collect();
    let outcomes: Vec<_> = starts.into_iter().map(|id| client.answer(id)).collect();
    assert_eq!(outcomes.iter().filter(|outcome| outcome.is_ok()).count(), 1);
    for failure in outcomes.into_iter().filter_map(Result::err) {
        assert_eq!(failure.code, INVALID_REQUEST);
        assert!(failure.message.contains("contested"), "{failure:?}");
    }
    client.call("process/closeStdin", json!({"processId": "contested"}));
    assert_eq!(client.finish_process("contested").text().lines().count(), 1);
}

#[test]
fn one_of_twenty_sessions_that_claim_a_name_gets_it() {
    let server = Server::start();
    let claim = shell("job", "exec sleep 1000").with("claimName", true);
    let mut clients: Vec<_> = (0..20).map(|_| server.client()).collect();
    let claims: Vec<_> =
        clients.iter_mut().map(|client| client.request("process/start", claim.params())).collect();
    let answers = clients.iter_mut().zip(claims).map(|(client, claim)| client.answer(claim));
    let (won, lost): (Vec<_>, Vec<_>) = answers.partition(Result::is_ok);
    assert_eq!((won.len(), lost.len()), (1, 19));
    for failure in lost.into_iter().filter_map(Result::err) {
        assert_eq!(failure.kind.as_deref(), Some("nameTaken"), "{failure:?}");
    }
}

#[test]
fn a_claimed_name_is_unique_across_sessions() {
    let server = Server::start();
    let (mut first, mut second) = (server.client(), server.client());
    first.start(&shell("job", "exec sleep 1000"));
    let claim = shell("job", "exec sleep 1000").with("claimName", true);
    let refused = second.refused("process/start", claim.params());
    assert_eq!(refused.kind.as_deref(), Some("nameTaken"), "{refused:?}");
    assert_eq!(refused.message, "the name \"job\" is taken by a running process");
    first.start(&shell("left", "sleep 1000 &"));
    first.call("process/wait", json!({"processId": "left"}));
    let claim_left = shell("left", "exec sleep 1000").with("claimName", true);
    let refused = second.refused("process/start", claim_left.params());
    assert_eq!(
        refused.message,
        "the name \"left\" is taken by a process that has exited but still has descendants or \
         unread output"
    );
    // Unclaimed ids are unique only within their session.
    second.start(&shell("job", "exec sleep 1000"));
    for client in [&mut first, &mut second] {
        client.call("session/close", json!({}));
    }
    server.client().start(&claim);
}

#[test]
fn the_server_enforces_a_deadline_without_its_client() {
    let server = Server::start();
    let mut client = server.client();
    let started = client.start(&shell("late", "exec sleep 1000").with("timeoutMs", 300));
    assert_eq!(started["timeoutMs"], 300);
    let session = client.session();
    client.cut(Cut::Rst);
    let mut other = server.client();
    let list = json!({"sessionId": session});
    eventually("the process has timed out", || {
        let listed = other.call("process/list", list.clone());
        listed["processes"][0]["timedOut"] == true
    });
    let mut client = server.resume(&session, &json!({}));
    let waited = client.call("process/wait", json!({"processId": "late"}));
    assert_eq!((&waited["timedOut"], &waited["exitCode"]), (&json!(true), &json!(143)));
    let read = client.call("process/read", json!({"processId": "late"}));
    assert_eq!(read["timedOut"], true);

    client.start(&shell("early", "exit 3").with("timeoutMs", 600_000));
    let waited = client.call("process/wait", json!({"processId": "early"}));
    assert_eq!((waited.get("timedOut"), &waited["exitCode"]), (None, &json!(3)));
    let zero = shell("zero", "true").with("timeoutMs", 0).params();
    assert!(client.refused("process/start", zero).message.contains("timeoutMs"));
}

#[test]
fn short_runs_leave_neither_zombies_nor_descriptors() {
    short_runs(300);
}

#[test]
#[ignore = "soak: 10,000 runs"]
fn soak_short_runs_leave_neither_zombies_nor_descriptors() {
    short_runs(10_000);
}

fn short_runs(count: usize) {
    // The limit is below the number of runs, so a descriptor leaked by each run would exhaust it.
    let limit = "ulimit -n 200; exec \"$0\" \"$@\"";
    let server = ServerBuilder::new().through(&["/bin/sh", "-c", limit]).start();
    let mut client = server.client();
    client.run(&shell("first", "true"));
    eventually("the first run has ended", || machine::descendants(server.pid()).len() == 1);
    let baseline = machine::descriptors(server.pid());
    for n in 0..count {
        let start = shell(&format!("run{n}"), "true").with("pipeStdin", n % 3 == 0);
        let start = if n % 5 == 0 { start.tty() } else { start };
        assert_eq!(client.run(&start).exit_code, Some(0));
    }
    // Only the spawner remains, without keepers or zombies below it.
    eventually("all keepers end", || machine::descendants(server.pid()).len() == 1);
    assert_eq!(machine::zombies_below(server.pid()), 0);
    eventually("descriptors return to the baseline", || {
        machine::descriptors(server.pid()) <= baseline
    });
}

#[test]
fn a_failed_start_reports_the_cause_and_frees_its_id() {
    let server = Server::start();
    let mut client = server.client();
    let directory = tempfile::tempdir().unwrap();
    let plain_file = directory.path().join("plain");
    std::fs::write(&plain_file, "#!/bin/sh\n").unwrap();
    let plain_file = plain_file.to_str().unwrap();
    let long = "x".repeat(3 << 20);
    let attempts: [(Start, &str); 9] = [
        (shell("again", "true").with("cwd", "file:///does/not/exist"), "/does/not/exist"),
        (shell("again", "true").with("cwd", format!("file://{plain_file}")), plain_file),
        (program("again", &["/does/not/exist"]), "/does/not/exist"),
        (program("again", &["no-such-program"]), "no-such-program"),
        (program("again", &[plain_file]), plain_file),
        (program("again", &["/tmp"]), "/tmp"),
        (program("again", &["/bin/echo", &long]), "again"),
        (program("again", &["/bin/echo", "a\0b"]), "again"),
        (shell("again", "true").variable("A\0B", "x"), "again"),
    ];
    for (start, subject) in attempts {
        let failure = client.refused("process/start", start.params());
        assert!(matches!(failure.code, -32600 | -32602 | -32004), "{failure:?}");
        assert!(failure.message.contains(subject), "{failure:?}");
        assert!(failure.message.len() < 1000, "an error is one short line");
    }
    assert_eq!(client.run(&shell("again", "exit 6")).exit_code, Some(6));
    assert_eq!(client.call("process/list", json!({}))["processes"].as_array().unwrap().len(), 1);
}

#[test]
fn the_id_of_a_finished_process_cannot_be_reused() {
    let server = Server::start();
    let mut client = server.client();
    client.run(&shell("once", "echo first"));
    assert_eq!(
        client.refused("process/start", shell("once", "true").params()).code,
        INVALID_REQUEST
    );
    let read = client.call("process/read", json!({"processId": "once"}));
    assert_eq!(decoded(&read["chunks"][0]["chunk"]), b"first\n");
    assert_eq!(read["nextSeq"], 4);
    assert_eq!((&read["exited"], &read["closed"]), (&json!(true), &json!(true)));
}

#[test]
fn only_running_processes_count_towards_the_limit() {
    let server = Server::with(&["--max-processes-per-session", "3"]);
    let mut client = server.client();
    for n in 0..10 {
        client.run(&shell(&format!("short{n}"), "true"));
    }
    for n in 0..3 {
        client.start(&shell(&format!("long{n}"), "read line").with_stdin());
    }
    let failure = client.refused("process/start", shell("fourth", "true").params());
    assert_eq!(failure.kind.as_deref(), Some("tooManyProcesses"));
}

#[test]
fn a_disconnect_during_a_start_leaks_nothing() {
    disconnects_during_starts(50);
}

#[test]
#[ignore = "soak: 1,000 disconnects"]
fn soak_a_disconnect_during_a_start_leaks_nothing() {
    disconnects_during_starts(1000);
}

fn disconnects_during_starts(count: usize) {
    let server = Server::start();
    let mut witness = server.client();
    let baseline = machine::descriptors(server.pid());
    for n in 0..count {
        let mut client = server.client_with(&json!({"detachedTtlMs": 0}));
        for k in 0..4 {
            let start =
                shell(&format!("p{k}"), "sleep 1000 & exec sleep 1000").with("tty", k % 2 == 0);
            client.request("process/start", start.params());
        }
        if n % 2 == 0 {
            client.request("process/terminate", json!({"processId": "p0"}));
        }
        client.cut(Cut::ALL[n % 4]);
    }
    // The server may not have noticed the last cut yet. Only a hang would keep this loop running.
    while session_count(&mut witness) > 1 {
        std::thread::yield_now();
    }
    eventually("every tree ends", || machine::descendants(server.pid()).len() == 1);
    eventually("descriptors return to the baseline", || {
        machine::descriptors(server.pid()) <= baseline
    });
}

fn session_count(client: &mut Client) -> usize {
    client.call("session/list", json!({}))["sessions"].as_array().unwrap().len()
}

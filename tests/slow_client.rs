//! A client that does not read: memory is bounded, no output is lost, other clients are served.

use exec_server_test_support::skipped;
use serde_json::json;

use crate::support::daemons::marker;
use crate::support::machine::{self, Watched, bytes_written, only_marked};
use crate::support::{
    AckingInbox, Cut, Gate, Inbox, OldStyleInbox, Server, decoded, eventually, program,
    random_file, shell,
};

#[test]
fn a_stdio_server_ends_despite_queued_requests_and_unread_responses() {
    // More than may run at once, so that some are queued; each response fills the outbox.
    const REQUESTS: usize = 200;
    let directory = tempfile::tempdir().unwrap();
    let file = random_file(directory.path(), 2 << 20);
    let (mut server, mut client) = Server::stdio();
    client.initialize(&json!({})).unwrap();
    for _ in 0..REQUESTS {
        client.request("fs/readFile", json!({"path": file}));
    }
    client.wait_until_read();
    drop(client);
    assert_eq!(server.wait().code(), Some(0));
}

#[test]
fn a_client_that_does_not_read_can_still_terminate() {
    let server = Server::with(&["--spill-output-bytes-per-process", "1048576"]);
    let marker = marker("deaf");
    let mut client = server.client();
    client.start(&program("yes", &["yes"]).variable("EXEC_SERVER_TEST", &marker));
    let child = only_marked(&marker);
    eventually("the log fills", || bytes_written(child) > 1 << 20);
    let watched = Watched::new(&[child]);
    client.request("process/terminate", json!({"processId": "yes"}));
    watched.wait_until_all_end();
    assert_eq!(client.finish_process("yes").exit_code, Some(137));
}

#[test]
fn output_written_while_disconnected_reaches_a_client_that_confirms() {
    output_while_away(&mut AckingInbox::new("away"));
}

#[test]
fn output_written_while_disconnected_reaches_an_old_style_client() {
    output_while_away(&mut OldStyleInbox::new("away"));
}

fn output_while_away(inbox: &mut impl Inbox) {
    const LEN: usize = 20 << 20;
    let directory = tempfile::tempdir().unwrap();
    let file = random_file(directory.path(), LEN);
    let gate = Gate::new();
    let server = Server::start();
    let mut client = server.client_with(&inbox.handshake());
    let session = client.session();
    let script = format!("echo $$; read x < {}; exec cat {}", gate.path(), file.display());
    client.start(&shell("away", &script));
    client.wait_for_output(inbox, "\n");
    let pid: u32 = inbox.transcript().text().trim().parse().unwrap();
    client.cut(Cut::Fin);
    let watched = Watched::new(&[pid]);
    gate.open();
    watched.wait_until_all_end();

    let mut client = server.resume_with(&session, inbox);
    while !inbox.transcript().closed {
        inbox.take(&client.event_of("away"));
    }
    assert_eq!(inbox.transcript().exit_code, Some(0));
    let expected = std::fs::read(&file).unwrap();
    assert!(inbox.transcript().stdout.ends_with(&expected), "bytes were lost");
    assert_eq!(inbox.transcript().stdout.len(), expected.len() + pid.to_string().len() + 1);
}

/// Starts a server with logs of 64 KiB and without spill files.
fn server_with_small_logs() -> Server {
    Server::with(&[
        "--retained-output-bytes-per-process",
        "65536",
        "--spill-output-bytes-per-process",
        "0",
    ])
}

#[test]
fn a_process_that_may_discard_never_blocks_and_declares_the_gap() {
    const LEN: u64 = 4 << 20;
    let server = server_with_small_logs();
    let gate = Gate::new();
    let mut client = server.client_with(&json!({"acks": true}));
    let session = client.session();
    let script = format!("read x < {}; yes | head -c {LEN}", gate.path());
    let marker = marker("noisy");
    let start = shell("noisy", &script).variable("EXEC_SERVER_TEST", &marker);
    client.start(&start.with("onFull", "discard"));
    let watched = Watched::new(&[only_marked(&marker)]);
    client.cut(Cut::Fin);
    gate.open();
    watched.wait_until_all_end();

    let mut client = server.resume(&session, &json!({"acks": true}));
    client.call("process/wait", json!({"processId": "noisy"}));
    let (mut dropped, mut received) = (0, 0);
    loop {
        let event = client.event_of("noisy");
        let params = &event["params"];
        dropped += params["droppedBytes"].as_u64().unwrap_or(0);
        match event["method"].as_str().unwrap() {
            "process/output" => received += decoded(&params["chunk"]).len() as u64,
            "process/exited" => assert_eq!(params["exitCode"], 0),
            _ => break,
        }
    }
    assert!(dropped > 0);
    assert_eq!(dropped + received, LEN, "{dropped} dropped, {received} received");

    let read = client.call("process/read", json!({"processId": "noisy"}));
    let chunks = read["chunks"].as_array().unwrap().iter();
    let retained: usize = chunks.map(|chunk| decoded(&chunk["chunk"]).len()).sum();
    assert_eq!(read["droppedBytes"].as_u64().unwrap() + retained as u64, LEN);
}

#[test]
fn a_process_that_must_not_lose_output_blocks_when_its_log_is_full() {
    const LEN: usize = 16 << 20;
    /// More than fits into the log, a grown pipe, a read in progress and the socket's buffer.
    const HELD: u64 = 6 << 20;
    let server = server_with_small_logs();
    let mut client = server.client_with(&json!({"acks": true}));
    let session = client.session();
    let marker = marker("long");
    let argv = ["head", "-c", &LEN.to_string(), "/dev/zero"];
    client.start(&program("long", &argv).variable("EXEC_SERVER_TEST", &marker));
    let child = only_marked(&marker);
    client.cut(Cut::Rst);
    let mut other = server.client();
    eventually("the process blocks", || {
        machine::state(child) == Some('S') && bytes_written(child) > 65536
    });
    let mut written = 0;
    // The process is blocked if it wrote nothing while the server ran ten other processes.
    while written != bytes_written(child) {
        written = bytes_written(child);
        for n in 0..10 {
            other.run(&shell(&format!("{written}-{n}"), "true"));
        }
    }
    assert!(written <= HELD, "{written} bytes were taken");

    let mut inbox = AckingInbox::new("long");
    let mut client = server.resume_with(&session, &mut inbox);
    while !inbox.transcript().closed {
        inbox.take(&client.event_of("long"));
        inbox.confirm(&mut client);
    }
    assert_eq!(inbox.transcript().stdout.len(), LEN);
}

#[test]
fn sessions_that_end_with_a_full_log_leave_no_files_behind() {
    if !machine::is_root() {
        // The server is not dumpable, so its descriptors are hidden even from its own user.
        return skipped("only root can list the descriptors of the server");
    }
    let limits = ["--spill-output-bytes-per-process", "1048576"];
    let server = Server::with(&limits);
    let before = machine::spill_files(server.pid());
    for _ in 0..10 {
        let mut client = server.client_with(&json!({"acks": true, "detachedTtlMs": 0}));
        let start = shell("flood", "exec yes").variable("EXEC_SERVER_TEST", "full-log");
        client.start(&start);
        eventually("output spills", || machine::spill_files(server.pid()) > before);
        client.cut(Cut::Rst);
        eventually("the session has ended", || machine::spill_files(server.pid()) == before);
    }
}

#[test]
fn a_read_beyond_the_end_confirms_no_unsent_events() {
    let server = Server::start();
    let mut client = server.client();
    client.start(&shell("flood", "head -c 20000000 /dev/zero"));
    // The owner reads nothing until the process has ended; most of its output is unsent by then.
    let mut witness = server.client();
    let session = client.session();
    witness.call("process/observe", json!({"sessionId": session, "processId": "flood"}));
    while witness.event_of("flood")["method"] != "process/closed" {}

    client.request("process/read", json!({"processId": "flood", "afterSeq": 1_000_000_000}));
    let (mut seen, mut output) = (0, 0);
    loop {
        let event = client.event_of("flood");
        seen += 1;
        assert_eq!(event["params"]["seq"], seen, "a gap before this event");
        match event["method"].as_str() {
            Some("process/output") => output += decoded(&event["params"]["chunk"]).len(),
            Some("process/closed") => break,
            _ => {}
        }
    }
    assert_eq!(output, 20_000_000);
}

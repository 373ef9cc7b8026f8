//! A session without a connection follows the same rules as every other.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use exec_server_protocol::{
    Base64Bytes, OutputStream, RpcError, StartParams, WriteParams, WriteStatus,
};
use exec_server_server::{
    Followed, FollowedEvent, Follower, LocalProcess, LocalSession, ServerConfig,
};
use serde_json::json;

use crate::client::{Client, bytes, server};

fn local(config: ServerConfig) -> LocalSession {
    server(config).open_session("local").unwrap()
}

fn shell(id: &str, script: &str) -> StartParams {
    let params = json!({
        "processId": id, "argv": ["/bin/sh", "-c", script], "cwd": "file:///",
        "env": { "PATH": "/usr/bin:/bin" },
    });
    serde_json::from_value(params).unwrap()
}

async fn start(session: &LocalSession, id: &str, script: &str) -> Arc<LocalProcess> {
    session.start(shell(id, script)).await.unwrap()
}

fn write(bytes: &[u8], write_id: Option<&str>) -> WriteParams {
    WriteParams {
        process_id: "p".to_owned(),
        chunk: Base64Bytes(Bytes::copy_from_slice(bytes)),
        write_id: write_id.map(str::to_owned),
    }
}

/// Confirms as it goes, and checks that nothing is missing.
async fn collect(follower: &mut Follower) -> (Vec<u8>, Vec<FollowedEvent>) {
    let (mut output, mut ends, mut seen) = (Vec::new(), Vec::new(), 0);
    while let Some(Followed { seq, dropped_bytes, event }) = follower.next().await {
        assert_eq!((seq, dropped_bytes), (seen + 1, 0), "{event:?}");
        seen = seq;
        follower.confirm(seq);
        match event {
            FollowedEvent::Output { chunk, .. } => output.extend_from_slice(&chunk),
            end => ends.push(end),
        }
    }
    (output, ends)
}

fn exit_code(event: &FollowedEvent) -> i32 {
    match event {
        FollowedEvent::Exited { exit_code, denied: None, .. } => *exit_code,
        other => panic!("not an exit: {other:?}"),
    }
}

fn kind(error: &RpcError) -> &str {
    error.data.as_ref().map_or("", |data| &data.kind)
}

#[tokio::test]
async fn a_follower_gets_each_event_once_and_in_order() {
    let session = local(ServerConfig::default());
    let process = start(&session, "p", "seq 1 1000; exit 3").await;
    let mut follower = process.follow();
    let (output, ends) = collect(&mut follower).await;
    let expected: String = (1..=1000).map(|n| format!("{n}\n")).collect();
    assert_eq!(String::from_utf8(output).unwrap(), expected);
    assert_eq!(exit_code(&ends[0]), 3);
    assert_eq!(ends[1..], [FollowedEvent::Closed]);
    assert_eq!(follower.next().await, None);
}

#[tokio::test]
async fn a_new_follower_begins_at_the_oldest_unconfirmed_event() {
    let session = local(ServerConfig::default());
    let script = "echo a; read x; echo b >&2";
    let params = StartParams { pipe_stdin: true, ..shell("p", script) };
    let process = session.start(params).await.unwrap();
    let mut first = process.follow();
    let one = first.next().await.unwrap();
    assert_eq!(process.write(write(b"\n", None)).await.unwrap().status, WriteStatus::Accepted);
    let two = first.next().await.unwrap();
    let stderr = OutputStream::Stderr;
    assert_eq!(two.event, FollowedEvent::Output { stream: stderr, chunk: "b\n".into() });

    // Neither reading nor following confirms; only confirming does.
    let read = serde_json::from_value(json!({ "processId": "p", "afterSeq": 2, "waitMs": 60_000 }));
    assert!(process.read(&read.unwrap()).await.next_seq > 3);
    assert_eq!(process.follow().next().await, Some(one));
    first.confirm(1);
    assert_eq!(process.follow().next().await, Some(two));
    // What has not been returned cannot be confirmed.
    first.confirm(u64::MAX);
    assert_eq!(exit_code(&process.follow().next().await.unwrap().event), 0);
}

#[tokio::test]
async fn a_follower_that_is_interrupted_all_the_time_loses_nothing() {
    // Little memory and many events, so that they come from many blocks of the spill file.
    let config = ServerConfig { retained_output_bytes_per_process: 4096, ..Default::default() };
    let session = local(config);
    let script = "while read line; do echo $line; done";
    let params = StartParams { pipe_stdin: true, ..shell("p", script) };
    let process = session.start(params).await.unwrap();
    let mut expected = Vec::new();
    for number in 0..200 {
        let line = format!("{number}\n");
        process.write(write(line.as_bytes(), None)).await.unwrap();
        expected.extend_from_slice(line.as_bytes());
        let read = json!({ "processId": "p", "afterSeq": number, "waitMs": 60_000 });
        process.read(&serde_json::from_value(read).unwrap()).await;
    }
    process.close_stdin().unwrap();
    let mut follower = process.follow();
    let mut output = Vec::new();
    loop {
        let next = tokio::select! {
            biased;
            next = follower.next() => next,
            () = std::future::ready(()) => {
                tokio::task::yield_now().await;
                continue;
            }
        };
        match next {
            Some(Followed {
                event: FollowedEvent::Output { chunk, .. }, dropped_bytes: 0, ..
            }) => {
                output.extend_from_slice(&chunk);
            }
            Some(_) => {}
            None => break,
        }
    }
    assert_eq!(output, expected);
}

#[tokio::test]
async fn confirming_makes_room_for_a_child_that_blocks() {
    let config = ServerConfig {
        retained_output_bytes_per_process: 4096,
        spill_output_bytes_per_process: 0,
        ..Default::default()
    };
    let session = local(config);
    let process = start(&session, "p", "head -c 1000000 /dev/zero").await;
    let (output, ends) = collect(&mut process.follow()).await;
    assert_eq!((output.len(), exit_code(&ends[0])), (1_000_000, 0));
}

#[tokio::test]
async fn the_session_counts_is_listed_and_cannot_be_resumed() {
    let server = server(ServerConfig { max_sessions: 2, ..ServerConfig::default() });
    let session = server.open_session("local").unwrap();
    start(&session, "p", "exec sleep 1000").await;
    let (mut client, _) = Client::open(&server, json!({})).await;
    assert_eq!(kind(&server.open_session("third").unwrap_err()), "tooManySessions");

    let listed = client.call("session/list", json!({})).await.unwrap();
    let expected = json!({
        "sessionId": session.id(), "clientName": "local", "attached": true, "processes": ["p"],
    });
    assert!(listed["sessions"].as_array().unwrap().contains(&expected), "{listed}");
    let resume = json!({ "resumeSessionId": session.id() });
    let error = Client::connect(&server).call("initialize", resume).await.unwrap_err();
    assert_eq!(error["code"], -32010);

    drop(session);
    assert!(server.open_session("third").is_ok());
}

#[tokio::test]
async fn a_client_may_watch_a_local_session_and_close_it() {
    let server = server(ServerConfig::default());
    let session = server.open_session("local").unwrap();
    let process = start(&session, "p", "echo up; exec sleep 1000").await;
    let mut follower = process.follow();
    let (mut client, _) = Client::open(&server, json!({})).await;
    let observe = json!({ "sessionId": session.id(), "processId": "p" });
    client.call("process/observe", observe).await.unwrap();
    assert_eq!(bytes(&client.notification().await["params"]["chunk"]), b"up\n");
    client.call("session/close", json!({ "sessionId": session.id() })).await.unwrap();

    let (output, ends) = collect(&mut follower).await;
    assert_eq!((output.as_slice(), exit_code(&ends[0])), (&b"up\n"[..], 137));
    let refused = session.start(shell("q", "true")).await.unwrap_err();
    assert_eq!(kind(&refused), "sessionEnded");
    assert_eq!(kind(&session.list().await.unwrap_err()), "sessionEnded");
    assert_eq!(kind(&session.environment_info().unwrap_err()), "sessionEnded");
    assert!(session.process("p").is_none());
}

#[tokio::test]
async fn close_returns_when_nothing_is_left() {
    let session = local(ServerConfig::default());
    let process = start(&session, "p", "exec sleep 1000").await;
    session.close().await;
    let now = serde_json::from_value(json!({ "processId": "p", "timeoutMs": 0 })).unwrap();
    assert_eq!(process.wait(&now).await.exit_code, Some(137));
    session.close().await;
}

#[tokio::test]
async fn dropping_the_session_ends_its_processes_also_outside_the_runtime() {
    let session = local(ServerConfig::default());
    let process = start(&session, "p", "exec sleep 1000").await;
    std::thread::spawn(|| drop(session)).join().unwrap();
    let (_, ends) = collect(&mut process.follow()).await;
    assert_eq!(exit_code(&ends[0]), 137);
}

/// The process of a start that is under way.
fn poll_start(session: &LocalSession, start: std::pin::Pin<&mut impl Future>) -> Arc<LocalProcess> {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    assert!(start.poll(&mut context).is_pending());
    session.process("p").unwrap()
}

async fn forgotten(session: &LocalSession) {
    while session.process("p").is_some() {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_start_that_is_dropped_leaves_nothing() {
    let session = local(ServerConfig::default());
    for _ in 0..20 {
        let process = {
            let start = pin!(session.start(shell("p", "exec sleep 1000")));
            poll_start(&session, start)
        };
        let (_, ends) = collect(&mut process.follow()).await;
        assert_eq!(exit_code(&ends[0]), 137);
        forgotten(&session).await;
    }
}

#[tokio::test]
async fn a_start_that_is_dropped_after_it_succeeded_leaves_nothing() {
    let session = local(ServerConfig::default());
    let mut follower = {
        let start = pin!(session.start(shell("p", "echo up; exec sleep 1000")));
        let mut follower = poll_start(&session, start).follow();
        assert_eq!(follower.next().await.unwrap().seq, 1);
        follower
    };
    assert_eq!(exit_code(&follower.next().await.unwrap().event), 137);
    forgotten(&session).await;
}

#[tokio::test]
async fn limits_and_errors_are_those_of_the_wire() {
    let config = ServerConfig { max_processes_per_connection: 1, ..ServerConfig::default() };
    let server = server(config);
    let session = server.open_session("local").unwrap();
    let long = "x".repeat(1025);
    assert_eq!(server.open_session(&long).unwrap_err().code, -32602);

    let refused = async |params| session.start(params).await.unwrap_err();
    assert_eq!(refused(shell(&long, "true")).await.code, -32602);
    let argv = vec!["/no/such/program".to_owned()];
    let missing = refused(StartParams { argv, ..shell("p", "true") }).await;
    assert_eq!((missing.code, kind(&missing)), (-32600, "programNotFound"));
    assert!(session.process("p").is_none(), "the id is free again");
    let process = start(&session, "p", "exec sleep 1000").await;
    assert_eq!(kind(&refused(shell("p", "true")).await), "duplicateProcess");
    assert_eq!(kind(&refused(shell("q", "true")).await), "tooManyProcesses");

    assert_eq!(process.write(write(b"x", None)).await.unwrap().status, WriteStatus::StdinClosed);
    assert_eq!(process.write(write(b"x", Some(&long))).await.unwrap_err().code, -32602);
    assert_eq!(session.list().await.unwrap().processes[0].process_id, "p");
    server.shutdown().await;
    let error = session.start(shell("q", "true")).await.unwrap_err();
    assert_eq!(kind(&error), "shuttingDown");
}

#[tokio::test]
async fn a_finished_process_is_forgotten_once_it_is_confirmed() {
    let session = local(ServerConfig::default());
    let unread = start(&session, "unread", "true").await;
    let mut follower = unread.follow();
    while follower.next().await.is_some() {}
    let read = start(&session, "p", "true").await;
    collect(&mut read.follow()).await;
    // All has happened but the passing of time.
    tokio::time::pause();
    while session.process("p").is_some() {
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    assert!(session.process("unread").is_some());
}

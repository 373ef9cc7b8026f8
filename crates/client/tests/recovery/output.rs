//! A lot of output and little memory: every loss is declared, and no process waits for another.

use exec_server_client::{ExecProcessEvent, ExecServerError};
use exec_server_protocol::{Empty, OnFull, ReadParams, WaitParams};
use exec_server_server::ServerConfig;

use crate::support::{
    LoopbackServer, connect, failure, finish, follow, shell, wait_for, wait_until_gone, with_stdin,
};

/// Enough numbered lines for 20 MB of output.
const LINES: usize = 2_650_000;

fn numbers(count: usize) -> String {
    (1..=count).map(|number| format!("{number}\n")).collect()
}

fn ends(process_id: &str) -> WaitParams {
    WaitParams { process_id: process_id.into(), timeout_ms: None }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_subscriber_that_does_not_read_blocks_no_other_process() {
    let server = LoopbackServer::start().await;
    let client = connect(&server.url()).await;
    let cat = client.start(with_stdin(shell("cat", "exec cat"))).await.unwrap();
    let mut echoed = cat.subscribe_events();
    let script = format!("seq 1 {LINES}; read line");
    let noisy = client.start(with_stdin(shell("noisy", &script))).await.unwrap();
    let unread = noisy.subscribe_events();
    for round in 0..100 {
        let line = format!("{round} and you?\n");
        cat.write(line.clone()).await.unwrap();
        wait_for(&mut echoed, &line).await;
    }
    noisy.write("\n").await.unwrap();
    assert_eq!(client.process_wait(ends("noisy")).await.unwrap().exit_code, Some(0));
    let end = finish(unread).await;
    assert_eq!((end.exit_code, end.dropped_bytes), (Some(0), 0));
    assert!(end.stdout == numbers(LINES).as_bytes(), "{} bytes", end.stdout.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_without_subscribers_is_not_blocked() {
    let server = LoopbackServer::start().await;
    let client = connect(&server.url()).await;
    let process = client.start(shell("p", &format!("seq 1 {LINES}"))).await.unwrap();
    // A response may overtake output, so the handle decides when all of it has arrived.
    let mut wake = process.subscribe_wake();
    while !process.read(Some(u64::MAX), None, None).await.unwrap().closed {
        wake.changed().await.unwrap();
    }
    let mut late = process.subscribe_events();
    let first = late.next().await;
    let Some(ExecProcessEvent::Gap { dropped_bytes }) = first else { panic!("{first:?}") };
    let end = finish(late).await;
    assert_eq!((end.exit_code, end.dropped_bytes), (Some(0), 0));
    let expected = numbers(LINES);
    assert_eq!(dropped_bytes + end.stdout.len() as u64, expected.len() as u64);
    assert!(expected.as_bytes().ends_with(&end.stdout));
}

/// Output that has only reached the client's socket must not count as read.
#[tokio::test]
async fn a_slow_subscriber_loses_nothing() {
    const LINES: usize = 500_000;
    let server = LoopbackServer::start().await;
    let client = connect(&server.url()).await;
    let process = client.start(shell("p", &format!("seq 1 {LINES}"))).await.unwrap();
    let unread = process.subscribe_events();
    let watcher = connect(&server.url()).await;
    let observed = watcher.observe(client.session_id(), "p", None).await.unwrap();
    follow(&observed).await;
    for _ in 0..5 {
        tokio::time::pause();
        tokio::time::advance(std::time::Duration::from_secs(40)).await;
        tokio::time::resume();
        client.environment_status(Empty {}).await.unwrap();
    }
    let end = finish(unread).await;
    assert_eq!((end.exit_code, end.dropped_bytes), (Some(0), 0));
    assert!(end.stdout == numbers(LINES).as_bytes(), "{} bytes", end.stdout.len());
}

/// A configuration with so little memory that output is soon dropped.
fn forgetful() -> ServerConfig {
    ServerConfig {
        retained_output_bytes_per_process: 64 << 10,
        spill_output_bytes_per_process: 0,
        ..ServerConfig::default()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_permitted_gap_is_declared() {
    const LINES: usize = 1_500_000;
    let server = LoopbackServer::with(forgetful()).await;
    let client = connect(&server.url()).await;
    let mut start = shell("p", &format!("seq 1 {LINES}"));
    start.on_full = OnFull::Discard;
    let process = client.start(start).await.unwrap();
    let unread = process.subscribe_events();
    assert_eq!(client.process_wait(ends("p")).await.unwrap().exit_code, Some(0));
    let end = finish(unread).await;
    assert_eq!(end.exit_code, Some(0));
    let expected = numbers(LINES);
    assert!(end.stdout.len() < expected.len(), "some output was dropped");
    // `dropped_bytes` is an upper bound: the server does not always remember the position of a
    // reader that fell behind.
    assert!(end.dropped_bytes + end.stdout.len() as u64 >= expected.len() as u64);
    assert!(end.stdout.ends_with(b"\n1500000\n"), "the newest output is kept");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unexpected_gap_fails_only_its_process() {
    let server = LoopbackServer::with(forgetful()).await;
    let client = connect(&server.url()).await;
    let other = client.start(with_stdin(shell("other", "exec cat"))).await.unwrap();
    let script = "seq 1 1500000; exec sleep 100000";
    let process = client.start(shell("p", script)).await.unwrap();
    let unread = process.subscribe_events();
    // Another reader of this session confirms output that the handle has no room for.
    let mut seen = 0;
    while !confirm(&client, &mut seen).await.ends_with(b"\n1500000\n") {}
    let error = failure(unread).await;
    assert!(
        matches!(&error, ExecServerError::Gap { process_id, dropped_bytes: 1.. } if process_id == "p"),
        "{error}"
    );
    wait_until_gone(&client, client.session_id(), "p").await;
    other.write("fine\n").await.unwrap();
    other.close_stdin().await.unwrap();
    assert_eq!(follow(&other).await.stdout, b"fine\n");
}

/// Reads the output after `seen`, which confirms the output up to `seen`. Returns the output.
async fn confirm(client: &exec_server_client::ExecServerClient, seen: &mut u64) -> Vec<u8> {
    let params = ReadParams {
        process_id: "p".into(),
        after_seq: Some(*seen),
        max_bytes: None,
        wait_ms: Some(60_000),
    };
    let response = client.process_read(params).await.unwrap();
    *seen = response.next_seq - 1;
    response.chunks.iter().flat_map(|chunk| chunk.chunk.to_vec()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn old_output_is_read_from_the_server() {
    const LINES: usize = 500_000;
    let config =
        ServerConfig { retained_output_bytes_per_process: 16 << 20, ..ServerConfig::default() };
    let server = LoopbackServer::with(config).await;
    let client = connect(&server.url()).await;
    let process =
        client.start(with_stdin(shell("p", &format!("seq 1 {LINES}; exec cat")))).await.unwrap();
    wait_for(&mut process.subscribe_events(), &format!("\n{LINES}\n")).await;
    let (mut after, mut output) = (None, Vec::new());
    while output.len() < numbers(LINES).len() {
        let response = process.read(after, Some(256 << 10), None).await.unwrap();
        assert_eq!(response.dropped_bytes, 0);
        output.extend(response.chunks.iter().flat_map(|chunk| chunk.chunk.to_vec()));
        after = Some(response.next_seq - 1);
    }
    assert!(output == numbers(LINES).as_bytes());

    let wait = Some(std::time::Duration::from_secs(600));
    let (news, ()) = tokio::join!(process.read(after, None, wait), async {
        process.write("news\n").await.unwrap();
    });
    assert_eq!(&news.unwrap().chunks[0].chunk[..], b"news\n");
}

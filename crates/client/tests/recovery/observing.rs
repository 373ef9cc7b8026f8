//! Processes of another session: readable, but not writable.

use exec_server_client::ExecServerError;
use exec_server_protocol::{ErrorKind, OnFull, SignalName, TerminalSize, TerminateMode};
use exec_server_test_support::Cut;

use crate::support::{
    LoopbackServer, connect, finish, follow, shell, wait_for, wait_until_recovering, with_stdin,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_observer_sees_everything_across_a_lost_connection() {
    let server = LoopbackServer::start().await;
    let owner = connect(&server.url()).await;
    let process = owner.start(with_stdin(shell("p", "echo early; exec cat"))).await.unwrap();
    wait_for(&mut process.subscribe_events(), "early").await;

    let (observer, proxy) = server.client().await;
    let observed = observer.observe(owner.session_id(), "p", None).await.unwrap();
    let mut events = observed.subscribe_events();
    wait_for(&mut events, "early").await;
    proxy.refuse();
    proxy.cut(Cut::MidFrameRst).await;
    wait_until_recovering(&observer).await;
    process.write("meanwhile\n").await.unwrap();
    wait_for(&mut process.subscribe_events(), "meanwhile").await;
    proxy.resume();
    wait_for(&mut events, "meanwhile").await;
    process.close_stdin().await.unwrap();
    let end = finish(events).await;
    assert_eq!((end.exit_code, end.dropped_bytes), (Some(0), 0));
    assert_eq!(follow(&observed).await.stdout, b"early\nmeanwhile\n");
    assert_eq!(follow(&process).await.stdout, b"early\nmeanwhile\n");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_observer_may_begin_at_any_event() {
    let server = LoopbackServer::start().await;
    let owner = connect(&server.url()).await;
    let process = owner.start(with_stdin(shell("p", "echo early; exec cat"))).await.unwrap();
    let mut events = process.subscribe_events();
    wait_for(&mut events, "early").await;
    let seen = process.read(None, None, None).await.unwrap().next_seq - 1;
    let observer = connect(&server.url()).await;
    let observed = observer.observe(owner.session_id(), "p", Some(seen)).await.unwrap();
    process.write("late\n").await.unwrap();
    process.close_stdin().await.unwrap();
    assert_eq!(follow(&observed).await.stdout, b"late\n");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_observer_may_signal_and_terminate_but_not_write() {
    let server = LoopbackServer::start().await;
    let owner = connect(&server.url()).await;
    let script = "trap 'echo got' USR1; echo up; while :; do sleep 0.01; done";
    let process = owner.start(shell("p", script)).await.unwrap();
    let observer = connect(&server.url()).await;
    let observed = observer.observe(owner.session_id(), "p", None).await.unwrap();
    let mut events = observed.subscribe_events();
    wait_for(&mut events, "up").await;
    let size = TerminalSize { rows: 2, cols: 2 };
    for refused in [
        observed.write("x").await.map(drop),
        observed.close_stdin().await.map(drop),
        observed.resize(size).await,
    ] {
        assert!(matches!(refused, Err(ExecServerError::ReadOnly { .. })), "{refused:?}");
    }
    observed.signal(SignalName::User1).await.unwrap();
    wait_for(&mut events, "got").await;
    assert!(observed.terminate(TerminateMode::Force).await.unwrap());
    assert_eq!(finish(events).await.exit_code, Some(137));
    assert_eq!(follow(&process).await.exit_code, Some(137));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn observing_needs_a_process_and_ends_with_its_session() {
    let server = LoopbackServer::start().await;
    let owner = connect(&server.url()).await;
    let observer = connect(&server.url()).await;
    let unknown = observer.observe(owner.session_id(), "p", None).await.unwrap_err();
    assert_eq!(unknown.kind(), Some(&ErrorKind::UnknownProcess), "{unknown}");
    let unknown = observer.observe("nobody's", "p", None).await.unwrap_err();
    assert_eq!(unknown.kind(), Some(&ErrorKind::UnknownSession), "{unknown}");
    owner.start(shell("p", "exec sleep 100000")).await.unwrap();
    let observed = observer.observe(owner.session_id(), "p", None).await.unwrap();
    owner.close().await.unwrap();
    assert_eq!(follow(&observed).await.exit_code, Some(137));
}

/// An observer applies no backpressure: output that it does not read in time is lost, and declared
/// as a gap.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_observer_gets_a_declared_gap() {
    const LINES: usize = 2_000_000;
    let server = LoopbackServer::start().await;
    let owner = connect(&server.url()).await;
    let mut start = with_stdin(shell("p", &format!("read line; seq 1 {LINES}")));
    start.on_full = OnFull::Block;
    let process = owner.start(start).await.unwrap();
    let observer = connect(&server.url()).await;
    let observed = observer.observe(owner.session_id(), "p", None).await.unwrap();
    let unread = observed.subscribe_events();
    process.write("\n").await.unwrap();
    let whole = follow(&process).await;
    assert_eq!(whole.dropped_bytes, 0, "the owner loses nothing");
    let end = finish(unread).await;
    assert_eq!(end.exit_code, Some(0));
    assert!(end.stdout.len() < whole.stdout.len(), "the observer was too slow");
    // `dropped_bytes` is an upper bound: the server does not always remember the position of a
    // reader that fell behind.
    assert!(end.dropped_bytes + end.stdout.len() as u64 >= whole.stdout.len() as u64);
}

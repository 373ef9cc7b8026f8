//! Limits on messages, queued calls and handles.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use exec_server_client::{
    ConnectionState, ExecServerClient, ExecServerClientConnectOptions, ExecServerError,
};
use exec_server_protocol::{
    Base64Bytes, ErrorKind, ListParams, SessionCloseParams, WaitParams, WriteParams,
};
use exec_server_transport::{Connection, Received, StreamPeer, length_prefixed};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::support::{LoopbackServer, connect, failure, shell, wait_for, with_stdin};

#[tokio::test]
async fn an_oversized_call_is_refused_and_the_client_continues() {
    let server = LoopbackServer::start().await;
    let (client, proxy) = server.client().await;
    let process = client.start(with_stdin(shell("p", "exec cat"))).await.unwrap();

    let mut many_values = shell("many", "true");
    many_values.argv.extend((0..300_000).map(|_| String::new()));
    let error = client.start(many_values).await.unwrap_err();
    assert!(matches!(error, ExecServerError::TooLarge { method: "process/start", .. }), "{error}");

    let chunk = Base64Bytes::from(vec![0; 50 << 20]);
    let params = WriteParams { process_id: "p".into(), chunk, write_id: Some("w".into()) };
    let error = client.process_write(params).await.unwrap_err();
    assert!(matches!(error, ExecServerError::TooLarge { method: "process/write", .. }), "{error}");

    process.write("still here\n").await.unwrap();
    wait_for(&mut process.subscribe_events(), "still here").await;
    assert_eq!(proxy.connections(), 1);
}

#[tokio::test]
async fn a_response_may_hold_more_values_than_a_request() {
    let server = LoopbackServer::start().await;
    let client = connect(&server.url()).await;
    for id in ["a", "b", "c"] {
        let mut params = shell(id, "exec sleep 100000");
        params.argv.extend((0..100_000).map(|_| String::new()));
        client.start(params).await.unwrap();
    }
    let listed = client.process_list(ListParams::default()).await.unwrap();
    assert_eq!(listed.processes.len(), 3);
}

#[tokio::test]
async fn a_process_without_handles_may_be_attached_and_observed_again() {
    let server = LoopbackServer::start().await;
    let owner = connect(&server.url()).await;
    let other = connect(&server.url()).await;
    let handle = owner.start(shell("p", "echo up; exec sleep 100000")).await.unwrap();
    let error = owner.attach("p").await.unwrap_err();
    assert_eq!(error.kind(), Some(&ErrorKind::DuplicateProcess), "the process has a handle");
    drop(handle);
    for _ in 0..3 {
        let attached = owner.attach("p").await.unwrap();
        wait_for(&mut attached.subscribe_events(), "up").await;
        let observed = other.observe(owner.session_id(), "p", None).await.unwrap();
        wait_for(&mut observed.subscribe_events(), "up").await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_start_of_a_flooding_process_is_terminated() {
    let server = LoopbackServer::start().await;
    let client = connect(&server.url()).await;
    let watcher = connect(&server.url()).await;
    let session_id = Some(client.session_id().to_owned());
    let listed = async || {
        let params = ListParams { session_id: session_id.clone(), within_ms: None };
        watcher.process_list(params).await.unwrap().processes
    };
    {
        let script = "head -c 8000000 /dev/zero; exec sleep 100000";
        let mut start = pin!(client.start(shell("p", script)));
        assert!(start.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        // More than a mirror holds.
        while !listed().await.iter().any(|process| process.next_seq > 30) {}
    }
    while listed().await.iter().any(|process| process.running) {}
    // Until the client has seen the end of the process, it refuses the id itself; then the server
    // does.
    loop {
        let error = client.start(shell("p", "true")).await.unwrap_err();
        assert_eq!(error.kind(), Some(&ErrorKind::DuplicateProcess));
        if client.attach("p").await.is_ok() {
            break;
        }
    }
}

#[tokio::test]
async fn a_session_closed_by_another_client_fails_the_client() {
    let server = LoopbackServer::start().await;
    let owner = connect(&server.url()).await;
    let other = connect(&server.url()).await;
    let process = owner.start(shell("p", "echo up; exec sleep 100000")).await.unwrap();
    let mut events = process.subscribe_events();
    wait_for(&mut events, "up").await;
    let session_id = Some(owner.session_id().to_owned());
    other.session_close(SessionCloseParams { session_id }).await.unwrap();
    let error = failure(events).await;
    assert!(matches!(error, ExecServerError::Disconnected(_)), "{error}");
    assert!(error.to_string().contains("did not resume the session"), "{error}");
}

#[tokio::test]
async fn processes_fail_even_if_a_call_is_not_polled() {
    let server = LoopbackServer::start().await;
    let (client, proxy) = server.client().await;
    let process = client.start(shell("p", "echo up; exec sleep 100000")).await.unwrap();
    let mut events = process.subscribe_events();
    wait_for(&mut events, "up").await;
    let wait = || client.process_wait(WaitParams { process_id: "p".into(), timeout_ms: None });
    proxy.refuse();
    proxy.cut(exec_server_test_support::Cut::Rst).await;
    let mut state = client.connection_state();
    let recovering = |state: &ConnectionState| matches!(state, ConnectionState::Recovering { .. });
    state.wait_for(recovering).await.unwrap();
    // More calls than the queue holds. Each is polled only once.
    let mut calls: Vec<_> = (0..200).map(|_| Box::pin(wait())).collect();
    for call in &mut calls {
        let _ = call.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    }
    // The session no longer exists when the client reconnects.
    server.server.shutdown().await;
    proxy.resume();
    assert!(matches!(failure(events).await, ExecServerError::Disconnected(_)));
}

/// Stands for a deployed environment that does not report how far it has read.
#[derive(Debug)]
struct SilentPeer;

impl StreamPeer for SilentPeer {
    fn bytes_read(&self) -> Option<watch::Receiver<u64>> {
        None
    }

    fn probe(&self, _: Duration) -> Pin<Box<dyn Future<Output = bool> + Send + '_>> {
        Box::pin(std::future::ready(true))
    }
}

#[tokio::test]
async fn a_peer_behind_a_relay_that_does_not_acknowledge_is_not_flooded() {
    const CALLS: usize = 1000;
    let ends = tokio::io::duplex(1 << 20);
    let [near, mut far] = [ends.0, ends.1].map(|end| {
        let (read, write) = tokio::io::split(end);
        length_prefixed(read, write, Arc::new(SilentPeer))
    });
    let client = tokio::spawn(async move {
        let options = ExecServerClientConnectOptions::default();
        let client = Arc::new(ExecServerClient::connect_over(near, options).await.unwrap());
        let mut calls = JoinSet::new();
        for _ in 0..CALLS {
            let client = Arc::clone(&client);
            calls.spawn(async move { client.process_list(ListParams::default()).await.unwrap() });
        }
        calls.join_all().await.len()
    });
    let initialize = receive(&mut far).await;
    answer(&mut far, &initialize, json!({ "sessionId": "s", "protocolVersion": "exec-server.v0" }))
        .await;
    assert_eq!(receive(&mut far).await["method"], "initialized");
    let mut answered = 0;
    while answered < CALLS {
        let mut queue = vec![receive(&mut far).await];
        // Collect calls without a response until no further call arrives.
        while let Ok(next) = timeout(Duration::from_millis(50), receive(&mut far)).await {
            queue.push(next);
        }
        assert!(queue.len() <= 128, "{} calls wait in the queue", queue.len());
        answered += queue.len();
        for call in queue {
            answer(&mut far, &call, json!({ "processes": [] })).await;
        }
    }
    assert_eq!(client.await.unwrap(), CALLS);
}

async fn receive(connection: &mut Connection) -> Value {
    match connection.incoming.recv().await {
        Some(Received::Message(message)) => serde_json::from_slice(&message).unwrap(),
        other => panic!("{other:?}"),
    }
}

async fn answer(connection: &mut Connection, call: &Value, result: Value) {
    let answer = json!({ "id": call["id"], "result": result });
    connection.outgoing.push(answer.to_string().as_bytes());
    connection.outgoing.flush().await.unwrap();
}

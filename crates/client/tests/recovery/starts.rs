//! Starts with an unknown outcome or a dropped future: their processes do not keep running.

use std::pin::pin;
use std::task::{Context, Poll, Waker};

use exec_server_client::{ExecServerClient, ExecServerError};
use exec_server_protocol::{Empty, ErrorKind, ListParams, Method};

use crate::support::{
    LoopbackServer, connect, follow, is_running, shell, wait_for, wait_until_gone,
};
use crate::tap::{Fate, Tap};

// These tests are single-threaded: the tasks of a start run only while the test waits.

const FOREVER: &str = "echo up; exec sleep 100000";

async fn interrupted(tap: &Tap, client: &ExecServerClient, fate: Fate) {
    tap.set_trap(Method::ProcessStart, fate);
    let error = client.start(shell("p", FOREVER)).await.unwrap_err();
    assert!(matches!(error, ExecServerError::Interrupted { method: "process/start" }), "{error}");
}

#[tokio::test]
async fn a_start_with_a_lost_response_is_terminated() {
    let server = LoopbackServer::start().await;
    let tap = Tap::on(&server.server);
    let client = tap.client().await;
    let watcher = connect(&server.url()).await;
    interrupted(&tap, &client, Fate::AnswerLost).await;
    wait_until_gone(&watcher, client.session_id(), "p").await;
    client.environment_status(Empty {}).await.unwrap();
    assert!(!is_running(&watcher, client.session_id(), "p").await);
}

#[tokio::test]
async fn the_termination_survives_another_lost_connection() {
    let server = LoopbackServer::start().await;
    let tap = Tap::on(&server.server);
    let client = tap.client().await;
    let watcher = connect(&server.url()).await;
    tap.set_trap(Method::ProcessTerminate, Fate::RequestLost);
    interrupted(&tap, &client, Fate::AnswerLost).await;
    wait_until_gone(&watcher, client.session_id(), "p").await;
    assert!(tap.has_sprung());
}

#[tokio::test]
async fn a_start_that_never_arrived_leaves_its_id_free() {
    let server = LoopbackServer::start().await;
    let tap = Tap::on(&server.server);
    let client = tap.client().await;
    interrupted(&tap, &client, Fate::RequestLost).await;
    assert_eq!(client.process_list(ListParams::default()).await.unwrap().processes, []);
    let process = client.start(shell("p", "exit 6")).await.unwrap();
    assert_eq!(follow(&process).await.exit_code, Some(6));
}

#[tokio::test]
async fn a_start_dropped_at_once_leaves_nothing_running() {
    let server = LoopbackServer::start().await;
    let client = connect(&server.url()).await;
    for round in 0..50 {
        let id = round.to_string();
        {
            let mut start = pin!(client.start(shell(&id, FOREVER)));
            let first = start.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            assert!(first.is_pending());
        }
        // Calls of one client are sent in order: if the start was sent, the list includes it.
        wait_until_gone(&client, client.session_id(), &id).await;
    }
}

#[tokio::test]
async fn a_start_dropped_with_its_response_leaves_nothing_running() {
    let server = LoopbackServer::start().await;
    let client = connect(&server.url()).await;
    let watcher = connect(&server.url()).await;
    {
        let mut start = pin!(client.start(shell("p", FOREVER)));
        let first = start.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(first.is_pending());
        while !is_running(&watcher, client.session_id(), "p").await {}
        let observed = watcher.observe(client.session_id(), "p", None).await.unwrap();
        wait_for(&mut observed.subscribe_events(), "up").await;
        // This response follows that of the start, which now waits for its caller.
        client.environment_status(Empty {}).await.unwrap();
    }
    wait_until_gone(&watcher, client.session_id(), "p").await;
}

#[tokio::test]
async fn a_dropped_attach_changes_nothing() {
    let server = LoopbackServer::start().await;
    let client = connect(&server.url()).await;
    let process = client.start(shell("p", FOREVER)).await.unwrap();
    wait_for(&mut process.subscribe_events(), "up").await;
    let session_id = client.session_id().to_owned();
    drop((process, client));

    let mut again = crate::support::args(&server.url());
    again.options.resume_session_id = Some(session_id);
    let client = crate::support::connect_once_free(again).await;
    {
        let mut attaching = pin!(client.attach("p"));
        let first = attaching.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(matches!(first, Poll::Pending));
    }
    client.environment_status(Empty {}).await.unwrap();
    let process = loop {
        // The driver may not have noticed yet that the first attempt was dropped.
        match client.attach("p").await {
            Ok(process) => break process,
            Err(error) => assert_eq!(error.kind(), Some(&ErrorKind::DuplicateProcess), "{error}"),
        }
    };
    wait_for(&mut process.subscribe_events(), "up").await;
    assert!(is_running(&client, client.session_id(), "p").await);
}

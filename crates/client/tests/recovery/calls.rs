//! Calls during a lost connection: they wait, are resent, or fail as interrupted.

use std::time::Duration;

use exec_server_client::{ConnectionState, ExecServerClient, ExecServerError};
use exec_server_protocol::{
    Empty, ListParams, Method, ProcessIdParams, ReadParams, SignalName, TerminalSize,
    TerminateMode, WaitParams, WriteStatus,
};
use exec_server_test_support::{Cut, FaultProxy, Way};
use tokio::task::JoinSet;

use crate::support::{
    LoopbackServer, args, follow, shell, wait_for, wait_for_state, wait_until_recovering,
    with_stdin,
};
use crate::tap::{Fate, Tap};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_wait_for_the_connection() {
    let server = LoopbackServer::start().await;
    let (client, proxy) = server.client().await;
    proxy.refuse();
    proxy.cut(Cut::Rst).await;
    wait_until_recovering(&client).await;
    let mut calls = JoinSet::new();
    // More calls than fit into the client's queue.
    for id in 0..200 {
        let client = client.clone();
        calls.spawn(async move { client.start(shell(&id.to_string(), "exit 5")).await.unwrap() });
    }
    proxy.wait_for_refusals(3).await;
    assert!(calls.try_join_next().is_none(), "no call can have succeeded");
    proxy.resume();
    for process in calls.join_all().await {
        assert_eq!(follow(&process).await.exit_code, Some(5));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connection_states_are_reported() {
    let server = LoopbackServer::start().await;
    let (client, proxy) = server.client().await;
    let mut state = client.connection_state();
    assert!(matches!(*state.borrow_and_update(), ConnectionState::Connected));
    proxy.refuse();
    proxy.cut(Cut::Fin).await;
    wait_until_recovering(&client).await;
    let attempts = |state: &ConnectionState| match state {
        ConnectionState::Recovering { failed_attempts, .. } => *failed_attempts,
        other => panic!("{other:?}"),
    };
    wait_for_state(&client, |state| attempts(state) >= 3).await;
    proxy.resume();
    wait_for_state(&client, |state| matches!(state, ConnectionState::Connected)).await;
}

#[tokio::test]
async fn reads_are_resent() {
    let server = LoopbackServer::start().await;
    let tap = Tap::on(&server.server);
    let client = tap.client().await;
    let process = client.start(with_stdin(shell("p", "echo out; read line"))).await.unwrap();
    wait_for(&mut process.subscribe_events(), "out").await;
    let id = || ProcessIdParams { process_id: "p".into() };
    let read =
        ReadParams { process_id: "p".into(), after_seq: None, max_bytes: None, wait_ms: None };
    for fate in Fate::LOSSES {
        tap.set_trap(Method::ProcessRead, fate);
        assert_eq!(client.process_read(read.clone()).await.unwrap().chunks.len(), 1);
        assert!(tap.has_sprung());
        tap.set_trap(Method::ProcessSnapshot, fate);
        assert_eq!(&client.process_snapshot(id()).await.unwrap().stdout[..], b"out\n");
        assert!(tap.has_sprung());
        tap.set_trap(Method::ProcessList, fate);
        assert_eq!(client.process_list(ListParams::default()).await.unwrap().processes.len(), 1);
        assert!(tap.has_sprung());
        tap.set_trap(Method::EnvironmentStatus, fate);
        client.environment_status(Empty {}).await.unwrap();
        assert!(tap.has_sprung());
    }
}

#[tokio::test]
async fn a_wait_survives_lost_connections() {
    let server = LoopbackServer::start().await;
    let tap = Tap::on(&server.server);
    let client = tap.client().await;
    for fate in Fate::LOSSES {
        let id = format!("{fate:?}");
        let process = client.start(with_stdin(shell(&id, "read line; exit 3"))).await.unwrap();
        tap.set_trap(Method::ProcessWait, fate);
        let waiting = tokio::spawn({
            let (client, process_id) = (client.clone(), id.clone());
            async move { client.process_wait(WaitParams { process_id, timeout_ms: None }).await }
        });
        process.write("\n").await.unwrap();
        assert_eq!(waiting.await.unwrap().unwrap().exit_code, Some(3));
        assert!(tap.has_sprung());
    }
}

#[tokio::test]
async fn input_arrives_once_across_losses() {
    let server = LoopbackServer::start().await;
    let tap = Tap::on(&server.server);
    let client = tap.client().await;
    let process = client.start(with_stdin(shell("p", "exec cat"))).await.unwrap();
    let mut expected = String::new();
    for (number, fate) in Fate::LOSSES.into_iter().cycle().take(20).enumerate() {
        let line = format!("line {number}\n");
        tap.set_trap(Method::ProcessWrite, fate);
        assert_eq!(process.write(line.clone()).await.unwrap(), WriteStatus::Accepted);
        assert!(tap.has_sprung());
        expected.push_str(&line);
    }
    // Sent in pieces, one of which is lost while others follow.
    let large = "x".repeat(3 << 20);
    tap.set_trap(Method::ProcessWrite, Fate::RequestLost);
    process.write(large.clone()).await.unwrap();
    expected.push_str(&large);
    tap.set_trap(Method::ProcessCloseStdin, Fate::AnswerLost);
    process.close_stdin().await.unwrap();
    assert!(tap.has_sprung());
    let end = follow(&process).await;
    let total = end.dropped_bytes + end.stdout.len() as u64;
    assert_eq!(total, expected.len() as u64);
    assert!(expected.as_bytes().ends_with(&end.stdout));
}

#[tokio::test]
async fn resize_and_terminate_are_resent() {
    let server = LoopbackServer::start().await;
    let tap = Tap::on(&server.server);
    let client = tap.client().await;
    for fate in Fate::LOSSES {
        let script = "trap 'stty size' WINCH; echo up; while :; do sleep 0.01; done";
        let mut start = shell(&format!("{fate:?}"), script);
        start.tty = true;
        let process = client.start(start).await.unwrap();
        let mut events = process.subscribe_events();
        wait_for(&mut events, "up").await;
        tap.set_trap(Method::ProcessResize, fate);
        process.resize(TerminalSize { rows: 41, cols: 142 }).await.unwrap();
        assert!(tap.has_sprung());
        wait_for(&mut events, "41 142").await;
        tap.set_trap(Method::ProcessTerminate, fate);
        process.terminate(TerminateMode::Force).await.unwrap();
        assert!(tap.has_sprung());
        assert_eq!(follow(&process).await.exit_code, Some(137));
    }
}

#[tokio::test]
async fn a_lost_signal_call_fails_as_interrupted_and_is_not_resent() {
    let server = LoopbackServer::start().await;
    let tap = Tap::on(&server.server);
    let client = tap.client().await;
    let script = "trap 'echo got' USR1; trap 'exit 0' USR2; echo up; while :; do sleep 0.01; done";
    let process = client.start(shell("p", script)).await.unwrap();
    let mut events = process.subscribe_events();
    wait_for(&mut events, "up").await;
    for fate in Fate::LOSSES {
        tap.set_trap(Method::ProcessSignal, fate);
        let error = process.signal(SignalName::User1).await.unwrap_err();
        assert!(
            matches!(error, ExecServerError::Interrupted { method: "process/signal" }),
            "{error}"
        );
        if fate == Fate::AnswerLost {
            wait_for(&mut events, "got").await;
        }
    }
    process.signal(SignalName::User2).await.unwrap();
    let end = follow(&process).await;
    assert_eq!(String::from_utf8(end.stdout).unwrap(), "up\ngot\n");
}

#[tokio::test]
async fn a_resume_is_retried_while_the_session_is_attached() {
    let server = LoopbackServer::start().await;
    let tap = Tap::on(&server.server);
    let client = tap.client().await;
    tap.set_trap(Method::EnvironmentStatus, Fate::HalfOpen);
    let call = tokio::spawn({
        let client = client.clone();
        async move { client.environment_status(Empty {}).await }
    });
    tap.wait_for_dials(5).await;
    assert!(matches!(
        *client.connection_state().borrow(),
        ConnectionState::Recovering { failed_attempts: 3.., .. }
    ));
    tap.let_go();
    call.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_network_that_drops_everything_is_detected() {
    let server = LoopbackServer::start().await;
    let proxy = FaultProxy::start(server.address).await;
    let mut args = args(&proxy.url());
    args.connect_timeout = Duration::from_secs(2);
    args.keep_alive.ping_interval = Duration::from_millis(300);
    args.keep_alive.silence_limit = Duration::from_secs(1);
    args.keep_alive.stall_limit = Duration::from_secs(1);
    let client = ExecServerClient::connect_websocket(args).await.unwrap();
    let process = client.start(with_stdin(shell("p", "exec cat"))).await.unwrap();
    proxy.black_hole();
    let writing = tokio::spawn({
        let process = process.clone();
        async move { process.write("swallowed\n").await }
    });
    wait_until_recovering(&client).await;
    proxy.resume();
    assert_eq!(writing.await.unwrap().unwrap(), WriteStatus::Accepted);
    process.close_stdin().await.unwrap();
    assert_eq!(follow(&process).await.stdout, b"swallowed\n");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_network_that_drops_one_direction_is_detected() {
    let server = LoopbackServer::start().await;
    for way in [Way::ToServer, Way::ToClient] {
        let proxy = FaultProxy::start(server.address).await;
        let mut args = args(&proxy.url());
        args.connect_timeout = Duration::from_secs(2);
        args.keep_alive.ping_interval = Duration::from_millis(300);
        args.keep_alive.silence_limit = Duration::from_secs(1);
        let client = ExecServerClient::connect_websocket(args).await.unwrap();
        // The server keeps sending.
        let script = "while sleep 0.3; do echo here; done & read line; kill $!; wait; echo $line";
        let process = client.start(with_stdin(shell("p", script))).await.unwrap();
        proxy.hold(way);
        wait_until_recovering(&client).await;
        proxy.resume();
        process.write("over\n").await.unwrap();
        assert!(follow(&process).await.stdout.ends_with(b"here\nover\n"), "{way:?}");
    }
}

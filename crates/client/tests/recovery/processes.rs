//! Handles and their events: replay, then live, each event once, across reconnects.

use std::time::Duration;

use exec_server_client::{ExecProcessEvent, ExecServerError};
use exec_server_protocol::{
    ErrorKind, ListParams, Method, OnFull, OutputStream, SignalName, TerminalSize, WaitParams,
};
use exec_server_test_support::Cut;

use crate::support::{
    LoopbackServer, connect, finish, follow, shell, wait_for, wait_until_gone,
    wait_until_recovering, with_stdin,
};
use crate::tap::{Fate, Tap};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn late_subscribers_get_everything_once() {
    let server = LoopbackServer::start().await;
    let client = connect(&server.url()).await;
    let process = client.start(with_stdin(shell("p", "exec cat"))).await.unwrap();
    let mut events = process.subscribe_events();
    let mut subscribers = Vec::new();
    for round in 0..5 {
        let line = format!("line {round}\n");
        process.write(line.clone()).await.unwrap();
        wait_for(&mut events, &line).await;
        subscribers.push(tokio::spawn(finish(process.subscribe_events())));
    }
    process.close_stdin().await.unwrap();
    finish(events).await;
    subscribers.push(tokio::spawn(finish(process.subscribe_events())));
    for subscriber in subscribers {
        let end = subscriber.await.unwrap();
        assert_eq!(end.stdout, b"line 0\nline 1\nline 2\nline 3\nline 4\n");
        assert_eq!((end.exit_code, end.dropped_bytes), (Some(0), 0));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_during_a_loss_arrive_afterwards() {
    let server = LoopbackServer::start().await;
    let watcher = connect(&server.url()).await;
    let (client, proxy) = server.client().await;
    let script = "trap 'echo tail; exit 7' USR1; echo up; while :; do sleep 0.01; done";
    let process = client.start(shell("p", script)).await.unwrap();
    let mut events = process.subscribe_events();
    wait_for(&mut events, "up").await;
    proxy.refuse();
    proxy.cut(Cut::Rst).await;
    wait_until_recovering(&client).await;
    let observed = watcher.observe(client.session_id(), "p", None).await.unwrap();
    observed.signal(SignalName::User1).await.unwrap();
    assert_eq!(follow(&observed).await.exit_code, Some(7));
    proxy.resume();
    let end = finish(events).await;
    assert_eq!(end.stdout, b"tail\n");
    assert_eq!((end.exit_code, end.dropped_bytes), (Some(7), 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_used_id_stays_with_its_process() {
    let server = LoopbackServer::start().await;
    let client = connect(&server.url()).await;
    let process = client.start(with_stdin(shell("p", "exec cat"))).await.unwrap();
    for _ in 0..2 {
        let error = client.start(shell("p", "echo other")).await.unwrap_err();
        assert_eq!(error.kind(), Some(&ErrorKind::DuplicateProcess), "{error}");
    }
    process.write("mine\n").await.unwrap();
    process.close_stdin().await.unwrap();
    assert_eq!(follow(&process).await.stdout, b"mine\n");
    let error = client.start(shell("p", "echo other")).await.unwrap_err();
    assert_eq!(
        error.kind(),
        Some(&ErrorKind::DuplicateProcess),
        "closed, and still readable: {error}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_start_states_the_reason_and_frees_its_id() {
    let server = LoopbackServer::start().await;
    let client = connect(&server.url()).await;
    let mut missing = shell("p", "");
    missing.argv = vec!["/nonexistent/program".into()];
    let error = client.start(missing).await.unwrap_err();
    assert!(matches!(error, ExecServerError::Server(_)), "{error}");
    assert!(error.to_string().contains("/nonexistent/program"), "{error}");
    let process = client.start(shell("p", "exit 2")).await.unwrap();
    assert_eq!(follow(&process).await.exit_code, Some(2));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_terminal_is_resized_across_a_lost_connection() {
    let server = LoopbackServer::start().await;
    let (client, proxy) = server.client().await;
    let mut start = shell("p", "trap 'stty size' WINCH; echo up; while :; do sleep 0.01; done");
    start.tty = true;
    start.size = Some(TerminalSize { rows: 10, cols: 20 });
    let process = client.start(start).await.unwrap();
    let mut events = process.subscribe_events();
    match events.next().await {
        Some(ExecProcessEvent::Output(chunk)) => assert_eq!(chunk.stream, OutputStream::Pty),
        other => panic!("{other:?}"),
    }
    proxy.refuse();
    proxy.cut(Cut::MidFrame).await;
    wait_until_recovering(&client).await;
    let resizing = tokio::spawn({
        let process = process.clone();
        async move { process.resize(TerminalSize { rows: 43, cols: 77 }).await }
    });
    proxy.resume();
    resizing.await.unwrap().unwrap();
    wait_for(&mut events, "43 77").await;
    process.signal(SignalName::Kill).await.unwrap();
    wait_until_gone(&client, client.session_id(), "p").await;
}

#[tokio::test]
async fn finished_processes_are_forgotten_even_after_losses() {
    let server = LoopbackServer::start().await;
    let tap = Tap::on(&server.server);
    let client = tap.client().await;
    for fate in Fate::LOSSES {
        tap.set_trap(Method::ProcessRead, fate);
        let process = client.start(shell(&format!("{fate:?}"), "echo out")).await.unwrap();
        assert_eq!(follow(&process).await.stdout, b"out\n");
        // More than the 30 s for which a finished process stays readable.
        while !client.process_list(ListParams::default()).await.unwrap().processes.is_empty() {
            tokio::time::pause();
            tokio::time::advance(Duration::from_secs(40)).await;
            tokio::time::resume();
        }
        assert!(tap.has_sprung());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_exit_reports_that_the_server_stopped() {
    let server = LoopbackServer::start().await;
    let (client, watcher) = (connect(&server.url()).await, connect(&server.url()).await);
    let process = client.start(shell("p", "exec sleep 1000")).await.unwrap();
    let observed = watcher.observe(client.session_id(), "p", None).await.unwrap();
    server.server.shutdown().await;
    for mut events in [process.subscribe_events(), observed.subscribe_events()] {
        let exit = loop {
            match events.next().await {
                Some(ExecProcessEvent::Exited(exit)) => break exit,
                Some(_) => {}
                None => panic!("no exit"),
            }
        };
        assert!(exit.server_stopped() && !exit.timed_out(), "{exit:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_started_without_a_reader_keeps_all_its_output() {
    const BYTES: u64 = 3 << 20;
    let server = LoopbackServer::start().await;
    let client = connect(&server.url()).await;
    let mut params = shell("p", &format!("head -c {BYTES} /dev/zero"));
    params.on_full = OnFull::Discard;
    client.start_unread(params).await.unwrap();
    let wait = WaitParams { process_id: "p".to_owned(), timeout_ms: None };
    assert_eq!(client.process_wait(wait).await.unwrap().exit_code, Some(0));
    // By now the server has sent all output. If the client confirmed it, the server would have the
    // confirmation before the attach.
    let end = follow(&client.attach("p").await.unwrap()).await;
    assert_eq!((end.stdout.len() as u64, end.dropped_bytes), (BYTES, 0));
}

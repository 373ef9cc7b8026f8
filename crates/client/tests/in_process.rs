//! An in-process client follows the same rules as any other.

#![expect(clippy::unwrap_used, reason = "a failed step fails its test")]

use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use exec_server_client::{
    ConnectionState, ExecProcessEvent, ExecServerClient, ExecServerClientConnectOptions,
    ExecServerError, ExecServerProcess, ProcessEvents,
};
use exec_server_protocol::{
    Empty, ErrorCode, ErrorKind, FsCreateParams, FsOpenParams, FsReadFileParams, FsSearchParams,
    FsWatchParams, FsWriteFileParams, ListParams, OutputStream, PathUri, SessionCloseParams,
    StartParams, TerminateMode, WriteParams, WriteStatus,
};
use exec_server_server::{Server, ServerConfig};
use exec_server_test_support::{Served, TestServer};
use serde_json::json;

fn connect(server: &Server) -> ExecServerClient {
    ExecServerClient::connect_in_process(server.connect_in_process("local").unwrap())
}

fn local(config: ServerConfig) -> ExecServerClient {
    connect(&TestServer::new(config))
}

/// Connects a client that speaks JSON to the same server.
async fn other(server: &Server) -> ExecServerClient {
    let options = ExecServerClientConnectOptions::default();
    ExecServerClient::connect_over(Served::by(server).connection, options).await.unwrap()
}

fn shell(id: &str, script: &str) -> StartParams {
    let params = json!({
        "processId": id, "argv": ["/bin/sh", "-c", script], "cwd": "file:///",
        "env": { "PATH": "/usr/bin:/bin" },
    });
    serde_json::from_value(params).unwrap()
}

async fn collect(events: &mut ProcessEvents) -> (Vec<u8>, Option<i32>) {
    let (mut output, mut exit_code) = (Vec::new(), None);
    while let Some(event) = events.next().await {
        match event {
            ExecProcessEvent::Output(chunk) => output.extend_from_slice(&chunk.chunk),
            ExecProcessEvent::Exited(exit) => exit_code = Some(exit.exit_code),
            ExecProcessEvent::Closed { .. } => {}
            other => panic!("{other:?}"),
        }
    }
    (output, exit_code)
}

fn kind(error: &ExecServerError) -> &str {
    match error {
        ExecServerError::Server(error) => error.kind().map_or("", ErrorKind::as_str),
        other => panic!("not a server error: {other:?}"),
    }
}

fn code(error: &ExecServerError) -> i64 {
    match error {
        ExecServerError::Server(error) => error.code,
        other => panic!("not a server error: {other:?}"),
    }
}

fn watch_params(path: &PathUri) -> FsWatchParams {
    let (path, watch_id) = (path.clone(), String::new());
    FsWatchParams { path, watch_id, recursive: false, sandbox: None }
}

fn open_params(path: &PathUri) -> FsOpenParams {
    FsOpenParams {
        path: path.clone(),
        handle_id: String::new(),
        follow_symlinks: None,
        details: false,
        sandbox: None,
    }
}

async fn process_ids(client: &ExecServerClient) -> Vec<String> {
    let listed = client.process_list(ListParams::default()).await.unwrap();
    listed.processes.into_iter().map(|process| process.process_id).collect()
}

#[tokio::test]
async fn each_event_arrives_once_and_in_order() {
    let client = local(ServerConfig::default());
    let process = client.start(shell("p", "seq 1 1000; exit 3")).await.unwrap();
    let (output, exit_code) = collect(&mut process.subscribe_events()).await;
    let expected: String = (1..=1000).map(|n| format!("{n}\n")).collect();
    assert_eq!((String::from_utf8(output).unwrap(), exit_code), (expected, Some(3)));
}

#[tokio::test]
async fn a_reader_interrupted_repeatedly_loses_nothing() {
    // Little memory and many events, so that they come from many blocks of the spill file.
    let config = ServerConfig { retained_output_bytes_per_process: 4096, ..Default::default() };
    let client = local(config);
    let script = "while read line; do echo $line; done";
    let params = StartParams { pipe_stdin: true, ..shell("p", script) };
    let process = client.start(params).await.unwrap();
    let mut expected = Vec::new();
    for number in 0..200 {
        let line = format!("{number}\n");
        assert_eq!(process.write(line.clone()).await.unwrap(), WriteStatus::Accepted);
        expected.extend_from_slice(line.as_bytes());
    }
    process.close_stdin().await.unwrap();
    let (mut events, mut output) = (process.subscribe_events(), Vec::new());
    loop {
        let next = tokio::select! {
            biased;
            next = events.next() => next,
            () = std::future::ready(()) => {
                tokio::task::yield_now().await;
                continue;
            }
        };
        match next {
            Some(ExecProcessEvent::Output(chunk)) => output.extend_from_slice(&chunk.chunk),
            Some(_) => {}
            None => break,
        }
    }
    assert_eq!(output, expected);
}

#[tokio::test]
async fn reading_unblocks_a_blocked_child() {
    let config = ServerConfig {
        retained_output_bytes_per_process: 4096,
        spill_output_bytes_per_process: 0,
        ..Default::default()
    };
    let client = local(config);
    let process = client.start(shell("p", "head -c 5000000 /dev/zero")).await.unwrap();
    let (output, exit_code) = collect(&mut process.subscribe_events()).await;
    assert_eq!((output.len(), exit_code), (5_000_000, Some(0)));
}

#[tokio::test]
async fn the_session_is_counted_and_listed_and_cannot_be_resumed() {
    let server = TestServer::new(ServerConfig { max_sessions: 2, ..ServerConfig::default() });
    let client = connect(&server);
    let _process = client.start(shell("p", "exec sleep 1000")).await.unwrap();
    let watcher = other(&server).await;
    let refused = server.connect_in_process("third").unwrap_err();
    assert_eq!(refused.kind(), Some(&ErrorKind::TooManySessions));

    let sessions = watcher.session_list(Empty {}).await.unwrap().sessions;
    let listed = sessions.iter().find(|session| session.session_id == client.session_id());
    let listed = listed.unwrap();
    assert_eq!((listed.client_name.as_str(), listed.attached), ("local", true));
    assert_eq!(listed.processes, ["p"]);

    let options = ExecServerClientConnectOptions {
        resume_session_id: Some(client.session_id().to_owned()),
        ..Default::default()
    };
    let connection = Served::by(&server).connection;
    let refused = ExecServerClient::connect_over(connection, options).await.unwrap_err();
    let attached = ErrorCode::SessionAttached.value();
    assert!(matches!(&refused, ExecServerError::Server(error) if error.code == attached));

    drop((client, _process));
    assert!(server.connect_in_process("third").is_ok());
}

#[tokio::test]
async fn another_client_may_observe_the_session_and_close_it() {
    let server = TestServer::new(ServerConfig::default());
    let client = connect(&server);
    let process = client.start(shell("p", "echo up; exec sleep 1000")).await.unwrap();
    let mut events = process.subscribe_events();
    let watcher = other(&server).await;
    let observed = watcher.observe(client.session_id(), "p", None).await.unwrap();
    let first = observed.subscribe_events().next().await.unwrap();
    assert!(matches!(first, ExecProcessEvent::Output(chunk) if &chunk.chunk[..] == b"up\n"));
    let session_id = Some(client.session_id().to_owned());
    watcher.session_close(SessionCloseParams { session_id }).await.unwrap();

    assert_eq!(collect(&mut events).await, (b"up\n".to_vec(), Some(137)));
    let refused = client.start(shell("q", "true")).await.unwrap_err();
    assert_eq!(kind(&refused), "sessionEnded");
    let refused = client.environment_info(Empty {}).await.unwrap_err();
    assert_eq!(kind(&refused), "sessionEnded");
    let refused = client.process_list(ListParams::default()).await.unwrap_err();
    assert_eq!(kind(&refused), "sessionEnded");
}

#[tokio::test]
async fn an_in_process_client_may_observe_other_sessions() {
    let server = TestServer::new(ServerConfig::default());
    let (client, owner) = (connect(&server), other(&server).await);
    let process = owner.start(shell("p", "echo up; exec sleep 1000")).await.unwrap();
    let observed = client.observe(owner.session_id(), "p", None).await.unwrap();
    let mut events = observed.subscribe_events();
    let first = events.next().await.unwrap();
    assert!(matches!(first, ExecProcessEvent::Output(chunk) if &chunk.chunk[..] == b"up\n"));
    drop(process);
    owner.close().await.unwrap();
    assert_eq!(collect(&mut events).await.1, Some(137));
}

#[tokio::test]
async fn close_returns_once_the_session_is_gone() {
    let server = TestServer::new(ServerConfig::default());
    let client = connect(&server);
    let process = client.start(shell("p", "exec sleep 1000")).await.unwrap();
    client.close().await.unwrap();
    assert!(matches!(*client.connection_state().borrow(), ConnectionState::Closed));
    let refused = process.terminate(TerminateMode::Force).await.unwrap_err();
    assert!(matches!(refused, ExecServerError::Closed), "{refused}");
    let watcher = other(&server).await;
    let sessions = watcher.session_list(Empty {}).await.unwrap().sessions;
    assert_eq!(sessions.len(), 1, "only the session of the watcher: {sessions:?}");
}

#[tokio::test]
async fn dropping_the_client_outside_the_runtime_ends_its_processes() {
    let server = TestServer::new(ServerConfig::default());
    let client = connect(&server);
    let process = client.start(shell("p", "exec sleep 1000")).await.unwrap();
    let mut events = process.subscribe_events();
    let watcher = other(&server).await;
    let observed = watcher.observe(client.session_id(), "p", None).await.unwrap();
    std::thread::spawn(|| drop((client, process))).join().unwrap();
    let last = events.next().await.unwrap();
    assert!(matches!(last, ExecProcessEvent::Failed(ExecServerError::Closed)), "{last:?}");
    assert!(events.next().await.is_none());
    assert_eq!(collect(&mut observed.subscribe_events()).await.1, Some(137));
}

#[tokio::test]
async fn leases_may_be_dropped_outside_the_runtime() {
    let directory = tempfile::tempdir().unwrap();
    let server = TestServer::new(ServerConfig::default());
    let client = connect(&server);
    let path = PathUri::from_path(directory.path()).unwrap();
    let watch = client.watch(watch_params(&path)).await.unwrap();
    let file = PathUri::from_path(directory.path().join("file")).unwrap();
    let new = client.create_file(FsCreateParams::new(file, "")).await.unwrap();
    let search = client.search(FsSearchParams::new(path, "needle")).await.unwrap();
    std::thread::spawn(|| drop((watch, new, search))).join().unwrap();
    server.shutdown().await;
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
}

async fn is_free(client: &ExecServerClient, id: &str) {
    while process_ids(client).await.iter().any(|other| other == id) {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_dropped_start_leaves_no_process() {
    let client = local(ServerConfig::default());
    for _ in 0..20 {
        {
            let mut start = pin!(client.start(shell("p", "exec sleep 1000")));
            let mut context = Context::from_waker(Waker::noop());
            assert!(start.as_mut().poll(&mut context).is_pending());
            assert_eq!(process_ids(&client).await, ["p"]);
        }
        is_free(&client, "p").await;
    }
}

#[tokio::test]
async fn a_start_dropped_after_success_leaves_no_process() {
    let directory = tempfile::tempdir().unwrap();
    let flag = directory.path().join("up");
    let client = local(ServerConfig::default());
    {
        let script = format!("> {}; exec sleep 1000", flag.display());
        let mut start = pin!(client.start(shell("p", &script)));
        let mut context = Context::from_waker(Waker::noop());
        assert!(start.as_mut().poll(&mut context).is_pending());
        while !flag.exists() {
            tokio::task::yield_now().await;
        }
    }
    is_free(&client, "p").await;
}

/// The process may have ended before its feed learns that the start was abandoned.
#[tokio::test]
async fn a_dropped_start_of_a_short_process_leaves_no_process() {
    let client = local(ServerConfig::default());
    for _ in 0..50 {
        {
            let mut start = pin!(client.start(shell("p", "echo over")));
            let mut context = Context::from_waker(Waker::noop());
            assert!(start.as_mut().poll(&mut context).is_pending());
        }
        is_free(&client, "p").await;
    }
}

#[tokio::test]
async fn calls_may_come_from_a_thread_without_a_runtime() {
    let client = local(ServerConfig::default());
    let starting = client.clone();
    let thread = std::thread::spawn(move || {
        let mut start = pin!(starting.start(shell("p", "echo up; exit 3")));
        let mut context = Context::from_waker(Waker::noop());
        loop {
            match start.as_mut().poll(&mut context) {
                Poll::Ready(started) => return started.unwrap(),
                Poll::Pending => std::thread::yield_now(),
            }
        }
    });
    let joined = tokio::task::spawn_blocking(move || thread.join().unwrap()).await.unwrap();
    assert_eq!(collect(&mut joined.subscribe_events()).await, (b"up\n".to_vec(), Some(3)));
}

#[tokio::test]
async fn leases_end_with_the_session() {
    let directory = tempfile::tempdir().unwrap();
    let server = TestServer::new(ServerConfig::default());
    let path = PathUri::from_path(directory.path()).unwrap();

    let client = connect(&server);
    let mut watch = client.watch(watch_params(&path)).await.unwrap();
    client.close().await.unwrap();
    assert!(matches!(watch.next().await, Some(Err(ExecServerError::Closed))));

    let client = connect(&server);
    let mut watch = client.watch(watch_params(&path)).await.unwrap();
    let session_id = Some(client.session_id().to_owned());
    other(&server).await.session_close(SessionCloseParams { session_id }).await.unwrap();
    assert!(matches!(watch.next().await, Some(Err(ExecServerError::Closed))));
    client.environment_info(Empty {}).await.unwrap_err();
    assert!(matches!(*client.connection_state().borrow(), ConnectionState::Failed(_)));
}

#[tokio::test]
async fn a_refused_start_keeps_the_process_with_that_id() {
    let client = local(ServerConfig::default());
    let process = client.start(shell("p", "exec sleep 1000")).await.unwrap();
    let refused = client.start(shell("p", "true")).await.unwrap_err();
    assert_eq!(kind(&refused), "duplicateProcess");
    assert_eq!(
        kind(&client.attach("p").await.unwrap_err()),
        "unknownProcess",
        "the process has a handle"
    );
    drop(process);
    client.attach("p").await.unwrap();
}

#[tokio::test]
async fn limits_and_errors_are_the_same_as_over_a_connection() {
    let config = ServerConfig { max_processes_per_session: 1, ..ServerConfig::default() };
    let server = TestServer::new(config);
    let client = connect(&server);
    let long = "x".repeat(1025);
    assert_eq!(server.connect_in_process(&long).unwrap_err().code, -32602);

    let refused = async |params| client.start(params).await.unwrap_err();
    assert_eq!(code(&refused(shell(&long, "true")).await), -32602);
    let argv = vec!["/no/such/program".to_owned()];
    let missing = refused(StartParams { argv, ..shell("p", "true") }).await;
    assert_eq!((code(&missing), kind(&missing)), (-32600, "programNotFound"));
    assert!(process_ids(&client).await.is_empty(), "the id is free again");
    let process = client.start(shell("p", "exec sleep 1000")).await.unwrap();
    assert_eq!(kind(&refused(shell("p", "true")).await), "duplicateProcess");
    assert_eq!(kind(&refused(shell("q", "true")).await), "tooManyProcesses");

    assert_eq!(process.write("x").await.unwrap(), WriteStatus::StdinClosed);
    let write = WriteParams { process_id: "p".into(), chunk: "x".into(), write_id: Some(long) };
    assert_eq!(code(&client.process_write(write).await.unwrap_err()), -32602);
    assert_eq!(process_ids(&client).await, ["p"]);
    server.shutdown().await;
    assert_eq!(kind(&refused(shell("q", "true")).await), "shuttingDown");
    assert!(matches!(*client.connection_state().borrow(), ConnectionState::Failed(_)));
}

#[tokio::test]
async fn a_finished_process_is_forgotten_once_it_is_consumed() {
    let client = local(ServerConfig::default());
    let unread = client.start(shell("unread", "head -c 6000000 /dev/zero")).await.unwrap();
    let read = client.start(shell("p", "true")).await.unwrap();
    collect(&mut read.subscribe_events()).await;
    while unread.subscribe_wake().borrow().to_owned() < 2 {
        tokio::task::yield_now().await;
    }
    // From here on the server only waits for time to pass.
    tokio::time::pause();
    while process_ids(&client).await.iter().any(|id| id == "p") {
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    assert_eq!(process_ids(&client).await, ["unread"]);
}

#[tokio::test]
async fn the_first_read_returns_all_earlier_output() {
    let client = local(ServerConfig::default());
    let process = client.start(shell("p", "head -c 3000000 /dev/zero")).await.unwrap();
    let mut wake = process.subscribe_wake();
    while !process.read(Some(u64::MAX), None, None).await.unwrap().closed {
        wake.changed().await.unwrap();
    }
    let response = process.read(None, None, None).await.unwrap();
    let bytes: usize = response.chunks.iter().map(|chunk| chunk.chunk.len()).sum();
    assert_eq!((bytes, response.dropped_bytes), (3_000_000, 0));
}

#[tokio::test]
async fn a_process_without_a_handle_runs_on_and_can_be_attached_to() {
    let client = local(ServerConfig::default());
    let script = "head -c 3000000 /dev/zero >&2; read x; echo $x";
    let params = StartParams { pipe_stdin: true, ..shell("p", script) };
    drop(client.start(params).await.unwrap());
    let unknown = client.attach("q").await.unwrap_err();
    assert_eq!(kind(&unknown), "unknownProcess");
    let process: ExecServerProcess = client.attach("p").await.unwrap();
    let mut events = process.subscribe_events();
    process.write("hello\n").await.unwrap();
    let mut stdout = Vec::new();
    while let Some(event) = events.next().await {
        if let ExecProcessEvent::Output(chunk) = event
            && chunk.stream == OutputStream::Stdout
        {
            stdout.extend_from_slice(&chunk.chunk);
        }
    }
    assert_eq!(stdout, b"hello\n");
}

#[tokio::test]
async fn files_round_trip_and_handles_are_unlimited() {
    let directory = tempfile::tempdir().unwrap();
    let client = local(ServerConfig::default());
    let path = PathUri::from_path(directory.path().join("file")).unwrap();
    let content = vec![b'x'; 3_000_000];
    client.fs_write_file(FsWriteFileParams::new(path.clone(), content.clone())).await.unwrap();
    let read = client.fs_read_file(FsReadFileParams::new(path.clone())).await.unwrap();
    assert!(read.data_base64[..] == content);

    let mut open = Vec::new();
    for _ in 0..300 {
        open.push(client.open_file(open_params(&path)).await.unwrap());
    }
    let block = open[299].read_block(2_999_999, 10).await.unwrap();
    assert_eq!((&block.chunk[..], block.eof), (&b"x"[..], true));
}

#[tokio::test]
async fn a_search_waits_for_its_reader() {
    let directory = tempfile::tempdir().unwrap();
    let lines = "needle in a haystack\n".repeat(1000);
    for number in 0..50 {
        std::fs::write(directory.path().join(number.to_string()), &lines).unwrap();
    }
    let client = local(ServerConfig::default());
    let path = PathUri::from_path(directory.path()).unwrap();
    let mut params = FsSearchParams::new(path, "needle");
    params.max_matches = Some(100_000);
    let mut search = client.search(params).await.unwrap();
    let mut found = 0;
    while let Some(results) = search.next().await {
        found += results.unwrap().len();
        tokio::task::yield_now().await;
    }
    assert_eq!(found, 50_000);
    assert!(search.summary().is_some());
}

#[tokio::test]
async fn a_watch_reports_changes_until_dropped() {
    let directory = tempfile::tempdir().unwrap();
    let client = local(ServerConfig::default());
    let path = PathUri::from_path(directory.path()).unwrap();
    let mut watch = client.watch(watch_params(&path)).await.unwrap();
    for round in 0..3 {
        let name = format!("file-{round}");
        std::fs::write(directory.path().join(&name), "x").unwrap();
        loop {
            let changes = watch.next().await.unwrap().unwrap();
            if changes.changes.iter().any(|change| change.path.as_path().ends_with(&name)) {
                break;
            }
        }
    }
}

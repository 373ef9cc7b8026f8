//! First connections: the errors of failed ones, and resuming a session that another client has
//! left.

use std::path::PathBuf;
use std::time::Duration;

use exec_server_client::{ConnectError, ExecServerClient, ExecServerError};
use exec_server_protocol::{ErrorCode, ErrorKind};
use exec_server_transport::{DialError, Listener, ListenerOptions, memory};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, copy_bidirectional};
use tokio::net::{TcpListener, UnixListener, UnixStream};
use tokio::task::JoinSet;

use crate::support::{
    LoopbackServer, args, connect, connect_once_free, finish, follow, options, shell, wait_for,
    wait_until_recovering, with_stdin,
};

async fn connect_error(url: &str) -> ConnectError {
    let mut args = args(url);
    args.connect_timeout = Duration::from_millis(200);
    match ExecServerClient::connect_websocket(args).await.unwrap_err() {
        ExecServerError::ConnectFailed(error) => std::sync::Arc::into_inner(error).unwrap(),
        other => panic!("{other}"),
    }
}

#[tokio::test]
async fn an_unused_port_is_unreachable() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("ws://{}", listener.local_addr().unwrap());
    drop(listener);
    let error = connect_error(&url).await;
    assert!(matches!(error, ConnectError::Dial(DialError::Unreachable { .. })), "{error}");
    assert!(error.to_string().contains(&url), "{error}");
}

#[tokio::test]
async fn a_silent_listener_times_out() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let error = connect_error(&format!("ws://{}", listener.local_addr().unwrap())).await;
    assert!(matches!(error, ConnectError::TimedOut { .. }), "{error}");
}

#[tokio::test]
async fn a_refused_upgrade_reports_the_http_status() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("ws://{}", listener.local_addr().unwrap());
    let serving = tokio::spawn(async move {
        let (mut socket, _) = listener.accept().await.unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(socket.read_u8().await.unwrap());
        }
        let answer = b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n";
        socket.write_all(answer).await.unwrap();
    });
    let error = connect_error(&url).await;
    assert!(
        matches!(&error, ConnectError::Dial(DialError::Refused { status, .. }) if *status == 404),
        "{error}"
    );
    serving.await.unwrap();
}

#[tokio::test]
async fn a_refused_session_is_reported() {
    let server = LoopbackServer::start().await;
    let mut unknown = args(&server.url());
    unknown.options.resume_session_id = Some("nobody's".into());
    let error = ExecServerClient::connect_websocket(unknown).await.unwrap_err();
    assert_eq!(error.kind(), Some(&ErrorKind::UnknownSession), "{error}");
    let mut nameless = args(&server.url());
    nameless.options.client_name = "x".repeat(5000);
    match ExecServerClient::connect_websocket(nameless).await.unwrap_err() {
        ExecServerError::Server(error) => assert_eq!(error.code, ErrorCode::InvalidParams.value()),
        other => panic!("{other}"),
    }
    let holder = connect(&server.url()).await;
    let mut taken = args(&server.url());
    taken.options.resume_session_id = Some(holder.session_id().to_owned());
    let error = ExecServerClient::connect_websocket(taken).await.unwrap_err();
    assert_eq!(error.kind(), Some(&ErrorKind::SessionAttached), "{error}");
}

#[tokio::test]
async fn a_server_that_never_responds_times_out() {
    let (ours, _theirs) = memory();
    let mut hasty = options();
    hasty.initialize_timeout = Duration::from_millis(50);
    let error = ExecServerClient::connect_over(ours, hasty).await.unwrap_err();
    assert!(matches!(error, ExecServerError::TimedOut { .. }), "{error}");
    let (ours, theirs) = memory();
    drop(theirs);
    match ExecServerClient::connect_over(ours, options()).await.unwrap_err() {
        ExecServerError::ConnectFailed(error) => {
            assert!(matches!(*error, ConnectError::EndedEarly), "{error}");
        }
        other => panic!("{other}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_client_resumes_a_session() {
    let server = LoopbackServer::start().await;
    let first = connect(&server.url()).await;
    let start = with_stdin(shell("p", "echo one; echo two >&2; exec cat"));
    let process = first.start(start).await.unwrap();
    let mut events = process.subscribe_events();
    wait_for(&mut events, "two").await;
    process.write("three\n").await.unwrap();
    wait_for(&mut events, "three").await;
    let mut again = args(&server.url());
    again.options.resume_session_id = Some(first.session_id().to_owned());
    drop((process, first));

    let second = connect_once_free(again).await;
    let unknown = second.attach("nobody").await.unwrap_err();
    assert_eq!(unknown.kind(), Some(&ErrorKind::UnknownProcess), "{unknown}");
    let process = second.attach("p").await.unwrap();
    process.write("four\n").await.unwrap();
    process.close_stdin().await.unwrap();
    let end = follow(&process).await;
    assert_eq!(String::from_utf8(end.stdout).unwrap(), "one\nthree\nfour\n");
    assert_eq!(end.stderr, b"two\n");
    assert_eq!((end.exit_code, end.dropped_bytes), (Some(0), 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_exited_while_detached_can_be_attached() {
    let server = LoopbackServer::start().await;
    let first = connect(&server.url()).await;
    let process = first.start(shell("p", "seq 1 100000; exit 9")).await.unwrap();
    let session_id = first.session_id().to_owned();
    assert_eq!(follow(&process).await.exit_code, Some(9));
    drop((process, first));
    let mut again = args(&server.url());
    again.options.resume_session_id = Some(session_id.clone());
    let second = connect_once_free(again).await;
    let end = follow(&second.attach("p").await.unwrap()).await;
    let expected: String = (1..=100_000).map(|number| format!("{number}\n")).collect();
    assert_eq!(String::from_utf8(end.stdout).unwrap(), expected);
    assert_eq!((end.exit_code, end.dropped_bytes), (Some(9), 0));
}

/// Forwards Unix connections until it is dropped.
struct UnixRelay {
    path: PathBuf,
    _connections: JoinSet<()>,
}

impl UnixRelay {
    fn start(path: PathBuf, upstream: PathBuf) -> Self {
        let listener = UnixListener::bind(&path).unwrap();
        let mut connections = JoinSet::new();
        connections.spawn(async move {
            let mut relayed = JoinSet::new();
            loop {
                let (mut client, _) = listener.accept().await.unwrap();
                let mut server = UnixStream::connect(&upstream).await.unwrap();
                relayed.spawn(async move { copy_bidirectional(&mut client, &mut server).await });
            }
        });
        Self { path, _connections: connections }
    }
}

impl Drop for UnixRelay {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_reconnects_over_a_unix_socket() {
    let directory = tempfile::tempdir().unwrap();
    let upstream = directory.path().join("server socket?");
    let url = format!("unix://{}", upstream.display()).parse().unwrap();
    let listener = Listener::bind(&url, ListenerOptions::default()).await.unwrap();
    let _server = LoopbackServer::over(listener);
    let path = directory.path().join("relay");
    let relay = UnixRelay::start(path.clone(), upstream.clone());

    let client = ExecServerClient::connect_unix(&path, options()).await.unwrap();
    let process = client.start(with_stdin(shell("p", "exec cat"))).await.unwrap();
    let mut events = process.subscribe_events();
    process.write("before\n").await.unwrap();
    wait_for(&mut events, "before").await;
    drop(relay);
    wait_until_recovering(&client).await;
    let _relay = UnixRelay::start(path, upstream);
    process.write("after\n").await.unwrap();
    process.close_stdin().await.unwrap();
    assert_eq!(finish(events).await.stdout, b"after\n");
    assert_eq!(follow(&process).await.stdout, b"before\nafter\n");
}

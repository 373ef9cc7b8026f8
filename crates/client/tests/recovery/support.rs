//! A server on a loopback port, a fault proxy in front of it, and a client behind the proxy.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use exec_server_client::{
    ConnectionState, ExecProcessEvent, ExecServerClient, ExecServerClientConnectOptions,
    ExecServerError, ExecServerProcess, ProcessEvents, RecoveryPolicy, RemoteExecServerConnectArgs,
};
use exec_server_protocol::{
    Empty, ErrorKind, ListParams, OutputStream, PathUri, SessionInfo, StartParams,
};
use exec_server_server::ServerConfig;
use exec_server_test_support::{FaultProxy, TestServer};
use exec_server_transport::{Listener, ListenerOptions};
use tokio::task::{AbortHandle, JoinSet};

pub(crate) struct LoopbackServer {
    pub(crate) server: TestServer,
    pub(crate) address: SocketAddr,
    accepting: AbortHandle,
}

impl LoopbackServer {
    pub(crate) async fn start() -> Self {
        Self::with(ServerConfig::default()).await
    }

    pub(crate) async fn with(config: ServerConfig) -> Self {
        let url = "ws://127.0.0.1:0".parse().unwrap();
        let listener = Listener::bind(&url, ListenerOptions::default()).await.unwrap();
        let address = listener.local_url().to_string().trim_start_matches("ws://").parse().unwrap();
        Self::listening(config, listener, address)
    }

    /// Serves on a listener without a network address.
    pub(crate) fn over(listener: Listener) -> Self {
        Self::listening(ServerConfig::default(), listener, SocketAddr::from(([127, 0, 0, 1], 0)))
    }

    fn listening(config: ServerConfig, mut listener: Listener, address: SocketAddr) -> Self {
        let server = TestServer::new(config);
        let serving = server.clone();
        let accepting = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let connection = listener.accept().await;
                let server = serving.clone();
                connections.spawn(async move { server.serve(connection).await });
            }
        });
        Self { server, address, accepting: accepting.abort_handle() }
    }

    pub(crate) fn url(&self) -> String {
        format!("ws://{}", self.address)
    }

    pub(crate) async fn client(&self) -> (ExecServerClient, FaultProxy) {
        let proxy = FaultProxy::start(self.address).await;
        let client = connect(&proxy.url()).await;
        (client, proxy)
    }
}

impl Drop for LoopbackServer {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

pub(crate) async fn connect(url: &str) -> ExecServerClient {
    ExecServerClient::connect_websocket(args(url)).await.unwrap()
}

pub(crate) fn args(url: &str) -> RemoteExecServerConnectArgs {
    let args = RemoteExecServerConnectArgs::new(url, "test");
    RemoteExecServerConnectArgs { options: options(), ..args }
}

/// Generous time limits: the tests check what survives, not how fast a loaded machine is.
pub(crate) fn options() -> ExecServerClientConnectOptions {
    ExecServerClientConnectOptions {
        detached_ttl: Some(Duration::from_secs(600)),
        recovery: RecoveryPolicy {
            deadline: Some(Duration::from_secs(300)),
            first_pause: Duration::from_millis(1),
            longest_pause: Duration::from_millis(20),
            ..RecoveryPolicy::default()
        },
        ..ExecServerClientConnectOptions::default()
    }
}

pub(crate) fn shell(id: &str, script: &str) -> StartParams {
    let env = BTreeMap::from([("PATH".to_owned(), "/usr/bin:/bin".to_owned())]);
    let cwd = PathUri::from_path("/").unwrap();
    StartParams { env, ..StartParams::new(id, ["sh", "-c", script], cwd) }
}

pub(crate) fn with_stdin(params: StartParams) -> StartParams {
    StartParams { pipe_stdin: true, ..params }
}

#[derive(Debug, Default)]
pub(crate) struct Transcript {
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
    pub(crate) exit_code: Option<i32>,
    pub(crate) dropped_bytes: u64,
}

pub(crate) async fn follow(process: &ExecServerProcess) -> Transcript {
    finish(process.subscribe_events()).await
}

pub(crate) async fn finish(mut events: ProcessEvents) -> Transcript {
    let mut transcript = Transcript::default();
    let mut last_seq = 0;
    while let Some(event) = events.next().await {
        match event {
            ExecProcessEvent::Output(chunk) => {
                assert!(chunk.seq > last_seq, "a duplicate event");
                last_seq = chunk.seq;
                match chunk.stream {
                    OutputStream::Stderr => transcript.stderr.extend_from_slice(&chunk.chunk),
                    OutputStream::Stdout | OutputStream::Pty => {
                        transcript.stdout.extend_from_slice(&chunk.chunk);
                    }
                }
            }
            ExecProcessEvent::Gap { dropped_bytes } => transcript.dropped_bytes += dropped_bytes,
            ExecProcessEvent::Exited(exit) => transcript.exit_code = Some(exit.exit_code),
            ExecProcessEvent::Closed { .. } => {}
            ExecProcessEvent::Failed(error) => panic!("the process failed: {error}"),
        }
    }
    transcript
}

pub(crate) async fn wait_for(events: &mut ProcessEvents, marker: &str) -> Vec<u8> {
    let mut seen = Vec::new();
    while !seen.windows(marker.len()).any(|window| window == marker.as_bytes()) {
        match events.next().await {
            Some(ExecProcessEvent::Output(chunk)) => seen.extend_from_slice(&chunk.chunk),
            Some(ExecProcessEvent::Gap { .. }) => {}
            other => panic!("{other:?} before {marker:?}; seen {}", String::from_utf8_lossy(&seen)),
        }
    }
    seen
}

pub(crate) async fn failure(mut events: ProcessEvents) -> ExecServerError {
    loop {
        match events.next().await {
            Some(ExecProcessEvent::Failed(error)) => return error,
            Some(ExecProcessEvent::Closed { .. }) | None => panic!("the process did not fail"),
            Some(_) => {}
        }
    }
}

pub(crate) async fn wait_for_state(
    client: &ExecServerClient,
    reached: impl FnMut(&ConnectionState) -> bool,
) {
    let mut state = client.connection_state();
    state.wait_for(reached).await.expect("the client lives");
}

pub(crate) async fn wait_until_recovering(client: &ExecServerClient) {
    wait_for_state(client, |state| matches!(state, ConnectionState::Recovering { .. })).await;
}

pub(crate) async fn is_running(watcher: &ExecServerClient, session_id: &str, id: &str) -> bool {
    let params = ListParams { session_id: Some(session_id.to_owned()), within_ms: None };
    let listed = watcher.process_list(params).await.unwrap();
    listed.processes.iter().any(|process| process.process_id == id && process.running)
}

/// Polls until a process has exited: `watcher` receives no events of the process.
pub(crate) async fn wait_until_gone(watcher: &ExecServerClient, session_id: &str, id: &str) {
    while is_running(watcher, session_id, id).await {
        tokio::task::yield_now().await;
    }
}

pub(crate) async fn session_info(
    watcher: &ExecServerClient,
    session_id: &str,
) -> Option<SessionInfo> {
    let sessions = watcher.session_list(Empty {}).await.unwrap().sessions;
    sessions.into_iter().find(|session| session.session_id == session_id)
}

/// Connects to a session whose last client has just left, as soon as the server has noticed.
pub(crate) async fn connect_once_free(args: RemoteExecServerConnectArgs) -> ExecServerClient {
    loop {
        match ExecServerClient::connect_websocket(args.clone()).await {
            Ok(client) => return client,
            Err(error) => assert_eq!(error.kind(), Some(&ErrorKind::SessionAttached), "{error}"),
        }
    }
}

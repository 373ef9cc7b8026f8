//! Options for connecting and for the session.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use exec_server_relay::harness::NoiseRendezvousConnectProvider;
use exec_server_transport::{DialUrl, KeepAlive, TlsOptions};

use crate::{NetworkDecisionHandler, NetworkRequestHandler, RecoveryPolicy};

const DEFAULT_CLIENT_NAME: &str = "exec-server-client";
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(10);

/// Options common to all transports.
#[derive(Debug, Clone)]
pub struct ExecServerClientConnectOptions {
    /// Shown by `session/list`.
    pub client_name: String,
    /// Time limit for the first attempt to connect, up to the response to `initialize`.
    /// [`RemoteExecServerConnectArgs::connect_timeout`] is added to it; through a relay, the time
    /// to open a stream. [`RecoveryPolicy::attempt`] limits later attempts.
    pub initialize_timeout: Duration,
    /// The session to resume. It must have no connection.
    pub resume_session_id: Option<String>,
    /// How long the session survives without a connection. By default the server decides (30 s).
    pub detached_ttl: Option<Duration>,
    pub recovery: RecoveryPolicy,
    /// Decides about hosts that no rule of a process covers. Without a handler they are denied.
    pub on_network_request: Option<NetworkRequestHandler>,
    /// Called with each decision about a host that a process tried to reach.
    pub on_network_decision: Option<NetworkDecisionHandler>,
}

impl Default for ExecServerClientConnectOptions {
    fn default() -> Self {
        Self {
            client_name: DEFAULT_CLIENT_NAME.to_owned(),
            initialize_timeout: DEFAULT_TIMEOUT,
            resume_session_id: None,
            detached_ttl: None,
            recovery: RecoveryPolicy::default(),
            on_network_request: None,
            on_network_decision: None,
        }
    }
}

/// A server reachable over a WebSocket.
#[derive(Clone)]
pub struct RemoteExecServerConnectArgs {
    /// `wss://HOST:PORT[/PATH]`, `ws://HOST:PORT[/PATH]`, or `unix:///PATH`.
    pub websocket_url: String,
    /// Time limit for dialling, in each connection attempt.
    pub connect_timeout: Duration,
    /// Sent as `Authorization: Bearer …`.
    pub bearer_token: Option<String>,
    /// File that holds the bearer token. Read for every connection, so the token can be renewed
    /// while the session lasts. Replaces `bearer_token`.
    pub token_file: Option<PathBuf>,
    /// Trusted servers and the client's certificate, for `wss://`.
    pub tls: TlsOptions,
    /// How soon a silent server is considered lost.
    pub keep_alive: KeepAlive,
    pub options: ExecServerClientConnectOptions,
}

impl RemoteExecServerConnectArgs {
    #[must_use]
    pub fn new(websocket_url: impl Into<String>, client_name: impl Into<String>) -> Self {
        Self {
            websocket_url: websocket_url.into(),
            connect_timeout: DEFAULT_TIMEOUT,
            bearer_token: None,
            token_file: None,
            tls: TlsOptions::default(),
            keep_alive: KeepAlive::for_client(),
            options: ExecServerClientConnectOptions {
                client_name: client_name.into(),
                ..ExecServerClientConnectOptions::default()
            },
        }
    }
}

impl fmt::Debug for RemoteExecServerConnectArgs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The query, user name and password of a URL may be secrets.
        let url = self
            .websocket_url
            .parse::<DialUrl>()
            .map_or_else(|_| "…".to_owned(), |url| url.to_string());
        f.debug_struct("RemoteExecServerConnectArgs")
            .field("websocket_url", &url)
            .field("connect_timeout", &self.connect_timeout)
            .field("bearer_token", &self.bearer_token.as_ref().map(|_| "…"))
            .field("token_file", &self.token_file)
            .field("tls", &self.tls)
            .field("keep_alive", &self.keep_alive)
            .field("options", &self.options)
            .finish()
    }
}

/// An environment reachable through a relay.
#[derive(Debug, Clone)]
pub struct NoiseRendezvousConnectArgs {
    /// Provides a fresh URL and authorization for each socket to the rendezvous.
    pub provider: Arc<dyn NoiseRendezvousConnectProvider>,
    /// Decides which rendezvous is trusted. The environment proves its identity with its key.
    pub tls: TlsOptions,
    pub options: ExecServerClientConnectOptions,
}

impl NoiseRendezvousConnectArgs {
    #[must_use]
    pub fn new(
        provider: Arc<dyn NoiseRendezvousConnectProvider>,
        client_name: impl Into<String>,
    ) -> Self {
        let options = ExecServerClientConnectOptions {
            client_name: client_name.into(),
            ..ExecServerClientConnectOptions::default()
        };
        Self { provider, tls: TlsOptions::default(), options }
    }
}

/// A server that is started as a child and reached over its stdin and stdout.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct ExecServerLaunchCommand {
    pub program: PathBuf,
    /// Must make the program serve on stdio: `["--listen", "stdio"]` for `exec-server` itself.
    pub args: Vec<String>,
    /// Added to the client's own environment.
    pub env: BTreeMap<String, String>,
    pub cwd: Option<PathBuf>,
}

impl fmt::Debug for ExecServerLaunchCommand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExecServerLaunchCommand")
            .field("program", &self.program)
            .field("args", &self.args)
            // Values may be secrets.
            .field("env", &self.env.keys())
            .field("cwd", &self.cwd)
            .finish()
    }
}

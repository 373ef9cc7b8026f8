//! The client: one session on one server, across reconnects.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use exec_server_protocol::{
    ErrorKind, LimitsRequest, ObserveParams, OnFull, ReadParams, Rpc, RpcError, SandboxRequest,
    SandboxType, ServerLink, SessionCloseParams, StartParams, StartResponse, TerminateMode,
    TerminateParams, for_each_method, rpc,
};
use exec_server_transport::Connection;
use tokio::sync::{Notify, mpsc, oneshot, watch};

use crate::call::{PendingReply, prepare};
use crate::calls::{ProcessKey, ReplyTo};
use crate::connector::{Connector, OnceConnector, RelayConnector, UrlConnector};
use crate::driver::{Command, Driver, GrantedSession, OpenedResource, Shared};
use crate::in_process::InProcess;
use crate::launch::ChildServerConnector;
use crate::leases::{Lease, LeaseId, LeaseWakeups};
use crate::mirror::{GapPolicy, ProcessMirror};
use crate::network::NetworkHandlers;
use crate::process::{ExecServerProcess, StartFacts};
use crate::process_state::ProcessState;
use crate::{
    ExecServerClientConnectOptions, ExecServerError, ExecServerLaunchCommand,
    NoiseRendezvousConnectArgs, RemoteExecServerConnectArgs,
};

/// Maximum number of calls queued for the driver. Further callers wait.
const QUEUED_CALLS: usize = 64;

/// Time limit for the steps before `initialize` through a relay: 6 s each for the registry and for
/// dialling the rendezvous, 10 s for the handshake, and a margin for retries.
const OPENING_A_STREAM: Duration = Duration::from_secs(26);

/// A session on a server. Clones share it. Dropping the last clone and the last handle of a
/// process, file, watch, search or HTTP body closes the connection; the server then keeps the
/// session for its detached TTL. An in-process session ends at once.
#[derive(Debug, Clone)]
pub struct ExecServerClient {
    handle: Arc<Handle>,
}

/// State of the connection, for display.
#[derive(Debug, Clone)]
pub enum ConnectionState {
    Connected,
    /// Calls wait; processes keep running on the server.
    Recovering {
        since: Instant,
        failed_attempts: u32,
    },
    /// The connection will not come back, or the in-process session is over. Every call gets this
    /// error. Over a connection, every process that has not ended gets it, too.
    Failed(ExecServerError),
    /// Closed by [`ExecServerClient::close`], or by dropping the last handle.
    Closed,
}

#[derive(Debug)]
struct Handle {
    session: GrantedSession,
    link: Link,
    next_id: AtomicU64,
}

#[derive(Debug)]
enum Link {
    Driver { commands: mpsc::Sender<Command>, shared: Arc<Shared> },
    InProcess(Arc<InProcess>),
}

impl Link {
    fn hang_up(&self) {
        match self {
            Self::Driver { shared, .. } => shared.hang_up.notify_one(),
            Self::InProcess(link) => link.hang_up(),
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.link.hang_up();
    }
}

struct HangUpOnDrop<'a>(&'a Link);

impl Drop for HangUpOnDrop<'_> {
    fn drop(&mut self) {
        self.0.hang_up();
    }
}

impl ExecServerClient {
    /// Connects to a server at `wss://HOST:PORT[/PATH]`, `ws://HOST:PORT[/PATH]` or `unix:///PATH`.
    /// `session/list` shows `client_name`.
    pub async fn connect(url: &str, client_name: &str) -> Result<Self, ExecServerError> {
        Self::connect_websocket(RemoteExecServerConnectArgs::new(url, client_name)).await
    }

    /// Like [`Self::connect`], with credentials, TLS settings and options.
    pub async fn connect_websocket(
        args: RemoteExecServerConnectArgs,
    ) -> Result<Self, ExecServerError> {
        let connector = UrlConnector::new(&args);
        let mut options = args.options;
        // In the driver, this time limit covers dialling, too.
        options.initialize_timeout =
            options.initialize_timeout.saturating_add(args.connect_timeout);
        Self::connect_by(connector, options).await
    }

    /// Connects to an environment through a relay, with end-to-end encryption.
    pub async fn connect_noise_rendezvous(
        args: NoiseRendezvousConnectArgs,
    ) -> Result<Self, ExecServerError> {
        let connector = RelayConnector::new(&args);
        let mut options = args.options;
        options.initialize_timeout = options.initialize_timeout.saturating_add(OPENING_A_STREAM);
        // Each attempt to reconnect queries the registry, dials the rendezvous, and waits while the
        // environment queries the registry.
        options.recovery.attempt = options.recovery.attempt.max(OPENING_A_STREAM);
        Self::connect_by(connector, options).await
    }

    /// Connects to a server that listens on a Unix socket.
    pub async fn connect_unix(
        path: impl AsRef<Path>,
        options: ExecServerClientConnectOptions,
    ) -> Result<Self, ExecServerError> {
        let timeout = options.initialize_timeout;
        Self::connect_by(UrlConnector::unix(path.as_ref(), timeout), options).await
    }

    /// Starts a server as a child and talks to it over its stdin and stdout. The child and
    /// everything it started end with this client. If the child exits, the client fails.
    pub async fn connect_stdio(
        command: ExecServerLaunchCommand,
        options: ExecServerClientConnectOptions,
    ) -> Result<Self, ExecServerError> {
        Self::connect_by(ChildServerConnector::new(command), options).await
    }

    /// Uses an existing connection. The client fails when the connection ends.
    pub async fn connect_over(
        connection: Connection,
        options: ExecServerClientConnectOptions,
    ) -> Result<Self, ExecServerError> {
        Self::connect_by(OnceConnector::new(connection), options).await
    }

    /// Connects and reconnects through a custom [`Connector`].
    pub async fn connect_by(
        connector: impl Connector,
        options: ExecServerClientConnectOptions,
    ) -> Result<Self, ExecServerError> {
        let (commands, queue) = mpsc::channel(QUEUED_CALLS);
        let (opened, opening) = oneshot::channel();
        let (state, _) = watch::channel(ConnectionState::Connected);
        let (hang_up, room) = (Notify::new(), Arc::default());
        let shared =
            Arc::new(Shared { state, hang_up, room, lease_wakeups: LeaseWakeups::default() });
        let driver = Driver::new(Arc::clone(&shared), Box::new(connector), options, queue, opened);
        tokio::spawn(driver.run());
        let session = opening.await.unwrap_or(Err(ExecServerError::Closed))?;
        Ok(Self::new(session, Link::Driver { commands, shared }))
    }

    /// Opens a session on a server in the same program. The session and its processes end with the
    /// client. Must be called within a runtime.
    #[must_use]
    pub fn connect_in_process(server: Arc<dyn ServerLink>) -> Self {
        Self::connect_in_process_with(server, &ExecServerClientConnectOptions::default())
    }

    /// Like [`Self::connect_in_process`], with the network handlers of `options`. The other options
    /// are ignored.
    #[must_use]
    pub fn connect_in_process_with(
        server: Arc<dyn ServerLink>,
        options: &ExecServerClientConnectOptions,
    ) -> Self {
        let link = InProcess::new(server, NetworkHandlers::of(options));
        let session_id = link.session_id().to_owned();
        let session = GrantedSession { session_id, detached_ttl: None };
        Self::new(session, Link::InProcess(link))
    }

    fn new(session: GrantedSession, link: Link) -> Self {
        Self { handle: Arc::new(Handle { session, link, next_id: AtomicU64::new(1) }) }
    }

    /// The session's id. Another client can resume the session after this one has disconnected,
    /// unless the session is in process.
    #[must_use]
    pub fn session_id(&self) -> &str {
        &self.handle.session.session_id
    }

    /// How long the server keeps the session without a connection. Servers report it only if a TTL
    /// was requested.
    #[must_use]
    pub fn detached_ttl(&self) -> Option<Duration> {
        self.handle.session.detached_ttl
    }

    /// Changes when the connection is lost, at each attempt to replace it, when it is recovered,
    /// and when the client ends.
    #[must_use]
    pub fn connection_state(&self) -> watch::Receiver<ConnectionState> {
        match &self.handle.link {
            Link::Driver { shared, .. } => shared.state.subscribe(),
            Link::InProcess(link) => link.state(),
        }
    }

    /// Starts a process. Dropping the future early leaves nothing running. If the server does not
    /// enforce the sandbox, host rules or limits of `params`, the client terminates the process and
    /// returns an error.
    pub async fn start(&self, params: StartParams) -> Result<ExecServerProcess, ExecServerError> {
        let gaps = match params.on_full {
            OnFull::Block => GapPolicy::Fatal,
            OnFull::Discard => GapPolicy::Declared,
        };
        let (key, mirror) = self.mirror(None, params.process_id.clone(), gaps, 1);
        let process_state = ProcessState::started(key.clone(), mirror.clone());
        let unclaimed = UnclaimedProcess::started(&mirror);
        let started = self.open::<rpc::ProcessStart>(params.clone(), process_state).await?;
        if let Err(error) = check_enforced(&params, &started) {
            self.end_unconfined(&params.process_id).await?;
            unclaimed.claim();
            mirror.lose_handle();
            return Err(error);
        }
        unclaimed.claim();
        let facts = StartFacts {
            has_terminal: Some(params.tty),
            has_deadline: started.timeout_ms.is_some(),
            limits: started.limits,
        };
        Ok(ExecServerProcess::new(self.clone(), key, mirror, facts))
    }

    /// Starts a process for other clients. This client ignores its output and confirms none, so the
    /// server keeps all of it for the client that resumes the session. After an error the process
    /// may be running; closing the session ends it.
    pub async fn start_unread(&self, params: StartParams) -> Result<(), ExecServerError> {
        let started = self.call::<rpc::ProcessStart>(params.clone()).await?;
        if let Err(error) = check_enforced(&params, &started) {
            self.end_unconfined(&params.process_id).await?;
            return Err(error);
        }
        Ok(())
    }

    /// Terminates a process that the server does not confine as requested. Waits for the response:
    /// the caller may disconnect as soon as it gets the error.
    async fn end_unconfined(&self, process_id: &str) -> Result<(), ExecServerError> {
        let (process_id, mode) = (process_id.to_owned(), TerminateMode::Force);
        let params = TerminateParams { process_id, mode, session_id: None };
        self.call::<rpc::ProcessTerminate>(params).await.map(drop)
    }

    /// Returns a handle to an existing process of this session, for example after a resume. Fails
    /// if this client has another handle to the process, at least until the process has ended. The
    /// events begin with the oldest retained one.
    pub async fn attach(&self, process_id: &str) -> Result<ExecServerProcess, ExecServerError> {
        if let Link::InProcess(link) = &self.handle.link {
            return self.attach_in_process(link, process_id);
        }
        self.attach_after(process_id, 0).await
    }

    /// Like [`Self::attach`], but skips the events up to `after_seq`. Not for in-process sessions.
    pub(crate) async fn attach_after(
        &self,
        process_id: &str,
        after_seq: u64,
    ) -> Result<ExecServerProcess, ExecServerError> {
        let next = after_seq.saturating_add(1);
        let (key, mirror) = self.mirror(None, process_id.to_owned(), GapPolicy::Declared, next);
        let params = ReadParams {
            process_id: process_id.to_owned(),
            after_seq: Some(after_seq),
            // This call only checks that the process exists; the driver reads its output.
            max_bytes: Some(0),
            wait_ms: None,
        };
        let process_state = ProcessState::attached(key.clone(), mirror.clone());
        let unclaimed = UnclaimedProcess::watched(&mirror);
        self.open::<rpc::ProcessRead>(params, process_state).await?;
        unclaimed.claim();
        Ok(ExecServerProcess::new(self.clone(), key, mirror, StartFacts::default()))
    }

    /// In process, the server sends the events of a process only to the mirror that the start
    /// created, so attaching takes over that mirror.
    fn attach_in_process(
        &self,
        link: &InProcess,
        process_id: &str,
    ) -> Result<ExecServerProcess, ExecServerError> {
        let key = ProcessKey { observed_session: None, process_id: process_id.to_owned() };
        let mirror = link.take_mirror(&key).ok_or_else(|| {
            let message =
                format!("process {process_id:?} is unknown to this client or already has a handle");
            ExecServerError::Server(
                RpcError::invalid_request(message).with_kind(ErrorKind::UnknownProcess),
            )
        })?;
        Ok(ExecServerProcess::new(self.clone(), key, mirror, StartFacts::default()))
    }

    /// Returns a handle that observes a process of another session: it receives the events after
    /// `after_seq`, and may signal and terminate, but neither write nor resize. If the events are
    /// read too slowly, they contain a [`Gap`](crate::ExecProcessEvent::Gap).
    pub async fn observe(
        &self,
        session_id: &str,
        process_id: &str,
        after_seq: Option<u64>,
    ) -> Result<ExecServerProcess, ExecServerError> {
        let next = after_seq.unwrap_or(0).saturating_add(1);
        let observed = Some(session_id.to_owned());
        let (key, mirror) = self.mirror(observed, process_id.to_owned(), GapPolicy::Declared, next);
        let params = ObserveParams {
            session_id: session_id.to_owned(),
            process_id: process_id.to_owned(),
            after_seq,
        };
        let process_state = ProcessState::observed(key.clone(), mirror.clone());
        let unclaimed = UnclaimedProcess::watched(&mirror);
        self.open::<rpc::ProcessObserve>(params, process_state).await?;
        unclaimed.claim();
        Ok(ExecServerProcess::new(self.clone(), key, mirror, StartFacts::default()))
    }

    /// Ends the session and its processes, and disconnects. This closes every clone of the client.
    pub async fn close(&self) -> Result<(), ExecServerError> {
        // Also if the call fails or this future is dropped: the server may have closed the session,
        // and without its response no caller would know.
        let _hang_up = HangUpOnDrop(&self.handle.link);
        let params = SessionCloseParams { session_id: None };
        self.call::<rpc::SessionClose>(params).await.map(drop)
    }

    /// Calls any method of the protocol by its type. Calls wait while the connection is being
    /// recovered.
    pub async fn call<R: Rpc>(&self, params: R::Params) -> Result<R::Response, ExecServerError> {
        self.send::<R>(params, None).await?.answer().await
    }

    /// Sends a call after all earlier ones. The response may be awaited later.
    pub(crate) async fn send<R: Rpc>(
        &self,
        params: R::Params,
        opens: Option<OpenedResource>,
    ) -> Result<PendingReply<R>, ExecServerError> {
        match &self.handle.link {
            Link::Driver { commands, .. } => {
                let (call, waiting) = prepare::<R>(&params, |sender| match &opens {
                    None => ReplyTo::Caller(sender),
                    Some(OpenedResource::Process(process)) => {
                        ReplyTo::Opening(process.key().clone(), sender)
                    }
                    Some(OpenedResource::Lease(lease)) => {
                        ReplyTo::Leasing(lease.id().clone(), sender)
                    }
                })?;
                match commands.send(Command { call, opens }).await {
                    Ok(()) => Ok(waiting),
                    Err(_) => Err(self.why_over()),
                }
            }
            Link::InProcess(link) if link.is_closed() => Err(ExecServerError::Closed),
            Link::InProcess(link) => Ok(PendingReply::in_process(link.call::<R>(params, opens))),
        }
    }

    async fn open<R: Rpc>(
        &self,
        params: R::Params,
        process: ProcessState,
    ) -> Result<R::Response, ExecServerError> {
        self.send::<R>(params, Some(OpenedResource::Process(process))).await?.answer().await
    }

    pub(crate) async fn lease<R: Rpc>(
        &self,
        params: R::Params,
        lease: Lease,
    ) -> Result<PendingReply<R>, ExecServerError> {
        self.send::<R>(params, Some(OpenedResource::Lease(lease))).await
    }

    /// Returns an id unique among everything this client opens. For callers that choose their own
    /// `handleId`, `watchId`, `searchId` or `requestId`.
    #[must_use]
    pub fn unique_id(&self) -> String {
        self.handle.next_id.fetch_add(1, Ordering::Relaxed).to_string()
    }

    /// Called when the holder of a lease has consumed items that are to be acknowledged, or has
    /// released the lease or dropped its handle.
    pub(crate) fn lease_changed(&self, id: &LeaseId) {
        match &self.handle.link {
            Link::Driver { shared, .. } => shared.lease_wakeups.wake(id),
            Link::InProcess(link) => link.lease_changed(id),
        }
    }

    fn mirror(
        &self,
        observed_session: Option<String>,
        process_id: String,
        gaps: GapPolicy,
        next: u64,
    ) -> (ProcessKey, ProcessMirror) {
        let room = match &self.handle.link {
            Link::Driver { shared, .. } => Arc::clone(&shared.room),
            Link::InProcess(_) => Arc::default(),
        };
        let mirror = ProcessMirror::telling(process_id.clone(), gaps, next, room);
        (ProcessKey { observed_session, process_id }, mirror)
    }

    /// The error to report after the driver has ended, taken from the connection state.
    fn why_over(&self) -> ExecServerError {
        match &*self.connection_state().borrow() {
            ConnectionState::Failed(error) => error.clone(),
            ConnectionState::Connected
            | ConnectionState::Recovering { .. }
            | ConnectionState::Closed => ExecServerError::Closed,
        }
    }
}

/// Checks that the server enforces what was requested: a server that does not support sandboxes,
/// host rules or limits ignores them silently.
fn check_enforced(params: &StartParams, started: &StartResponse) -> Result<(), ExecServerError> {
    let is_wanted = |sandbox: &SandboxRequest| !sandbox.asks_for_nothing();
    let process_id = || params.process_id.clone();
    if started.sandbox_type == SandboxType::None && params.sandbox.as_ref().is_some_and(is_wanted) {
        return Err(ExecServerError::NotSandboxed { process_id: process_id() });
    }
    let network = started.enforcement.and_then(|enforcement| enforcement.network);
    if params.network.is_some() && network.is_none() {
        return Err(ExecServerError::NetworkNotManaged { process_id: process_id() });
    }
    // If `limits` has only `required`, it sets no limit: `required` then concerns the limits of the
    // operator.
    let asks_for_limits = |limits: &LimitsRequest| !limits.values().is_empty();
    if started.limits.is_none() && params.limits.as_deref().is_some_and(asks_for_limits) {
        return Err(ExecServerError::NotLimited { process_id: process_id() });
    }
    Ok(())
}

/// A process whose handle is being created. If the waiting future is dropped after the response
/// arrived, only this guard can clean up: it terminates a started process, and stops an attached or
/// observed one from holding back output.
struct UnclaimedProcess<'a> {
    mirror: &'a ProcessMirror,
    started: bool,
}

impl<'a> UnclaimedProcess<'a> {
    fn started(mirror: &'a ProcessMirror) -> Self {
        Self { mirror, started: true }
    }

    fn watched(mirror: &'a ProcessMirror) -> Self {
        Self { mirror, started: false }
    }

    fn claim(self) {
        std::mem::forget(self);
    }
}

impl Drop for UnclaimedProcess<'_> {
    fn drop(&mut self) {
        if self.started {
            self.mirror.give_away();
        } else {
            self.mirror.lose_handle();
        }
    }
}

/// Generates a client method for each row of the protocol's table but `initialize`, which the
/// driver sends.
macro_rules! methods {
    (Initialize initialize = $handshake:literal,
        $scheduling:ident, $replay:ident, $effect:ident: $params:ident => $response:ident;
     $($name:ident $function:ident = $wire:literal,
        $rest_scheduling:ident, $rest_replay:ident, $rest_effect:ident: $rest_params:ident => $rest_response:ident;)*) => {
        /// One method for each method of the protocol but `initialize`.
        impl ExecServerClient {
            $(
                #[doc = concat!("`", $wire, "`")]
                pub async fn $function(
                    &self,
                    params: <rpc::$name as Rpc>::Params,
                ) -> Result<<rpc::$name as Rpc>::Response, ExecServerError> {
                    self.call::<rpc::$name>(params).await
                }
            )*
        }
    };
}

for_each_method!(methods);

//! The server: the state that all connections share, and the shutdown.

use std::path::Path;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use exec_server_host::http::{HttpClient, ProtectedVariables};
use exec_server_host::process::launch::{LaunchError, Launcher};
use exec_server_host::process::{LogTotals, StartOutcome, start_spill_thread};
use exec_server_host::sandbox::SandboxError;
use exec_server_protocol::{
    ErrorKind, ErrorSubject, LimitsStatus, ProcessCounts, RpcError, ServerLink, ServerStatus,
    SessionCounts, Subject,
};
use exec_server_telemetry::{MetricsSnapshot, short};
use exec_server_transport::{Connection, Full, MemoryBudget, SubjectLimits, SubjectPermit};
use tokio::runtime;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::Instant;

use crate::ServerConfig;
use crate::active_requests::{ActiveRequest, ActiveRequests};
use crate::adapter::{
    FilePool, ManagedProcess, NetworkClient, SandboxResolver, StartContext, Started,
    limits_support, wire_tier,
};
use crate::connection::{self, ClientConnection, ConnectionId, FLUSH_TIMEOUT};
use crate::connections::Connections;
use crate::in_process::InProcessLink;
use crate::sandboxed_peers::SandboxedPeers;
use crate::sessions::{Session, SessionRegistry};
use crate::telemetry::{ServerGauges, Telemetry};

/// How long a killed tree may take to disappear. A tree that takes longer is stuck in the kernel,
/// or its keeper was stopped.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);
/// The assumed available memory if the system does not report it.
const FALLBACK_MEMORY: u64 = 1 << 30;
/// A closed process stays readable for this long, and longer if its client is detached or lacks
/// events.
const CLOSED_RETENTION: Duration = Duration::from_secs(30);

/// How many forgotten processes justify the cost of returning memory to the system.
const FORGOTTEN_AT_ONCE: usize = 1024;

/// The operator requires a sandbox that this machine cannot enforce.
#[derive(Debug, Clone, thiserror::Error)]
#[error("cannot enforce the sandbox that `sandbox.require` demands: {0}")]
pub struct SandboxUnavailable(Arc<SandboxError>);

/// Serves connections. Clones share one server.
#[derive(Debug, Clone)]
pub struct Server {
    state: Arc<ServerState>,
}

#[derive(Debug)]
pub(crate) struct ServerState {
    pub(crate) config: ServerConfig,
    pub(crate) telemetry: Arc<Telemetry>,
    started: Instant,
    pub(crate) log_totals: Arc<LogTotals>,
    pub(crate) launcher: Launcher,
    pub(crate) files: FilePool,
    /// Separate from `files`, because a search waits for its client to read the results.
    pub(crate) searches: FilePool,
    pub(crate) http: HttpClient,
    /// Calls of `http/request`, until the end of the response body, and of `http/cancel`.
    pub(crate) http_requests: ActiveRequests,
    /// Feeds to clients in this program, of the processes that they own.
    pub(crate) in_process_feeds: ActiveRequests,
    /// Processes whose exit has not been reported to `telemetry` yet.
    unrecorded_ends: ActiveRequests,
    /// Applies the ceiling of the operator. The resolver of a session adds the ceilings of its
    /// owner.
    pub(crate) sandboxes: Arc<SandboxResolver>,
    pub(crate) sandboxed_peers: Arc<SandboxedPeers>,
    pub(crate) sessions: SessionRegistry,
    /// Counts running processes, in total and by subject.
    process_limits: Arc<SubjectLimits>,
    /// Held by a start with `claimName`, from the look-up of its process id in all sessions that
    /// the client sees until the process has been added.
    claiming: Mutex<()>,
    pub(crate) connections: Connections,
    pub(crate) memory: MemoryBudget,
    next_connection: AtomicU64,
    /// Tasks that are not aborted with a connection, such as session expiry and process
    /// supervision.
    background: Mutex<JoinSet<()>>,
    /// Processes that are not forgotten yet.
    known_processes: AtomicUsize,
    /// Processes forgotten since memory was last returned to the system.
    forgotten_processes: AtomicUsize,
}

impl Server {
    #[must_use]
    pub fn new(config: ServerConfig, launcher: Launcher) -> Self {
        Self::with_telemetry(config, launcher, Arc::default())
    }

    /// Creates a server that reports to `telemetry`.
    #[must_use]
    pub fn with_telemetry(
        config: ServerConfig,
        launcher: Launcher,
        telemetry: Arc<Telemetry>,
    ) -> Self {
        start_spill_thread();
        let sessions = SessionRegistry::new(
            config.max_sessions,
            config.max_sessions_per_subject,
            Arc::clone(&telemetry),
        );
        let executable = launcher.executable().map(Path::to_owned);
        let sandboxes = Arc::new(SandboxResolver::new(&config, executable));
        let memory = MemoryBudget::new(buffered_bytes(config.max_buffered_bytes));
        let protected_variables = ProtectedVariables::new(
            config.http_protected_variables.clone(),
            config.http_allowed_variables.clone(),
        );
        let process_limits =
            SubjectLimits::new(config.max_processes, config.max_processes_per_subject);
        let log_totals =
            LogTotals::bounded(config.max_retained_output_bytes, config.max_spilled_output_bytes);
        let state = ServerState {
            telemetry,
            started: Instant::now(),
            log_totals: Arc::new(log_totals),
            config,
            launcher,
            files: FilePool::default(),
            searches: FilePool::default(),
            http: HttpClient::default().protecting(protected_variables),
            http_requests: ActiveRequests::default(),
            in_process_feeds: ActiveRequests::default(),
            unrecorded_ends: ActiveRequests::default(),
            sandboxes,
            sandboxed_peers: Arc::default(),
            sessions,
            process_limits,
            claiming: Mutex::default(),
            connections: Connections::default(),
            memory,
            next_connection: AtomicU64::new(1),
            background: Mutex::default(),
            known_processes: AtomicUsize::new(0),
            forgotten_processes: AtomicUsize::new(0),
        };
        Self { state: Arc::new(state) }
    }

    /// Checks that this machine can enforce the sandbox that the operator requires. If it cannot,
    /// the server must not serve.
    pub async fn check_sandbox(&self) -> Result<(), SandboxUnavailable> {
        let sandboxes = Arc::clone(&self.state.sandboxes);
        let checked = self.state.files.compute(move || sandboxes.check_ceilings()).await;
        match checked {
            Some(Ok(())) => Ok(()),
            Some(Err(error)) => Err(SandboxUnavailable(error)),
            None => Err(SandboxUnavailable(Arc::new(SandboxError::NoThread))),
        }
    }

    /// Determines the limits tier in the background, so that later requests with limits need not
    /// wait for it. Worth its cost for a long-running server.
    pub fn prepare_limits(&self) {
        self.state.launcher.prepare_limits();
    }

    /// Serves a connection until it ends.
    pub async fn serve(&self, connection: Connection) {
        connection::serve(Arc::clone(&self.state), connection).await;
    }

    /// Opens a session for a client in this program. Must be called within a runtime.
    pub fn connect_in_process(&self, client_name: &str) -> Result<Arc<dyn ServerLink>, RpcError> {
        InProcessLink::open(&self.state, client_name)
    }

    #[cfg(test)]
    pub(crate) fn state(&self) -> &Arc<ServerState> {
        &self.state
    }

    /// Returns how many bytes of [`max_buffered_bytes`](ServerConfig::max_buffered_bytes) all
    /// connections hold now.
    #[must_use]
    pub fn buffered_bytes(&self) -> usize {
        self.state.memory.used()
    }

    /// Returns how many bytes the logs of all processes hold in memory.
    #[must_use]
    pub fn logged_bytes(&self) -> usize {
        usize::try_from(self.state.log_totals.memory_bytes()).unwrap_or(usize::MAX)
    }

    /// Returns a snapshot of all metrics.
    #[must_use]
    pub fn metrics(&self) -> MetricsSnapshot {
        self.state.telemetry.snapshot(&self.state.log_totals, &self.state.gauges())
    }

    /// Shuts the server down. It opens and resumes no session, sends TERM to every process and KILL
    /// after the grace period, lets HTTP requests and searches finish within that period and file
    /// operations within another one, and flushes the last responses and events to connected
    /// clients. Returns once no process is left; gives up on a tree that survives KILL.
    pub async fn shutdown(&self) {
        let state = &self.state;
        let grace = state.config.shutdown_grace_period;
        let deadline = Instant::now() + grace;
        state.sessions.drain();
        let last_words = state.end_processes(grace).await;
        let finished = async {
            state.http_requests.idle().await;
            state.searches.idle().await;
        };
        let _ = tokio::time::timeout_at(deadline, finished).await;
        // Let file operations finish: their responses are among the last messages.
        let _ = tokio::time::timeout(grace, state.files.idle()).await;
        let connections = state.connections.all();
        let farewell = async {
            for process in &last_words {
                process.log().wait_closed().await;
            }
            state.unrecorded_ends.idle().await;
            state.in_process_feeds.idle().await;
            for connection in &connections {
                if let Some(socket) = connection.socket() {
                    socket.outbox().idle().await;
                }
            }
        };
        let _ = tokio::time::timeout(FLUSH_TIMEOUT, farewell).await;
        for connection in connections {
            connection.give_up();
        }
        for session in state.sessions.all() {
            state.sessions.end(&session, None);
        }
        // Closed connections leave temporary files; wait for their removal.
        let _ = tokio::time::timeout(FLUSH_TIMEOUT, state.files.idle()).await;
    }
}

impl ServerState {
    pub(crate) fn start_context<'a>(
        &'a self,
        session: &'a Session,
        network_client: &'a Arc<dyn NetworkClient>,
    ) -> StartContext<'a> {
        StartContext {
            launcher: &self.launcher,
            config: &self.config,
            sandboxes: session.sandboxes(),
            sandboxed_peers: &self.sandboxed_peers,
            log_totals: &self.log_totals,
            pool: &self.files,
            network_client,
            token_limits: session.owner().limits,
        }
    }

    pub(crate) fn next_connection(&self) -> ConnectionId {
        ConnectionId(self.next_connection.fetch_add(1, Ordering::Relaxed))
    }

    /// Asks every process to end, and kills those still alive after the grace period. Returns the
    /// processes that ended; if a tree survives KILL, only those of the passes before.
    async fn end_processes(&self, grace: Duration) -> Vec<Arc<ManagedProcess>> {
        let mut ended = Vec::new();
        // Repeat: a start may have been in progress during the previous pass.
        loop {
            let alive = self.living_processes();
            if alive.is_empty() {
                return ended;
            }
            for process in &alive {
                process.shut_down(grace);
            }
            let deadline = Instant::now() + grace + KILL_TIMEOUT;
            for process in &alive {
                if tokio::time::timeout_at(deadline, process.gone()).await.is_err() {
                    tracing::error!(
                        process = process.id(),
                        "a process tree survives KILL; shutting down anyway"
                    );
                    return ended;
                }
            }
            ended.extend(alive);
        }
    }

    /// Fails if the client may not reach every host: the server's HTTP requests for a client count
    /// as the client's own. Also fails while the server shuts down.
    pub(crate) fn check_http(&self, session: &Session) -> Result<(), RpcError> {
        self.sessions.check_draining()?;
        let sandboxes = session.sandboxes();
        if sandboxes.allows_network() && sandboxes.hosts().is_empty() {
            return Ok(());
        }
        if sandboxes.allows_network() {
            let message = "http/request is unavailable because the hosts that this session may \
                           reach are restricted; run a program instead";
            return Err(RpcError::invalid_request(message).with_kind(ErrorKind::SandboxDenied));
        }
        let message = match self.sandboxes.allows_network() {
            true => "the token that opened this session does not allow network access",
            false => "the operator's sandbox does not allow network access (`sandbox.network`)",
        };
        Err(RpcError::invalid_request(message).with_kind(ErrorKind::SandboxDenied))
    }

    fn living_processes(&self) -> Vec<Arc<ManagedProcess>> {
        let sessions = self.sessions.all();
        let processes = sessions.iter().flat_map(|session| session.processes());
        processes.filter(|process| !process.is_gone()).collect()
    }

    fn gauges(&self) -> ServerGauges {
        let mut gauges = ServerGauges {
            buffered_bytes: self.memory.used(),
            file_jobs: self.files.jobs() + self.searches.jobs(),
            ..ServerGauges::default()
        };
        for session in self.sessions.all() {
            match session.connection() {
                Some(_) => gauges.attached_sessions += 1,
                None => gauges.detached_sessions += 1,
            }
            let (running, finished) = session.process_counts();
            gauges.running_processes += running;
            gauges.finished_processes += finished;
        }
        gauges
    }

    pub(crate) fn status(&self) -> ServerStatus {
        let gauges = self.gauges();
        let limits = limits_support(&self.launcher);
        ServerStatus {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            uptime_ms: u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX),
            listeners: self.telemetry.listeners().to_vec(),
            sessions: SessionCounts {
                attached: gauges.attached_sessions,
                detached: gauges.detached_sessions,
            },
            processes: ProcessCounts {
                running: gauges.running_processes,
                finished: gauges.finished_processes,
            },
            limits: LimitsStatus {
                tier: wire_tier(limits.tier),
                obstacle: limits.obstacle.as_deref().map(str::to_owned),
            },
            refusals: self.telemetry.recent_refusals(),
        }
    }

    pub(crate) fn granted_ttl(&self, asked_ms: Option<u64>) -> Duration {
        let asked = asked_ms.map_or(self.config.detached_session_ttl, Duration::from_millis);
        asked.min(self.config.max_detached_session_ttl)
    }

    /// Ends a session at once. The future resolves once its processes are gone; it gives up on a
    /// process that survives KILL.
    ///
    /// `by`: the connection that requested it, if any.
    pub(crate) fn end_session(
        &self,
        session: &Arc<Session>,
        by: Option<&ClientConnection>,
    ) -> impl Future<Output = ()> + use<> {
        self.sessions.end(session, by);
        let processes = session.processes();
        for process in &processes {
            process.abandon();
        }
        let session = Arc::clone(session);
        let deadline = Instant::now() + KILL_TIMEOUT;
        async move {
            for process in processes {
                if tokio::time::timeout_at(deadline, process.gone()).await.is_err() {
                    tracing::error!(
                        session = session.id(),
                        process = process.id(),
                        "a process tree of an ended session survives KILL"
                    );
                }
                session.forget(&process);
            }
        }
    }

    pub(crate) fn expire_later(self: &Arc<Self>, session: &Arc<Session>, until: Instant) {
        // Weak: a task of the server must not keep the server alive.
        let state = Arc::downgrade(self);
        let task = self.spawn({
            let session = Arc::clone(session);
            async move {
                tokio::time::sleep_until(until).await;
                if session.expire(until)
                    && let Some(state) = state.upgrade()
                {
                    tracing::debug!(session = session.id(), "session expired");
                    state.end_session(&session, None).await;
                }
            }
        });
        session.expires_by(until, task);
    }

    /// Starts a process of a session that is attached to this connection, within the process
    /// limits. With `claim_name`, no process that the client sees may have the same id.
    pub(crate) fn start_process(
        &self,
        session: &Session,
        connection: &ClientConnection,
        process_id: &str,
        claim_name: bool,
        start: impl FnOnce() -> Result<Started, RpcError>,
    ) -> Result<(Arc<ManagedProcess>, StartOutcome, SubjectPermit), RpcError> {
        self.sessions.check_draining()?;
        let permit = self.process_limits.admit(&session.owner().subject);
        let permit = permit.map_err(|full| {
            too_many_processes(full, &self.config, &session.owner().subject, process_id)
        })?;
        let _claiming = claim_name.then(|| self.claiming.lock());
        if claim_name
            && let Some(other) = self.sessions.find_process(process_id, connection.principal())
        {
            return Err(name_taken(&other));
        }
        let limit = self.config.max_processes_per_session;
        let (process, outcome) = session.start(connection.id(), process_id, limit, start)?;
        Ok((process, outcome, permit))
    }

    /// Supervises a process from its start until it is forgotten. The permit is held until its tree
    /// is gone.
    pub(crate) fn supervise(
        self: &Arc<Self>,
        session: Arc<Session>,
        (process, outcome, permit): (Arc<ManagedProcess>, StartOutcome, SubjectPermit),
        report: impl FnOnce(Result<(), LaunchError>) + Send + 'static,
    ) {
        self.known_processes.fetch_add(1, Ordering::Relaxed);
        let known = Known(Arc::downgrade(self));
        let recording = (Arc::clone(&self.telemetry), self.unrecorded_ends.begin());
        self.spawn(async move {
            tend(recording, session, (process, outcome, permit), report).await;
            drop(known);
        });
    }

    /// Returns the memory of forgotten processes to the system, but only after many of them or when
    /// no process is left: doing so each time would cost more than it saves.
    fn process_forgotten(&self) {
        let left = self.known_processes.fetch_sub(1, Ordering::Relaxed) - 1;
        let forgotten = self.forgotten_processes.fetch_add(1, Ordering::Relaxed) + 1;
        if left > 0 && forgotten < FORGOTTEN_AT_ONCE {
            return;
        }
        self.forgotten_processes.store(0, Ordering::Relaxed);
        for connection in self.connections.all() {
            if let Some(socket) = connection.socket() {
                socket.drop_finished_feeds();
            }
        }
        self.reap();
        exec_server_host::return_freed_memory();
    }

    /// Frees the memory of finished tasks.
    fn reap(&self) {
        let mut background = self.background();
        while background.try_join_next().is_some() {}
    }

    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) -> AbortHandle {
        self.reap();
        self.background().spawn(task)
    }

    /// Like [`Self::spawn`], from a thread outside the runtime.
    pub(crate) fn spawn_on(
        &self,
        runtime: &runtime::Handle,
        task: impl Future<Output = ()> + Send + 'static,
    ) {
        self.reap();
        self.background().spawn_on(task, runtime);
    }

    fn background(&self) -> MutexGuard<'_, JoinSet<()>> {
        self.background.lock().expect("no code panics while it holds the background tasks")
    }
}

fn buffered_bytes(configured: u64) -> usize {
    let bytes = match configured {
        0 => exec_server_host::available_memory().unwrap_or(FALLBACK_MEMORY) / 4,
        bytes => bytes,
    };
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

fn name_taken(other: &ManagedProcess) -> RpcError {
    let (name, has_exited) = (other.id(), other.log().progress().exit.is_some());
    let what = match (other.is_over(), has_exited) {
        (true, _) => "a finished process that is still readable",
        (false, true) => "a process that has exited but still has descendants or unread output",
        (false, false) => "a running process",
    };
    let message = format!("the name {name:?} is taken by {what}");
    RpcError::invalid_request(message).with_kind(ErrorKind::NameTaken)
}

fn too_many_processes(
    full: Full,
    config: &ServerConfig,
    subject: &Subject,
    process_id: &str,
) -> RpcError {
    let message = match full {
        Full::Server => {
            format!("the server already runs {} processes (max_processes)", config.max_processes)
        }
        Full::Subject => format!(
            "subject {:?} already runs {} processes (max_processes_per_subject)",
            short(&subject.to_string()),
            config.max_processes_per_subject
        ),
    };
    let subject = ErrorSubject::Process(process_id.to_owned());
    RpcError::invalid_request(message).with_kind(ErrorKind::TooManyProcesses).about(subject)
}

async fn tend(
    (telemetry, unrecorded_end): (Arc<Telemetry>, ActiveRequest),
    session: Arc<Session>,
    (process, outcome, permit): (Arc<ManagedProcess>, StartOutcome, SubjectPermit),
    report: impl FnOnce(Result<(), LaunchError>),
) {
    match outcome.await {
        Ok(Ok(())) => report(Ok(())),
        Ok(Err(error)) => {
            session.forget(&process);
            drop(permit);
            return report(Err(error));
        }
        // The task of the process is gone, for example because the runtime is shutting down.
        Err(_) => return session.forget(&process),
    }
    process.log().wait_closed().await;
    let exit = process.log().progress().exit;
    let limits_hit = exit.map(|exit| process.limits_hit(&exit)).unwrap_or_default();
    telemetry.process_exited(&session, process.id(), exit.as_ref(), limits_hit);
    drop(unrecorded_end);
    process.gone().await;
    session.finished(&process);
    drop(permit);
    while !process.is_abandoned() {
        tokio::select! {
            () = tokio::time::sleep(CLOSED_RETENTION) => {}
            // No client can read the output any more; it would only take memory.
            () = session.ended() => break,
        }
        if session.has_delivered(&process) {
            break;
        }
    }
    session.forget(&process);
}

/// A supervised process; dropped when it is forgotten.
struct Known(Weak<ServerState>);

impl Drop for Known {
    fn drop(&mut self) {
        if let Some(state) = self.0.upgrade() {
            state.process_forgotten();
        }
    }
}

#[cfg(test)]
mod tests {
    use exec_server_protocol::Principal;
    use exec_server_transport::{Received, memory};

    use super::*;

    /// Returns a server whose client has a finished process and all of its events.
    async fn with_a_finished_process() -> (Arc<ServerState>, Connection, Weak<ManagedProcess>) {
        let server = Server::new(ServerConfig::default(), Launcher::plain());
        let state = Arc::clone(&server.state);
        let (mut ours, theirs) = memory();
        tokio::spawn(async move { server.serve(theirs).await });
        for message in [
            r#"{"id":1,"method":"initialize","params":{"clientName":"t","acks":true}}"#,
            r#"{"method":"initialized"}"#,
            r#"{"id":2,"method":"process/start",
                "params":{"processId":"p","argv":["/bin/echo","a"],"cwd":"file:///"}}"#,
        ] {
            ours.outgoing.push(message.as_bytes());
        }
        ours.outgoing.flush().await.unwrap();
        let mut received = String::new();
        while !received.contains("process/closed") {
            match ours.incoming.recv().await {
                Some(Received::Message(message)) => {
                    received = String::from_utf8_lossy(&message).into();
                }
                other => panic!("{other:?} after {received}"),
            }
        }
        let process = {
            let process = state.sessions.find_process("p", &Principal::local()).unwrap();
            process.log().confirm(u64::MAX);
            process.gone().await;
            while !process.is_over() {
                tokio::task::yield_now().await;
            }
            Arc::downgrade(&process)
        };
        (state, ours, process)
    }

    #[tokio::test]
    async fn a_finished_process_is_forgotten_with_its_session() {
        let (state, mut ours, process) = with_a_finished_process().await;
        ours.outgoing.push(br#"{"id":3,"method":"session/close","params":{}}"#);
        ours.outgoing.flush().await.unwrap();
        while process.strong_count() > 0 {
            tokio::task::yield_now().await;
        }
        assert_eq!(state.known_processes.load(Ordering::Relaxed), 0);
    }

    #[tokio::test]
    async fn a_forgotten_process_leaves_nothing_behind() {
        let (state, _ours, process) = with_a_finished_process().await;
        tokio::time::pause();
        for _ in 0..100 {
            tokio::time::advance(CLOSED_RETENTION).await;
        }
        assert_eq!(process.strong_count(), 0);
        assert_eq!(state.known_processes.load(Ordering::Relaxed), 0);
        state.reap();
        assert!(state.background().is_empty());
    }
}

//! One process as the protocol sees it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use exec_server_host::process::launch::{Command, EndedBy, ExitRecord, PtySize, Signal};
use exec_server_host::process::{
    Budget, ConfinementFuture, Cursor, Entry, Event, Log, LogLimits, OfferError, Process,
    StartOutcome, StdinClosed, Stream, Terminate, Ticket,
};
use exec_server_host::sandbox::{NetworkEnforcement as HostEnforcement, Plan};
use exec_server_protocol::{
    Base64Bytes, ClosedNotification, Denial, Enforcement, ErrorKind, ErrorSubject, ExitDetails,
    ExitedNotification, LimitName, NetworkEnforcement, NetworkUse, OutputChunk, OutputNotification,
    OutputStream, ReadParams, ReadResponse, RefusedHost, RpcError, ServerNotification, SignalName,
    SnapshotResponse, TerminalSize, TerminateMode, WaitParams, WaitResponse, WriteParams,
    WriteStatus,
};
use tokio::sync::oneshot;

use super::limits::GrantedLimits;
use super::names::check_name;
use super::start::{RequestedConfinement, StartContext, planned};

/// Which method names a process's notifications use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NotificationDialect {
    Current,
    /// `command/exec/…`
    Legacy,
}

/// A process of this machine: wire types in, host actions out. The `process_id` in params was used
/// to find it and is not checked again.
#[derive(Debug)]
pub(crate) struct ManagedProcess {
    id: String,
    pub(super) argv: Vec<String>,
    dialect: NotificationDialect,
    pub(super) process: Process,
    /// Set before a sandboxed program runs.
    sandbox: Arc<OnceLock<Arc<Plan>>>,
    limits: GrantedLimits,
    /// The process has closed and left nothing running. Its session then counts it as finished.
    over: AtomicBool,
    /// No longer wanted; see [`Self::abandon`].
    abandoned: AtomicBool,
    /// The last event that the owner's socket seems to have read, if receipt confirms events.
    /// Counts even if the session had left that connection.
    received: AtomicU64,
}

pub(crate) struct Started {
    pub(crate) process: ManagedProcess,
    pub(crate) outcome: StartOutcome,
}

pub(crate) enum Written {
    Done(WriteStatus),
    /// Queued beyond the bound; the response waits for the child to read.
    Waiting(Ticket),
}

/// Maximum content of one response to `process/read`.
const READ_BUDGET: Budget = Budget { bytes: 16 << 20, events: 50_000 };

impl ManagedProcess {
    pub(super) fn spawn(
        context: StartContext<'_>,
        command: Command,
        asked: Option<RequestedConfinement>,
        limits: LogLimits,
        granted: GrantedLimits,
        (id, argv, dialect): (String, Vec<String>, NotificationDialect),
    ) -> Started {
        let sandbox = Arc::new(OnceLock::new());
        let (registered, is_registered) = oneshot::channel::<()>();
        let confining = asked.map(|asked| {
            let (cwd, sandbox) = (command.cwd.clone(), Arc::clone(&sandbox));
            let planned = planned(context, asked, id.clone(), cwd, sandbox);
            let confining = async {
                let confinement = planned.await;
                let _ = is_registered.await;
                confinement
            };
            Box::pin(confining) as ConfinementFuture
        });
        let is_sandboxed = confining.is_some();
        let timeout = granted.timeout_ms().map(Duration::from_millis);
        let launcher = context.launcher.clone();
        let (process, outcome) = Process::start(launcher, command, confining, limits, timeout);
        if is_sandboxed {
            context.sandboxed_peers.register(process.location());
        }
        drop(registered);
        Started {
            process: Self {
                id,
                argv,
                dialect,
                process,
                sandbox,
                limits: granted,
                over: AtomicBool::new(false),
                abandoned: AtomicBool::new(false),
                received: AtomicU64::new(0),
            },
            outcome,
        }
    }

    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    pub(crate) fn dialect(&self) -> NotificationDialect {
        self.dialect
    }

    pub(crate) fn log(&self) -> &Log {
        self.process.log()
    }

    /// Returns `None` without a sandbox.
    pub(crate) fn enforcement(&self) -> Option<Enforcement> {
        let active = self.sandbox.get()?.enforcement();
        Some(Enforcement {
            landlock: active.landlock,
            seccomp: active.seccomp,
            pid_namespace: active.pid_namespace,
            network_namespace: active.network_namespace,
            bubblewrap: active.bubblewrap,
            network: match active.network {
                HostEnforcement::None => None,
                HostEnforcement::NoNetwork => Some(NetworkEnforcement::None),
                HostEnforcement::Transparent => Some(NetworkEnforcement::Transparent),
                HostEnforcement::ProxyOnly => Some(NetworkEnforcement::Proxy),
            },
        })
    }

    pub(crate) fn limits(&self) -> &GrantedLimits {
        &self.limits
    }

    pub(crate) fn limits_hit(&self, exit: &ExitRecord) -> Vec<LimitName> {
        self.limits.hit(exit, timed_out(*exit))
    }

    /// Returns the access that the sandbox seems to have denied. Known once the process has exited.
    pub(crate) fn denial(&self) -> Option<Denial> {
        let denial = self.process.denial()?.clone();
        let host = denial.host.map(|host| refused_host(&host).to_string());
        Some(Denial { path: denial.path, call: denial.call, host })
    }

    /// Confirms that the client has everything up to `seq`. A number beyond the log is ignored.
    pub(crate) fn confirm(&self, seq: u64) {
        if seq < self.log().progress().next_seq {
            self.log().confirm(seq);
        }
    }

    pub(crate) fn note_received(&self, seq: u64) {
        self.received.fetch_max(seq, Ordering::Relaxed);
    }

    /// Returns whether the owner is known to have the last event.
    pub(crate) fn is_delivered(&self) -> bool {
        let read = self.received.load(Ordering::Relaxed).max(self.log().confirmed());
        read + 1 >= self.log().progress().next_seq
    }

    pub(crate) fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    /// Marks the process as over. Returns false if it already was.
    pub(crate) fn set_over(&self) -> bool {
        !self.over.swap(true, Ordering::Relaxed)
    }

    /// Kills a process that is no longer wanted. Its log no longer keeps events for the owner.
    pub(crate) fn abandon(&self) {
        self.abandoned.store(true, Ordering::Relaxed);
        self.terminate(TerminateMode::Force);
        self.log().forget_owner();
    }

    pub(crate) fn is_abandoned(&self) -> bool {
        self.abandoned.load(Ordering::Relaxed)
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.process.is_gone()
    }

    pub(crate) async fn gone(&self) {
        self.process.gone().await;
    }

    pub(crate) async fn wait_for_news(&self, params: &ReadParams) {
        let wait = Duration::from_millis(params.wait_ms.unwrap_or(0));
        if !wait.is_zero() {
            let news = self.log().wait_beyond(params.after_seq.unwrap_or(0));
            let _ = tokio::time::timeout(wait, news).await;
        }
    }

    pub(crate) async fn read_now(&self, params: &ReadParams) -> ReadResponse {
        let after = params.after_seq.unwrap_or(0);
        let bytes = params.max_bytes.unwrap_or(u64::MAX).min(READ_BUDGET.bytes);
        let mut cursor = Cursor::after(self.log(), after);
        let page = cursor.read(self.log(), Budget { bytes, ..READ_BUDGET }).await;
        let chunks = page.events.into_iter().filter_map(|delivered| match delivered.entry.event {
            Event::Output { stream, bytes } => Some(OutputChunk {
                seq: delivered.entry.seq,
                stream: wire_stream(stream),
                chunk: Base64Bytes::from(bytes),
            }),
            Event::Exited(_) | Event::Closed => None,
        });
        let chunks: Vec<_> = chunks.collect();
        let next_seq = match chunks.last() {
            Some(last) if !page.complete => last.seq + 1,
            _ => page.progress.next_seq,
        };
        let exit = page.progress.exit;
        let denied = self.denial();
        ReadResponse {
            chunks,
            next_seq,
            exited: exit.is_some(),
            exit_code: exit.map(|exit| exit.code),
            closed: page.progress.closed,
            failure: page.progress.failure,
            sandbox_denied: denied.is_some(),
            denied,
            dropped_bytes: page.dropped,
            exit: exit.map(|exit| self.exit_details(&exit)),
        }
    }

    /// Queues input synchronously, in the order of the calls; only the response may have to wait.
    pub(crate) fn offer(&self, params: WriteParams) -> Result<Written, RpcError> {
        let id = &self.id;
        match params.write_id.as_deref() {
            Some("") => {
                let subject = ErrorSubject::Process(id.clone());
                let message = "writeId must not be empty; omit it, or give each write its own";
                return Err(RpcError::invalid_params(message).about(subject));
            }
            Some(write_id) => check_name("writeId", write_id)?,
            None => {}
        }
        match self.process.offer_input(params.chunk.into_bytes(), params.write_id.as_deref()) {
            Ok(ticket) => Ok(match self.process.accepted_now(ticket) {
                Some(accepted) => Written::Done(write_status(accepted)),
                None => Written::Waiting(ticket),
            }),
            Err(OfferError::Closed) => Ok(Written::Done(WriteStatus::StdinClosed)),
            Err(error) => Err(stdin_rpc_error(id, &error)),
        }
    }

    /// Waits until queued input has been accepted, or stdin has closed.
    pub(crate) async fn accepted(&self, ticket: Ticket) -> WriteStatus {
        write_status(self.process.accepted(ticket).await)
    }

    /// Closes stdin after all queued input; a terminal gets an end-of-file character.
    pub(crate) fn close_stdin(&self) -> Result<WriteStatus, RpcError> {
        match self.process.close_input() {
            Ok(()) => Ok(WriteStatus::Accepted),
            Err(OfferError::Closed) => Ok(WriteStatus::StdinClosed),
            Err(error) => Err(stdin_rpc_error(&self.id, &error)),
        }
    }

    pub(crate) fn resize(&self, size: TerminalSize) -> Result<(), RpcError> {
        if !self.process.tty() {
            let message =
                format!("process {:?} has no terminal to resize; start it with tty", self.id);
            return Err(RpcError::invalid_request(message));
        }
        self.process.resize(pty_size(size));
        Ok(())
    }

    /// Does nothing once the process has exited.
    pub(crate) fn signal(&self, signal: SignalName) {
        self.process.signal(match signal {
            SignalName::Interrupt => Signal::Interrupt,
            SignalName::Terminate => Signal::Terminate,
            SignalName::Kill => Signal::Kill,
            SignalName::Hangup => Signal::Hangup,
            SignalName::Quit => Signal::Quit,
            SignalName::User1 => Signal::User1,
            SignalName::User2 => Signal::User2,
            SignalName::Stop => Signal::Stop,
            SignalName::Continue => Signal::Continue,
        });
    }

    /// Ends the whole tree. Returns whether the process itself was running.
    pub(crate) fn terminate(&self, mode: TerminateMode) -> bool {
        self.process.terminate(match mode {
            TerminateMode::Force => Terminate::Force,
            TerminateMode::Graceful { timeout_ms } => {
                Terminate::Graceful(Duration::from_millis(timeout_ms))
            }
        })
    }

    pub(crate) fn shut_down(&self, grace: Duration) {
        self.process.shut_down(Terminate::Graceful(grace));
    }

    pub(crate) async fn wait(&self, params: &WaitParams) -> WaitResponse {
        let exited = self.log().wait_exited();
        match params.timeout_ms {
            Some(timeout) => {
                let _ = tokio::time::timeout(Duration::from_millis(timeout), exited).await;
            }
            None => exited.await,
        }
        let progress = self.log().progress();
        let exit = progress.exit;
        WaitResponse {
            exited: progress.exit.is_some(),
            exit_code: progress.exit.map(|exit| exit.code),
            signal: progress.exit.and_then(|exit| exit.signal),
            closed: progress.closed,
            timed_out: progress.exit.is_some_and(timed_out),
            server_stopped: progress.exit.is_some_and(server_stopped),
            limits_hit: exit.map(|exit| self.limits_hit(&exit)).unwrap_or_default(),
            peak_memory_bytes: exit
                .and_then(|exit| exit.tree_use)
                .map(|tree| tree.peak_memory_bytes),
            tree_cpu_ms: exit.and_then(|exit| exit.tree_use).map(|tree| millis(tree.cpu)),
        }
    }

    fn exit_details(&self, exit: &ExitRecord) -> ExitDetails {
        ExitDetails {
            signal: exit.signal,
            duration_ms: millis(exit.duration),
            cpu_ms: millis(exit.cpu),
            max_rss_bytes: exit.max_rss_bytes,
            timed_out: timed_out(*exit),
            server_stopped: server_stopped(*exit),
            limits_hit: self.limits_hit(exit),
            peak_memory_bytes: exit.tree_use.map(|tree| tree.peak_memory_bytes),
            tree_cpu_ms: exit.tree_use.map(|tree| millis(tree.cpu)),
            network: self.process.network_use().map(|network| {
                Box::new(NetworkUse {
                    bytes_up: network.bytes_up,
                    bytes_down: network.bytes_down,
                    refused: network.refused.iter().map(refused_host).collect(),
                    refused_more: network.refused_more,
                })
            }),
        }
    }

    pub(crate) fn snapshot(&self) -> SnapshotResponse {
        let snapshot = self.log().snapshot();
        SnapshotResponse {
            stdout: Base64Bytes::from(snapshot.stdout),
            stderr: Base64Bytes::from(snapshot.stderr),
            terminal: Base64Bytes::from(snapshot.terminal),
            truncated: snapshot.truncated,
            exit_code: snapshot.exit.map(|exit| exit.code),
            running: snapshot.exit.is_none(),
        }
    }
}

fn stdin_rpc_error(process_id: &str, error: &OfferError) -> RpcError {
    let message = error.to_string();
    let told = match error {
        OfferError::Full { .. } => {
            let message = format!("{message}; wait for the responses to earlier writes");
            RpcError::invalid_request(message).with_kind(ErrorKind::StdinFull)
        }
        OfferError::Closed | OfferError::IdReused { .. } => RpcError::invalid_params(message),
    };
    told.about(ErrorSubject::Process(process_id.to_owned()))
}

fn write_status(accepted: Result<(), StdinClosed>) -> WriteStatus {
    match accepted {
        Ok(()) => WriteStatus::Accepted,
        Err(StdinClosed) => WriteStatus::StdinClosed,
    }
}

pub(crate) fn wire_stream(stream: Stream) -> OutputStream {
    match stream {
        Stream::Stdout => OutputStream::Stdout,
        Stream::Stderr => OutputStream::Stderr,
        Stream::Pty => OutputStream::Pty,
    }
}

/// Converts an event of the log to the notification for the owner, or for an observer of a session.
pub(crate) fn event_notification(
    process: &ManagedProcess,
    observed_session: Option<&str>,
    entry: &Entry,
    dropped_bytes: u64,
) -> ServerNotification {
    let (process_id, seq) = (process.id().to_owned(), entry.seq);
    let session_id = observed_session.map(str::to_owned);
    match &entry.event {
        Event::Output { stream, bytes } => {
            let (stream, chunk) = (wire_stream(*stream), Base64Bytes::from(bytes.clone()));
            let output =
                OutputNotification { process_id, session_id, seq, stream, chunk, dropped_bytes };
            output.into()
        }
        Event::Exited(exit) => {
            let denied = process.denial();
            let exited = ExitedNotification {
                process_id,
                session_id,
                seq,
                exit_code: exit.code,
                sandbox_denied: denied.is_some(),
                denied,
                dropped_bytes,
                exit: Some(process.exit_details(exit)),
            };
            exited.into()
        }
        Event::Closed => ClosedNotification { process_id, session_id, seq, dropped_bytes }.into(),
    }
}

fn refused_host(host: &exec_server_host::network::gate::RefusedHost) -> RefusedHost {
    RefusedHost { host: host.host.clone(), port: host.port }
}

pub(super) fn timed_out(exit: ExitRecord) -> bool {
    exit.ended_by == Some(EndedBy::Deadline)
}

fn server_stopped(exit: ExitRecord) -> bool {
    exit.ended_by == Some(EndedBy::Shutdown)
}

pub(super) fn pty_size(size: TerminalSize) -> PtySize {
    PtySize { rows: size.rows, cols: size.cols }
}

pub(super) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

//! One process as the protocol sees it.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use exec_server_host::process::launch::{
    Command, ExitRecord, Io, LaunchError, Launcher, PtySize, Signal,
};
use exec_server_host::process::{
    Budget, Cursor, EnvironmentPolicy, Event, Inherit, Log, LogLimits, OfferError, OnFull,
    PatternError, Process, StartOutcome, StdinClosed, Stream, Terminate, Ticket,
};
use exec_server_protocol::{
    Base64Bytes, EnvInherit, EnvPolicy, ErrorCode, ExecMode, ExecParams, ExitDetails, OutputChunk,
    OutputStream, ProcessSummary, ReadParams, ReadResponse, RpcError, SignalName, SnapshotResponse,
    StartParams, TerminalSize, TerminateMode, WaitParams, WaitResponse, WriteParams, WriteStatus,
};

use crate::ServerConfig;

/// The names by which a process's notifications go out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Vocabulary {
    Current,
    /// `command/exec/…`
    Legacy,
}

/// A process of this machine: wire types in, host actions out.
#[derive(Debug)]
pub struct LocalProcess {
    id: String,
    argv: Vec<String>,
    vocabulary: Vocabulary,
    process: Process,
    /// Closed, with nothing left running; its session keeps count.
    over: AtomicBool,
    /// The last event that some client's socket is known to have read, acked or not.
    received: AtomicU64,
}

/// A process that has been asked for, and the news whether it runs.
pub(crate) struct Started {
    pub(crate) process: LocalProcess,
    pub(crate) outcome: StartOutcome,
}

/// What became of a write.
pub(crate) enum Written {
    Done(WriteStatus),
    /// Queued beyond the bound; the answer waits for the child to read.
    Waiting(Ticket),
}

/// The most that one `process/read` returns.
const READ_BUDGET: Budget = Budget { bytes: 16 << 20, events: 50_000 };
const DEFAULT_SIZE: PtySize = PtySize { rows: 24, cols: 80 };

impl LocalProcess {
    /// Checks what a client asks for and starts it.
    pub(crate) fn start(
        launcher: &Launcher,
        config: &ServerConfig,
        params: StartParams,
    ) -> Result<Started, RpcError> {
        check_permitted(config, &params)?;
        let env = match &params.env_policy {
            Some(policy) => environment(policy, &params.env).map_err(|error| {
                RpcError::invalid_params(format!("process {:?}: {error}", params.process_id))
            })?,
            None => pairs(&params.env),
        };
        let on_full = match params.on_full {
            exec_server_protocol::OnFull::Block => OnFull::Block,
            exec_server_protocol::OnFull::Discard => OnFull::Discard,
        };
        let command = Command {
            argv: params.argv.iter().map(OsString::from).collect(),
            arg0: params.arg0.map(OsString::from),
            cwd: params.cwd.into_path(),
            env,
            io: match params.tty {
                true => Io::Pty(params.size.map_or(DEFAULT_SIZE, pty_size)),
                false => Io::Pipes { stdin: params.pipe_stdin },
            },
            kill_on_exit: params.kill_on_exit,
        };
        let limits = LogLimits {
            memory_bytes: config.retained_output_bytes_per_process,
            spill_bytes: config.spill_output_bytes_per_process,
            on_full,
        };
        let identity = (params.process_id, params.argv, Vocabulary::Current);
        Ok(Self::spawn(launcher, command, limits, identity))
    }

    /// The same for the v0 name.
    pub(crate) fn start_legacy(
        launcher: &Launcher,
        config: &ServerConfig,
        params: ExecParams,
    ) -> Result<Started, RpcError> {
        check_argv(&params.process_id, &params.argv)?;
        check_mode(config, &params.process_id, ExecMode::Direct)?;
        let retained = config.retained_output_bytes_per_process;
        let cap = params.output_bytes_cap.and_then(|cap| usize::try_from(cap).ok());
        let command = Command {
            argv: params.argv.iter().map(OsString::from).collect(),
            arg0: params.arg0.map(OsString::from),
            cwd: params.cwd.into_path(),
            env: pairs(&params.env),
            io: if params.tty { Io::Pty(DEFAULT_SIZE) } else { Io::Pipes { stdin: false } },
            kill_on_exit: false,
        };
        let limits = LogLimits {
            memory_bytes: cap.map_or(retained, |cap| cap.min(retained)),
            spill_bytes: config.spill_output_bytes_per_process,
            on_full: OnFull::Block,
        };
        let identity = (params.process_id, params.argv, Vocabulary::Legacy);
        Ok(Self::spawn(launcher, command, limits, identity))
    }

    fn spawn(
        launcher: &Launcher,
        command: Command,
        limits: LogLimits,
        (id, argv, vocabulary): (String, Vec<String>, Vocabulary),
    ) -> Started {
        let (process, outcome) = Process::start(launcher.clone(), command, limits);
        Started {
            process: Self {
                id,
                argv,
                vocabulary,
                process,
                over: AtomicBool::new(false),
                received: AtomicU64::new(0),
            },
            outcome,
        }
    }

    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    pub(crate) fn vocabulary(&self) -> Vocabulary {
        self.vocabulary
    }

    pub(crate) fn log(&self) -> &Log {
        self.process.log()
    }

    pub(crate) fn note_received(&self, seq: u64) {
        self.received.fetch_max(seq, Ordering::Relaxed);
    }

    /// Whether a client has read the last event there is.
    pub(crate) fn is_delivered(&self) -> bool {
        let read = self.received.load(Ordering::Relaxed).max(self.log().confirmed());
        read + 1 >= self.log().progress().next_seq
    }

    pub(crate) fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    /// False when it was over before.
    pub(crate) fn set_over(&self) -> bool {
        !self.over.swap(true, Ordering::Relaxed)
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.process.is_gone()
    }

    pub(crate) async fn gone(&self) {
        self.process.gone().await;
    }

    /// Waits as long as the client asked for something new.
    pub(crate) async fn wait_for_news(&self, params: &ReadParams) {
        let wait = Duration::from_millis(params.wait_ms.unwrap_or(0));
        if !wait.is_zero() {
            let news = self.log().wait_beyond(params.after_seq.unwrap_or(0));
            let _ = tokio::time::timeout(wait, news).await;
        }
    }

    pub(crate) async fn read(&self, params: &ReadParams) -> ReadResponse {
        let after = params.after_seq.unwrap_or(0);
        let bytes = params.max_bytes.unwrap_or(u64::MAX).min(READ_BUDGET.bytes);
        let mut cursor = Cursor::after(self.log(), after);
        let page = cursor.read(self.log(), Budget { bytes, ..READ_BUDGET }).await;
        let chunks = page.events.into_iter().filter_map(|delivered| match delivered.entry.event {
            Event::Output { stream, bytes } => Some(OutputChunk {
                seq: delivered.entry.seq,
                stream: wire_stream(stream),
                chunk: Base64Bytes(bytes),
            }),
            Event::Exited(_) | Event::Closed => None,
        });
        let chunks: Vec<_> = chunks.collect();
        let next_seq = match chunks.last() {
            Some(last) if !page.complete => last.seq + 1,
            _ => page.progress.next_seq,
        };
        let exit = page.progress.exit;
        ReadResponse {
            chunks,
            next_seq,
            exited: exit.is_some(),
            exit_code: exit.map(|exit| exit.code),
            closed: page.progress.closed,
            failure: page.progress.failure,
            sandbox_denied: false,
            dropped_bytes: page.dropped,
            exit: exit.map(|exit| exit_details(&exit)),
        }
    }

    /// Takes input at once, in the order of the calls; only the answer may have to wait.
    pub(crate) fn write(&self, params: WriteParams) -> Result<Written, RpcError> {
        let id = &params.process_id;
        if params.write_id.as_deref() == Some("") {
            return Err(RpcError::invalid_params(format!("process {id:?}: writeId is empty")));
        }
        match self.process.offer_input(params.chunk.0, params.write_id.as_deref()) {
            Ok(ticket) => Ok(match self.process.accepted_now(ticket) {
                Some(accepted) => Written::Done(write_status(accepted)),
                None => Written::Waiting(ticket),
            }),
            Err(OfferError::Closed) => Ok(Written::Done(WriteStatus::StdinClosed)),
            Err(error) => Err(stdin_refusal(id, error)),
        }
    }

    /// Waits until input that was taken is accepted or never will be.
    pub(crate) async fn accepted(&self, ticket: Ticket) -> WriteStatus {
        write_status(self.process.accepted(ticket).await)
    }

    pub(crate) fn close_stdin(&self) -> Result<WriteStatus, RpcError> {
        match self.process.close_input() {
            Ok(()) => Ok(WriteStatus::Accepted),
            Err(OfferError::Closed) => Ok(WriteStatus::StdinClosed),
            Err(error) => Err(stdin_refusal(&self.id, error)),
        }
    }

    pub(crate) fn resize(&self, size: TerminalSize) -> Result<(), RpcError> {
        if !self.process.tty() {
            let message = format!("process {:?} has no terminal to resize", self.id);
            return Err(RpcError::invalid_request(message));
        }
        self.process.resize(pty_size(size));
        Ok(())
    }

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

    /// Says whether the process was running.
    pub(crate) fn terminate(&self, mode: TerminateMode) -> bool {
        self.process.terminate(match mode {
            TerminateMode::Force => Terminate::Force,
            TerminateMode::Graceful { timeout_ms } => {
                Terminate::Graceful(Duration::from_millis(timeout_ms))
            }
        })
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
        WaitResponse {
            exited: progress.exit.is_some(),
            exit_code: progress.exit.map(|exit| exit.code),
            signal: progress.exit.and_then(|exit| exit.signal),
            closed: progress.closed,
        }
    }

    pub(crate) fn snapshot(&self) -> SnapshotResponse {
        let snapshot = self.log().snapshot();
        SnapshotResponse {
            stdout: Base64Bytes(snapshot.stdout),
            stderr: Base64Bytes(snapshot.stderr),
            terminal: Base64Bytes(snapshot.terminal),
            truncated: snapshot.truncated,
            exit_code: snapshot.exit.map(|exit| exit.code),
            running: snapshot.exit.is_none(),
        }
    }

    pub(crate) async fn summary(&self) -> ProcessSummary {
        let progress = self.log().progress();
        let started_at = self.process.started_at().duration_since(SystemTime::UNIX_EPOCH);
        ProcessSummary {
            process_id: self.id.clone(),
            argv: self.argv.clone(),
            tty: self.process.tty(),
            running: progress.exit.is_none(),
            exit_code: progress.exit.map(|exit| exit.code),
            started_at_ms: millis(started_at.unwrap_or_default()),
            next_seq: progress.next_seq,
            descendants: self.process.descendants().await as u64,
        }
    }
}

fn stdin_refusal(process_id: &str, error: OfferError) -> RpcError {
    let message = format!("process {process_id:?}: {error}");
    match error {
        OfferError::Full { .. } => {
            let message = format!("{message}; await the answers of earlier writes");
            RpcError::invalid_request(message).with_kind("stdinFull")
        }
        OfferError::Closed | OfferError::IdReused => RpcError::invalid_params(message),
    }
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

pub(crate) fn exit_details(exit: &ExitRecord) -> ExitDetails {
    ExitDetails {
        signal: exit.signal,
        duration_ms: millis(exit.duration),
        cpu_ms: millis(exit.cpu),
        max_rss_bytes: exit.max_rss_bytes,
    }
}

/// Why a program was not started, in the words and codes of the protocol.
pub(crate) fn start_error(process_id: &str, error: &LaunchError) -> RpcError {
    let (code, kind) = match error {
        LaunchError::WorkingDirectory { source, .. } => match source.kind() {
            io::ErrorKind::NotFound => (ErrorCode::NotFound, "cwdNotFound"),
            _ => (ErrorCode::InvalidParams, "badCwd"),
        },
        LaunchError::NotFound { .. } => (ErrorCode::InvalidRequest, "programNotFound"),
        LaunchError::NotExecutable { .. } | LaunchError::NoInterpreter { .. } => {
            (ErrorCode::InvalidRequest, "notExecutable")
        }
        LaunchError::NoProgram
        | LaunchError::ArgumentsTooLong { .. }
        | LaunchError::NulByte { .. }
        | LaunchError::EnvironmentName { .. } => (ErrorCode::InvalidParams, "badCommand"),
        LaunchError::Resources { .. } => (ErrorCode::InternalError, "outOfResources"),
        LaunchError::SpawnerUnavailable { .. }
        | LaunchError::KeeperLost { .. }
        | LaunchError::Setup { .. } => (ErrorCode::InternalError, "cannotStart"),
    };
    RpcError::new(code, format!("process {process_id:?}: {error}")).with_kind(kind)
}

fn check_permitted(config: &ServerConfig, params: &StartParams) -> Result<(), RpcError> {
    let id = &params.process_id;
    check_argv(id, &params.argv)?;
    check_mode(config, id, params.mode)?;
    if params.mode == ExecMode::Prepared
        && (params.env_policy.is_some() || params.sandbox.is_some())
    {
        return Err(RpcError::invalid_params(format!(
            "process {id:?}: mode \"prepared\" takes neither envPolicy nor sandbox"
        )));
    }
    if params.size.is_some() && !params.tty {
        return Err(RpcError::invalid_params(format!("process {id:?}: size needs tty")));
    }
    if params.asks_for_managed_network() {
        return Err(RpcError::invalid_request(format!(
            "process {id:?}: this server has no managed networking and does not start without it"
        ))
        .with_kind("managedNetworkUnavailable"));
    }
    if params.sandbox.as_ref().is_some_and(|sandbox| !sandbox.asks_for_nothing()) {
        return Err(RpcError::invalid_request(format!(
            "process {id:?}: this server cannot enforce a sandbox and does not start without it"
        ))
        .with_kind("sandboxUnavailable"));
    }
    Ok(())
}

fn check_argv(id: &str, argv: &[String]) -> Result<(), RpcError> {
    if argv.is_empty() {
        return Err(RpcError::invalid_params(format!("process {id:?}: argv is empty")));
    }
    Ok(())
}

fn check_mode(config: &ServerConfig, id: &str, mode: ExecMode) -> Result<(), RpcError> {
    let (allowed, name) = match mode {
        ExecMode::Direct => (config.allow_direct_exec, "direct"),
        ExecMode::Prepared => (config.allow_prepared_exec, "prepared"),
    };
    if allowed {
        return Ok(());
    }
    let message = format!("process {id:?}: the operator forbids mode {name:?}");
    Err(RpcError::invalid_request(message).with_kind("modeForbidden"))
}

fn environment(
    policy: &EnvPolicy,
    on_top: &BTreeMap<String, String>,
) -> Result<Vec<(OsString, OsString)>, PatternError> {
    let policy = EnvironmentPolicy {
        inherit: match policy.inherit {
            EnvInherit::Core => Inherit::Core,
            EnvInherit::All => Inherit::All,
            EnvInherit::None => Inherit::None,
        },
        ignore_default_excludes: policy.ignore_default_excludes,
        exclude: policy.exclude.clone(),
        set: policy.set.clone(),
        include_only: policy.include_only.clone(),
    };
    let mut environment = policy.apply(std::env::vars_os())?;
    environment.extend(pairs(on_top));
    Ok(environment.into_iter().collect())
}

fn pairs(env: &BTreeMap<String, String>) -> Vec<(OsString, OsString)> {
    env.iter().map(|(name, value)| (name.into(), value.into())).collect()
}

fn pty_size(size: TerminalSize) -> PtySize {
    PtySize { rows: size.rows, cols: size.cols }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

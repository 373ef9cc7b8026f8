//! A handle to one process. It outlives connections.

use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use exec_server_protocol::{
    Base64Bytes, EffectiveLimits, ListParams, ProcessIdParams, ReadParams, ReadResponse,
    ResizeParams, SignalName, SignalParams, TerminalSize, TerminateMode, TerminateParams,
    WriteParams, WriteStatus, rpc,
};
use tokio::sync::{Mutex, OnceCell, watch};

use crate::calls::ProcessKey;
use crate::client::ExecServerClient;
use crate::events::ProcessEvents;
use crate::mirror::ProcessMirror;
use crate::{ExecServerError, call::PendingReply};

/// Maximum size of the input in one message.
const MAX_PIECE: usize = 256 << 10;
/// The end-of-file character of a terminal.
const END_OF_FILE: &[u8] = b"\x04";
/// Maximum number of unanswered pieces of one write.
const PIECES_IN_FLIGHT: usize = 8;

/// A process on the server. Clones are handles to the same process; dropping all of them leaves it
/// running while its session lasts.
#[derive(Debug, Clone)]
pub struct ExecServerProcess {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    client: ExecServerClient,
    key: ProcessKey,
    mirror: ProcessMirror,
    /// Held while the pieces of one write are sent, so that two writes do not interleave.
    writing: Mutex<()>,
    /// Distinguishes the write ids of this handle from those of any other handle.
    write_prefix: String,
    writes: AtomicU64,
    /// Queried on first use if this handle did not start the process.
    has_terminal: OnceCell<bool>,
    /// Whether the server enforces the timeout that the start asked for.
    has_deadline: bool,
    /// From the response to the start; `None` if this handle did not start the process.
    limits: Option<Box<EffectiveLimits>>,
}

/// Facts known only to the client that started the process.
#[derive(Debug, Default)]
pub(crate) struct StartFacts {
    pub(crate) has_terminal: Option<bool>,
    pub(crate) has_deadline: bool,
    pub(crate) limits: Option<Box<EffectiveLimits>>,
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.mirror.lose_handle();
    }
}

impl ExecServerProcess {
    pub(crate) fn new(
        client: ExecServerClient,
        key: ProcessKey,
        mirror: ProcessMirror,
        facts: StartFacts,
    ) -> Self {
        let shared = Shared {
            client,
            key,
            mirror,
            writing: Mutex::new(()),
            write_prefix: format!("{:08x}-", rand::random::<u32>()),
            writes: AtomicU64::new(0),
            has_terminal: OnceCell::new_with(facts.has_terminal),
            has_deadline: facts.has_deadline,
            limits: facts.limits,
        };
        Self { shared: Arc::new(shared) }
    }

    /// Whether the server itself enforces the `timeoutMs` of the start. If not, the caller must.
    /// Always false for an attached or observed process.
    #[must_use]
    pub fn has_deadline(&self) -> bool {
        self.shared.has_deadline
    }

    /// The limits of the process and their enforcement, if this client started it and it is
    /// limited.
    #[must_use]
    pub fn limits(&self) -> Option<&EffectiveLimits> {
        self.shared.limits.as_deref()
    }

    #[must_use]
    pub fn process_id(&self) -> &str {
        &self.shared.key.process_id
    }

    /// Reads the output after event `after_seq`. If there is no later event yet, waits up to `wait`
    /// for one.
    ///
    /// The output comes from this client's copy of the log or, if it was evicted there, from the
    /// server. For an observed process, evicted output is only counted in `dropped_bytes`. A caller
    /// that reads is not expected to subscribe: after this call, a process without subscribers is
    /// not held back.
    pub async fn read(
        &self,
        after_seq: Option<u64>,
        max_bytes: Option<u64>,
        wait: Option<Duration>,
    ) -> Result<ReadResponse, ExecServerError> {
        let mirror = &self.shared.mirror;
        mirror.expect_no_subscriber();
        let after = after_seq.unwrap_or(0);
        let max_bytes = max_bytes.unwrap_or(u64::MAX);
        if let Some(wait) = wait.filter(|wait| !wait.is_zero()) {
            let _ = tokio::time::timeout(wait, mirror.news_beyond(after)).await;
        }
        if let Some(response) = mirror.read(after, max_bytes) {
            return Ok(response);
        }
        if self.shared.key.observed_session.is_some() {
            return Ok(mirror.read_retained(max_bytes));
        }
        let params = ReadParams {
            process_id: self.process_id().to_owned(),
            after_seq,
            max_bytes: Some(max_bytes),
            wait_ms: None,
        };
        self.client().call::<rpc::ProcessRead>(params).await
    }

    /// Writes to the process's stdin, in order and each byte once, across reconnects. Returns when
    /// the server has accepted everything, so it may never return if the process does not read its
    /// stdin. Returns early if the server does not accept a part.
    ///
    /// If the future is dropped, a part of `chunk` may have been written.
    pub async fn write(&self, chunk: impl Into<Bytes>) -> Result<WriteStatus, ExecServerError> {
        self.check_own()?;
        let mut rest: Bytes = chunk.into();
        let _order = self.shared.writing.lock().await;
        let mut waiting = std::collections::VecDeque::new();
        loop {
            let piece = rest.split_to(rest.len().min(MAX_PIECE));
            waiting.push_back(self.send_piece(piece).await?);
            while waiting.len() >= PIECES_IN_FLIGHT || rest.is_empty() {
                let Some(oldest) = waiting.pop_front() else { return Ok(WriteStatus::Accepted) };
                let status = oldest.answer().await?.status;
                if status != WriteStatus::Accepted {
                    return Ok(status);
                }
            }
        }
    }

    /// Closes the process's stdin after everything written before. A terminal receives the
    /// end-of-file character, exactly once across reconnects.
    pub async fn close_stdin(&self) -> Result<WriteStatus, ExecServerError> {
        self.check_own()?;
        if self.has_terminal().await? {
            // The write id prevents a second end-of-file character: the first ends a program in a
            // shell, and a second would end the shell.
            return self.write(END_OF_FILE).await;
        }
        let _order = self.shared.writing.lock().await;
        let params = ProcessIdParams { process_id: self.process_id().to_owned() };
        Ok(self.client().call::<rpc::ProcessCloseStdin>(params).await?.status)
    }

    /// Resizes the process's terminal.
    pub async fn resize(&self, size: TerminalSize) -> Result<(), ExecServerError> {
        self.check_own()?;
        let process_id = self.process_id().to_owned();
        let params = ResizeParams { process_id, rows: size.rows, cols: size.cols };
        self.client().call::<rpc::ProcessResize>(params).await.map(drop)
    }

    /// Sends a signal to the process group.
    pub async fn signal(&self, signal: SignalName) -> Result<(), ExecServerError> {
        let process_id = self.process_id().to_owned();
        let session_id = self.shared.key.observed_session.clone();
        let params = SignalParams { process_id, signal, session_id };
        self.client().call::<rpc::ProcessSignal>(params).await.map(drop)
    }

    /// Terminates the process and everything it started. Returns whether it was running.
    pub async fn terminate(&self, mode: TerminateMode) -> Result<bool, ExecServerError> {
        let process_id = self.process_id().to_owned();
        let session_id = self.shared.key.observed_session.clone();
        let params = TerminateParams { process_id, mode, session_id };
        Ok(self.client().call::<rpc::ProcessTerminate>(params).await?.running)
    }

    /// Returns a receiver of the next sequence number, which changes with every event.
    #[must_use]
    pub fn subscribe_wake(&self) -> watch::Receiver<u64> {
        self.shared.mirror.wake()
    }

    /// Returns the retained events, then live ones. Until the first subscription the client evicts
    /// nothing, so that the first subscriber gets everything, and a process that fills the server's
    /// log waits. Calling [`Self::read`] or dropping all handles ends this. Later subscribers begin
    /// with the oldest event that the client still has: it keeps about 1 MiB.
    #[must_use]
    pub fn subscribe_events(&self) -> ProcessEvents {
        self.shared.mirror.subscribe()
    }

    pub(crate) fn client(&self) -> &ExecServerClient {
        &self.shared.client
    }

    async fn send_piece(
        &self,
        piece: Bytes,
    ) -> Result<PendingReply<rpc::ProcessWrite>, ExecServerError> {
        let number = self.shared.writes.fetch_add(1, Ordering::Relaxed);
        let mut write_id = self.shared.write_prefix.clone();
        let _ = write!(write_id, "{number}");
        let params = WriteParams {
            process_id: self.process_id().to_owned(),
            chunk: Base64Bytes::from(piece),
            write_id: Some(write_id),
        };
        self.client().send::<rpc::ProcessWrite>(params, None).await
    }

    async fn has_terminal(&self) -> Result<bool, ExecServerError> {
        let ask = || async {
            let listed = self.client().call::<rpc::ProcessList>(ListParams::default()).await?;
            let mut processes = listed.processes.into_iter();
            let found = processes.find(|process| process.process_id == self.process_id());
            Ok(found.is_some_and(|process| process.tty))
        };
        self.shared.has_terminal.get_or_try_init(ask).await.copied()
    }

    fn check_own(&self) -> Result<(), ExecServerError> {
        match &self.shared.key.observed_session {
            None => Ok(()),
            Some(_) => Err(ExecServerError::ReadOnly { process_id: self.process_id().to_owned() }),
        }
    }
}

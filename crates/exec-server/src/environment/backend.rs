//! The process API of every environment. The client implements it, over a connection or within the
//! same program.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use exec_server_client::{ExecServerClient, ExecServerError, ExecServerProcess, ProcessEvents};
use exec_server_protocol::{
    Empty, EnvironmentInfo, ReadResponse, SignalName, StartParams, TerminalSize, TerminateMode,
    WriteStatus,
};
use tokio::sync::watch;

/// A location where processes can be started.
#[async_trait]
pub trait ExecBackend: Debug + Send + Sync {
    /// Starts a process and returns when its program runs. Dropping the future before that leaves
    /// nothing running.
    async fn start(&self, params: StartParams) -> Result<Arc<dyn ExecProcess>, ExecServerError>;

    /// Returns information about the machine.
    async fn info(&self) -> Result<EnvironmentInfo, ExecServerError>;
}

/// A started process. Helpers based on these methods are methods of `dyn ExecProcess`.
///
/// Dropping the handle does not end the process. The process belongs to the environment and ends
/// with the environment at the latest.
#[async_trait]
pub trait ExecProcess: Debug + Send + Sync {
    fn process_id(&self) -> &str;

    /// Returns the output after event `after_seq`: at most `max_bytes`, but at least one chunk if
    /// there is any. If there is no later event yet, waits up to `wait` for one.
    async fn read(
        &self,
        after_seq: Option<u64>,
        max_bytes: Option<u64>,
        wait: Option<Duration>,
    ) -> Result<ReadResponse, ExecServerError>;

    /// Writes to standard input. Waits while the process leaves too much input unread.
    async fn write(&self, chunk: Bytes) -> Result<WriteStatus, ExecServerError>;

    /// Ends standard input after the bytes already written; a terminal gets EOT instead.
    async fn close_stdin(&self) -> Result<WriteStatus, ExecServerError>;

    async fn resize(&self, size: TerminalSize) -> Result<(), ExecServerError>;

    /// Sends a signal. Does nothing once the process has exited.
    async fn signal(&self, signal: SignalName) -> Result<(), ExecServerError>;

    /// Ends the process with all its descendants. Returns whether it was running.
    async fn terminate(&self, mode: TerminateMode) -> Result<bool, ExecServerError>;

    /// Returns a receiver of the next sequence number, which changes with every event.
    fn subscribe_wake(&self) -> watch::Receiver<u64>;

    /// Subscribes to events: first the retained ones, then live ones, in order and each once. The
    /// first subscriber of a process that this client started gets all events, however late it
    /// subscribes, unless [`Self::read`] was called before.
    ///
    /// A subscriber that does not read blocks the process once the process's log is full. So does a
    /// handle that has never been subscribed to or read from. A process started with `onFull:
    /// discard` is never blocked.
    fn subscribe_events(&self) -> ProcessEvents;
}

#[async_trait]
impl ExecBackend for ExecServerClient {
    async fn start(&self, params: StartParams) -> Result<Arc<dyn ExecProcess>, ExecServerError> {
        Ok(Arc::new(ExecServerClient::start(self, params).await?))
    }

    async fn info(&self) -> Result<EnvironmentInfo, ExecServerError> {
        self.environment_info(Empty {}).await
    }
}

#[async_trait]
impl ExecProcess for ExecServerProcess {
    fn process_id(&self) -> &str {
        ExecServerProcess::process_id(self)
    }

    async fn read(
        &self,
        after_seq: Option<u64>,
        max_bytes: Option<u64>,
        wait: Option<Duration>,
    ) -> Result<ReadResponse, ExecServerError> {
        ExecServerProcess::read(self, after_seq, max_bytes, wait).await
    }

    async fn write(&self, chunk: Bytes) -> Result<WriteStatus, ExecServerError> {
        ExecServerProcess::write(self, chunk).await
    }

    async fn close_stdin(&self) -> Result<WriteStatus, ExecServerError> {
        ExecServerProcess::close_stdin(self).await
    }

    async fn resize(&self, size: TerminalSize) -> Result<(), ExecServerError> {
        ExecServerProcess::resize(self, size).await
    }

    async fn signal(&self, signal: SignalName) -> Result<(), ExecServerError> {
        ExecServerProcess::signal(self, signal).await
    }

    async fn terminate(&self, mode: TerminateMode) -> Result<bool, ExecServerError> {
        ExecServerProcess::terminate(self, mode).await
    }

    fn subscribe_wake(&self) -> watch::Receiver<u64> {
        ExecServerProcess::subscribe_wake(self)
    }

    fn subscribe_events(&self) -> ProcessEvents {
        ExecServerProcess::subscribe_events(self)
    }
}

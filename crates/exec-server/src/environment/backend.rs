//! What every environment can do with processes, wherever they run. The client does it: over a connection, or in the
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

/// A place where processes can be started.
#[async_trait]
pub trait ExecBackend: Debug + Send + Sync {
    /// Starts a process, and returns when its program runs. Dropping the future before gives the process up.
    async fn start(&self, params: StartParams) -> Result<Arc<dyn ExecProcess>, ExecServerError>;

    /// What may be known about the machine.
    async fn info(&self) -> Result<EnvironmentInfo, ExecServerError>;
}

/// A process that was started. Helpers on top of these few calls are methods of `dyn ExecProcess`.
///
/// Dropping the handle does not end the process: it belongs to the environment, and ends with it at the latest.
#[async_trait]
pub trait ExecProcess: Debug + Send + Sync {
    fn process_id(&self) -> &str;

    /// Output after `after_seq`, at most `max_bytes` of it but at least one chunk. Waits up to `wait` for something
    /// new.
    async fn read(
        &self,
        after_seq: Option<u64>,
        max_bytes: Option<u64>,
        wait: Option<Duration>,
    ) -> Result<ReadResponse, ExecServerError>;

    /// Writes to the standard input. The answer waits while the process leaves too much unread.
    async fn write(&self, chunk: Bytes) -> Result<WriteStatus, ExecServerError>;

    /// Ends the standard input after what was written; a terminal gets an EOT instead.
    async fn close_stdin(&self) -> Result<WriteStatus, ExecServerError>;

    async fn resize(&self, size: TerminalSize) -> Result<(), ExecServerError>;

    /// Nothing happens once the process has exited.
    async fn signal(&self, signal: SignalName) -> Result<(), ExecServerError>;

    /// Ends the process with all its descendants. Says whether it was running.
    async fn terminate(&self, mode: TerminateMode) -> Result<bool, ExecServerError>;

    /// Changes with every event, to the next sequence number.
    fn subscribe_wake(&self) -> watch::Receiver<u64>;

    /// The events that are retained, then live: in order and each once. The first subscriber of a process that was
    /// started here gets all of them, however late it comes, unless the process was polled with [`Self::read`] before.
    ///
    /// Whoever holds this and does not read it holds back this process once its log is full. So does a handle that
    /// nobody has subscribed to or read from yet.
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

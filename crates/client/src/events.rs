//! Events of a process, as its caller receives them.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use exec_server_protocol::{Denial, ExitDetails, OutputChunk};
use futures_core::Stream;
use tokio::task::coop;

use crate::ExecServerError;
use crate::mirror::{ProcessMirror, SubscriberId};

/// One event of a process. `Closed` and `Failed` are final.
#[derive(Debug, Clone)]
pub enum ExecProcessEvent {
    Output(OutputChunk),
    /// Output is missing here. This is not a failure: the start asked for `onFull: discard`, the
    /// process was attached to or observed, or the output was evicted before the subscription.
    Gap {
        /// 0 if the size is unknown.
        dropped_bytes: u64,
    },
    /// The process itself has exited. Processes that it left running may still write.
    Exited(ProcessExit),
    /// The last event: all output has arrived.
    Closed {
        seq: u64,
    },
    /// The client lost the process. The error is `ExecServerError::Closed` if the client or
    /// environment was closed or dropped; if that kills the process, its exit is not reported.
    Failed(ExecServerError),
}

/// How a process ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessExit {
    pub seq: u64,
    /// 128+N if signal N killed the process.
    pub exit_code: i32,
    /// The process failed, and its failure looks like a sandbox denial.
    pub sandbox_denied: bool,
    /// The access that seems to have been denied, if the server reports it.
    pub denied: Option<Denial>,
    /// Present if the server reports them.
    pub details: Option<ExitDetails>,
}

impl ProcessExit {
    /// Whether the server terminated the process because its `timeoutMs` or its limit `wallTimeMs`
    /// had passed.
    #[must_use]
    pub fn timed_out(&self) -> bool {
        self.details.as_ref().is_some_and(|details| details.timed_out)
    }

    /// Whether the server terminated the process because the server shut down.
    #[must_use]
    pub fn server_stopped(&self) -> bool {
        self.details.as_ref().is_some_and(|details| details.server_stopped)
    }
}

/// The events of one process: first the retained ones, then live ones, in order and each once.
///
/// An unread subscription holds back its process once the server's log is full, but no other
/// process. It does not hold back an observed process, or one started with `onFull: discard`.
#[derive(Debug)]
pub struct ProcessEvents {
    mirror: ProcessMirror,
    subscriber: SubscriberId,
}

impl ProcessEvents {
    pub(crate) fn new(mirror: ProcessMirror, subscriber: SubscriberId) -> Self {
        Self { mirror, subscriber }
    }

    /// Returns the next event, or `None` after the last. Cancel-safe.
    pub async fn next(&mut self) -> Option<ExecProcessEvent> {
        std::future::poll_fn(|context| self.poll_next_event(context)).await
    }

    /// Polls for the next event, for hand-written futures.
    pub fn poll_next_event(&mut self, context: &mut Context<'_>) -> Poll<Option<ExecProcessEvent>> {
        // A flooding process is always ready, so its reader must yield to other tasks.
        let budget = ready!(coop::poll_proceed(context));
        let event = ready!(self.mirror.poll_event(self.subscriber, context));
        budget.made_progress();
        Poll::Ready(event)
    }
}

impl Stream for ProcessEvents {
    type Item = ExecProcessEvent;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.poll_next_event(context)
    }
}

impl Drop for ProcessEvents {
    fn drop(&mut self) {
        self.mirror.unsubscribe(self.subscriber);
    }
}

//! What happens to a process, as a caller sees it.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use exec_server_protocol::{Denial, ExitDetails, OutputChunk};
use futures_core::Stream;
use tokio::task::coop;

use crate::ExecServerError;
use crate::mirror::{ProcessMirror, SubscriberId};

/// One event of a process. `Closed` or `Failed` is the last.
#[derive(Debug, Clone)]
pub enum ExecProcessEvent {
    Output(OutputChunk),
    /// Output is missing here, and that is no failure: the start asked for it (`onFull: discard`), or this
    /// subscriber came after it was gone.
    Gap {
        dropped_bytes: u64,
    },
    /// The process itself has ended; what it left running may still write.
    Exited(ProcessExit),
    /// Nothing more will come.
    Closed {
        seq: u64,
    },
    /// The process is lost to this client. `ExecServerError::Closed` if its client or environment was closed
    /// or dropped: no other event follows, not even the exit of a process that this kills.
    Failed(ExecServerError),
}

/// How a process ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessExit {
    pub seq: u64,
    /// 128+N when signal N killed it.
    pub exit_code: i32,
    /// It failed, and its failure looks like a denial of its sandbox.
    pub sandbox_denied: bool,
    /// What seems to have been denied, from servers that report it.
    pub denied: Option<Denial>,
    /// From servers that report it.
    pub details: Option<ExitDetails>,
}

impl ProcessExit {
    /// The server ended it because `timeoutMs` of its start had passed.
    #[must_use]
    pub fn timed_out(&self) -> bool {
        self.details.as_ref().is_some_and(|details| details.timed_out)
    }

    /// The server ended it because the server shut down.
    #[must_use]
    pub fn server_stopped(&self) -> bool {
        self.details.as_ref().is_some_and(|details| details.server_stopped)
    }
}

/// The events of one process: first those that are retained, then live, in order and each once.
///
/// Whoever holds this and does not read it holds back the process once its log is full, and nobody else.
#[derive(Debug)]
pub struct ProcessEvents {
    mirror: ProcessMirror,
    subscriber: SubscriberId,
}

impl ProcessEvents {
    pub(crate) fn new(mirror: ProcessMirror, subscriber: SubscriberId) -> Self {
        Self { mirror, subscriber }
    }

    /// The next event; `None` after the last. Cancel-safe.
    pub async fn next(&mut self) -> Option<ExecProcessEvent> {
        std::future::poll_fn(|context| self.poll_next_event(context)).await
    }

    /// For those who write futures by hand.
    pub fn poll_next_event(&mut self, context: &mut Context<'_>) -> Poll<Option<ExecProcessEvent>> {
        // A process that floods is always ready; whoever reads it must let others run all the same.
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

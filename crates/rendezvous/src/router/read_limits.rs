//! The limits on reading a socket: the size and rate of its frames, and their unfinished parts.

use std::sync::Arc;

use exec_server_relay::frame::MAX_FRAME_BYTES;
use exec_server_transport::{
    CloseCode, Incoming, MemoryBudget, MemoryShare, Received, YieldBudget,
};
use tokio::time::{Instant, sleep};

use super::frame_queue::{Closing, FrameQueue};
use crate::quota::RateLimit;

const UNFINISHED: Closing =
    Closing::new(CloseCode::Policy, "the credential has too many unfinished frames");

#[derive(Debug)]
pub(crate) struct ReadLimits {
    /// Each frame counts against all of these rates.
    frame_rates: Vec<Arc<RateLimit>>,
    /// The socket's share of the memory for partially received frames.
    unfinished_frames: MemoryShare,
    /// Keeps the budget that all sockets of the credential share.
    _budget: Arc<MemoryBudget>,
}

impl ReadLimits {
    pub(super) fn new(frame_rates: Vec<Arc<RateLimit>>, budget: Arc<MemoryBudget>) -> Self {
        Self { frame_rates, unfinished_frames: budget.share(), _budget: budget }
    }

    /// Drops the rates, for frames that were already counted when they were read from their socket.
    pub(crate) fn without_rates(self) -> Self {
        Self { frame_rates: Vec::new(), ..self }
    }

    pub(crate) fn apply_to(&self, incoming: &mut Incoming) {
        incoming.limit_messages(MAX_FRAME_BYTES);
        incoming.expect_binary();
        incoming.charge_to(&self.unfinished_frames);
    }

    /// Receives the next message; `None` when the socket has ended or its queue is closed. Yields
    /// first if `budget` is used up, so that frames are sent before more is read.
    pub(crate) async fn receive(
        &self,
        incoming: &mut Incoming,
        budget: &mut YieldBudget,
        queue: &FrameQueue,
    ) -> Option<Received> {
        budget.ready().await;
        let received = tokio::select! {
            biased;
            _ = queue.closed() => None,
            () = self.unfinished_frames.exceeded() => {
                queue.close(UNFINISHED);
                None
            }
            received = incoming.recv() => received,
        };
        if let Some(Received::Message(frame)) = &received {
            budget.consume(frame.len());
        }
        received
    }

    /// Counts a frame. Waits if that exceeds a rate, which slows the reading down.
    pub(crate) async fn keep_to_rate(&self, queue: &FrameQueue) {
        let now = Instant::now();
        let waits = self.frame_rates.iter().map(|rate| rate.take(now));
        let wait = waits.max().unwrap_or_default();
        if !wait.is_zero() {
            tokio::select! {
                () = sleep(wait) => {}
                _ = queue.closed() => {}
            }
        }
    }
}

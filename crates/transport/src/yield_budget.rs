//! Yields to other tasks after so many bytes.
//!
//! A task that wakes another one keeps its thread until it waits, and tokio keeps the task that was
//! woken last for that same thread. So a task that always finds more to read would fill the window of
//! its stream before the next stage begins, and the stages would wait for each other.

use std::future::poll_fn;
use std::task::{Context, Poll};

const BYTES: usize = 128 << 10;

/// The bytes that a task may still move before it yields.
#[derive(Debug)]
pub struct YieldBudget {
    left: usize,
}

impl YieldBudget {
    pub fn consume(&mut self, bytes: usize) {
        self.left = self.left.saturating_sub(bytes);
    }

    /// Ready while there is budget left. Otherwise pending once, so that other tasks run first.
    pub fn poll_ready(&mut self, context: &Context<'_>) -> Poll<()> {
        if self.left > 0 {
            return Poll::Ready(());
        }
        *self = Self::default();
        context.waker().wake_by_ref();
        Poll::Pending
    }

    /// The same as [`poll_ready`](Self::poll_ready).
    pub async fn ready(&mut self) {
        poll_fn(|context| self.poll_ready(context)).await;
    }
}

impl Default for YieldBudget {
    fn default() -> Self {
        Self { left: BYTES }
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;

    #[test]
    fn a_budget_that_is_used_up_is_pending_once() {
        let mut budget = YieldBudget::default();
        let context = Context::from_waker(Waker::noop());
        for _ in 0..3 {
            budget.consume(BYTES - 1);
            assert!(budget.poll_ready(&context).is_ready());
            budget.consume(BYTES);
            assert!(budget.poll_ready(&context).is_pending());
            assert!(budget.poll_ready(&context).is_ready());
        }
    }

    #[tokio::test]
    async fn a_task_that_yields_is_polled_again() {
        let mut budget = YieldBudget::default();
        budget.consume(BYTES);
        budget.ready().await;
    }
}

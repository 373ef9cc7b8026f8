//! Yields to other tasks after a number of bytes.
//!
//! A task that wakes another task keeps its thread until it waits, and tokio schedules the task
//! woken last on that same thread. So a task that always finds more to read would fill the window
//! of its stream before the woken task starts, and the two tasks would not run in parallel.

use std::future::poll_fn;
use std::task::{Context, Poll};

const BYTES: usize = 128 << 10;

/// The number of bytes that a task may move before it yields.
#[derive(Debug)]
pub struct YieldBudget {
    left: usize,
}

impl YieldBudget {
    pub fn consume(&mut self, bytes: usize) {
        self.left = self.left.saturating_sub(bytes);
    }

    /// Ready while budget is left. Otherwise pending once, so that other tasks run first.
    pub fn poll_ready(&mut self, context: &Context<'_>) -> Poll<()> {
        if self.left > 0 {
            return Poll::Ready(());
        }
        *self = Self::default();
        context.waker().wake_by_ref();
        Poll::Pending
    }

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
    fn an_exhausted_budget_is_pending_once() {
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

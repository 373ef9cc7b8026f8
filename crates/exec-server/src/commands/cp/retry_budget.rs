//! Gives up a piece of work after several connection losses in a row. Losses with progress in
//! between do not count.

use std::cell::Cell;

/// The maximum number of consecutive retries of one piece of work while no other completes either.
const MAX_LOSSES_IN_A_ROW: usize = 5;

/// Counts completed pieces of work. Their number is finite, so the number of attempts is too.
#[derive(Debug, Default)]
pub(super) struct CompletedCount(Cell<u64>);

impl CompletedCount {
    pub(super) fn increment(&self) {
        self.0.set(self.0.get() + 1);
    }
}

/// The retries of one piece of work.
#[derive(Debug)]
pub(super) struct RetryBudget<'a> {
    completed: &'a CompletedCount,
    completed_before: u64,
    in_a_row: usize,
}

impl<'a> RetryBudget<'a> {
    pub(super) fn new(completed: &'a CompletedCount) -> Self {
        Self { completed, completed_before: completed.0.get(), in_a_row: 0 }
    }

    /// Counts a loss and returns whether to try again.
    pub(super) fn allows_another(&mut self) -> bool {
        let completed = self.completed.0.get();
        if completed != self.completed_before {
            (self.completed_before, self.in_a_row) = (completed, 0);
        }
        self.in_a_row += 1;
        self.in_a_row <= MAX_LOSSES_IN_A_ROW
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_losses_without_progress_in_between_are_counted() {
        let completed = CompletedCount::default();
        let mut retries = RetryBudget::new(&completed);
        for _ in 0..100 {
            for _ in 0..MAX_LOSSES_IN_A_ROW {
                assert!(retries.allows_another());
            }
            completed.increment();
        }
        for _ in 0..MAX_LOSSES_IN_A_ROW {
            assert!(retries.allows_another());
        }
        assert!(!retries.allows_another());
    }
}

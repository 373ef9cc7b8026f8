//! How many lost connections a copy puts up with: any number, as long as it advances in between.

use std::cell::Cell;

/// Losses in a row between which nothing was copied, neither of this file nor of another.
const MAX_LOSSES: usize = 5;

/// Counts what is done for good. The count has an end, so attempts have one, too.
#[derive(Debug, Default)]
pub(super) struct Advances(Cell<u64>);

impl Advances {
    pub(super) fn note(&self) {
        self.0.set(self.0.get() + 1);
    }
}

/// The losses that one piece of work has met.
#[derive(Debug)]
pub(super) struct Losses<'a> {
    advances: &'a Advances,
    advances_seen: u64,
    in_a_row: usize,
}

impl<'a> Losses<'a> {
    pub(super) fn new(advances: &'a Advances) -> Self {
        Self { advances, advances_seen: advances.0.get(), in_a_row: 0 }
    }

    /// Counts a loss. Says whether another attempt is worth it.
    pub(super) fn may_try_again(&mut self) -> bool {
        let advances = self.advances.0.get();
        if advances != self.advances_seen {
            (self.advances_seen, self.in_a_row) = (advances, 0);
        }
        self.in_a_row += 1;
        self.in_a_row <= MAX_LOSSES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_losses_without_an_advance_in_between_are_counted() {
        let advances = Advances::default();
        let mut losses = Losses::new(&advances);
        for _ in 0..100 {
            for _ in 0..MAX_LOSSES {
                assert!(losses.may_try_again());
            }
            advances.note();
        }
        for _ in 0..MAX_LOSSES {
            assert!(losses.may_try_again());
        }
        assert!(!losses.may_try_again());
    }
}

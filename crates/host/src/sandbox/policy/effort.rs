//! Bounds the scans for all granting globs, or for all denying globs, of one policy. The client
//! chooses names and patterns, and a scan continues even after the client has disconnected.

use std::time::{Duration, Instant};

/// A larger tree is an error: a partial scan would grant or hide only some of the matches.
const MAX_NAMES: usize = 200_000;
/// Every examined name costs the symbols of the patterns times the bytes of its path below the
/// start directory. Most comparisons take far fewer steps.
const MAX_STEPS: usize = 1 << 30;
/// Bounds a scan of slow storage, which delays the response to the request.
const MAX_TIME: Duration = Duration::from_secs(30);

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TooMuch {
    #[error("{max} names")]
    Names { max: usize },
    #[error("{max} character comparisons")]
    Steps { max: usize },
    #[error("{} seconds", max.as_secs())]
    Time { max: Duration },
}

#[derive(Debug)]
pub(in crate::sandbox) struct Effort {
    names: usize,
    steps: usize,
    until: Instant,
}

impl Effort {
    pub(in crate::sandbox) fn new() -> Self {
        Self::until(Instant::now() + MAX_TIME)
    }

    fn until(until: Instant) -> Self {
        Self { names: MAX_NAMES, steps: MAX_STEPS, until }
    }

    /// Returns how many names of the next directory to list: one more than the budget has left, so
    /// that [`spend`](Self::spend) fails if the directory has too many. Fails once the time is up.
    pub(in crate::sandbox) fn names_to_list(&self) -> Result<usize, TooMuch> {
        if Instant::now() >= self.until {
            return Err(TooMuch::Time { max: MAX_TIME });
        }
        Ok(self.names + 1)
    }

    /// Charges for one more name. Its path below the start directory has `len` bytes, and is
    /// compared with patterns of `symbols` symbols in total.
    pub(in crate::sandbox) fn spend(&mut self, symbols: usize, len: usize) -> Result<(), TooMuch> {
        let names = self.names.checked_sub(1).ok_or(TooMuch::Names { max: MAX_NAMES })?;
        let steps = self.steps.checked_sub(symbols.saturating_mul(len));
        self.steps = steps.ok_or(TooMuch::Steps { max: MAX_STEPS })?;
        self.names = names;
        Ok(())
    }

    /// Resets the count of names before the same tree is scanned again. The comparisons and the
    /// time so far still count.
    #[cfg(target_os = "linux")]
    pub(in crate::sandbox) fn start_over(&mut self) {
        self.names = MAX_NAMES;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_comparisons_are_counted() {
        let mut effort = Effort::new();
        for _ in 0..MAX_NAMES {
            effort.spend(0, 10).unwrap();
        }
        assert_eq!(effort.spend(0, 10), Err(TooMuch::Names { max: MAX_NAMES }));
        let mut effort = Effort::new();
        effort.spend(MAX_STEPS, 1).unwrap();
        assert_eq!(effort.spend(1, 1), Err(TooMuch::Steps { max: MAX_STEPS }));
        assert!(Effort::new().spend(usize::MAX, 2).is_err());
    }

    #[test]
    fn a_directory_with_more_names_than_are_left_exceeds_the_budget() {
        let mut effort = Effort::new();
        effort.spend(0, 1).unwrap();
        let to_list = effort.names_to_list().unwrap();
        assert_eq!(to_list, MAX_NAMES);
        let spent: Result<Vec<_>, _> = (0..to_list).map(|_| effort.spend(0, 1)).collect();
        assert_eq!(spent, Err(TooMuch::Names { max: MAX_NAMES }));
    }

    #[test]
    fn time_runs_out_and_does_not_start_over() {
        let mut effort = Effort::until(Instant::now());
        let late = Err(TooMuch::Time { max: MAX_TIME });
        assert_eq!(effort.names_to_list(), late);
        effort.start_over();
        assert_eq!(effort.names_to_list(), late);
    }
}

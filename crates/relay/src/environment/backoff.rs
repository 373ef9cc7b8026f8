//! How long to wait before the next attempt.

use std::time::Duration;

use rand::RngExt as _;

const FIRST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(30);
/// A socket that lived for less and brought nothing is a failure, too: the rendezvous lets the
/// environment in and throws it out.
const SHORT_LIFE: Duration = Duration::from_millis(250);
/// A socket that lived for so long ends a series of failures.
const LONG_LIFE: Duration = Duration::from_secs(30);
/// Environments that lose one rendezvous together do not come back together.
const SPREAD: Duration = Duration::from_millis(250);

#[derive(Debug, Default)]
pub(super) struct Backoff {
    failures: u32,
}

impl Backoff {
    /// Between half of the pause and all of it.
    pub(super) fn after_failure(&mut self) -> Duration {
        let pause = FIRST.saturating_mul(1 << self.failures.min(10)).min(LONGEST);
        self.failures = self.failures.saturating_add(1);
        pause.mul_f64(rand::rng().random_range(0.5..=1.0))
    }

    /// A socket that worked is replaced at once.
    pub(super) fn after_loss(&mut self, lived: Duration, was_used: bool) -> Duration {
        match (lived < SHORT_LIFE, was_used) {
            (true, false) => return self.after_failure(),
            (true, true) => return FIRST.mul_f64(rand::rng().random_range(0.5..=1.0)),
            (false, _) => {}
        }
        if lived >= LONG_LIFE {
            self.failures = 0;
        }
        SPREAD.mul_f64(rand::rng().random_range(0.0..=1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest() {
        let mut backoff = Backoff::default();
        let mut expected = FIRST;
        for _ in 0..100 {
            let pause = backoff.after_failure();
            assert!(pause >= expected / 2 && pause <= expected, "{pause:?}, {expected:?}");
            expected = (expected * 2).min(LONGEST);
        }
        assert!(backoff.after_loss(SHORT_LIFE, false) <= SPREAD);
        assert!(backoff.after_failure() >= LONGEST / 2, "the series goes on");
        assert!(backoff.after_loss(LONG_LIFE, false) <= SPREAD);
        assert!(backoff.after_loss(Duration::ZERO, true) <= FIRST);
        assert!(backoff.after_failure() <= FIRST);
        assert!(backoff.after_loss(Duration::ZERO, false) > SPREAD);
    }
}

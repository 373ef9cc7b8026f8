//! The pauses of an environment between attempts to connect. Time and randomness are arguments, so
//! that a simulation of many environments is reproducible.

use std::time::Duration;

const FIRST: Duration = Duration::from_millis(500);
const LONGEST: Duration = Duration::from_secs(30);
/// A socket that lived for less than this and received nothing counts as a failure: the rendezvous
/// admitted the environment only to close its socket.
const SHORT_LIFE: Duration = Duration::from_millis(250);
/// A socket that lived for this long ends a series of failures. When nodes die one after another,
/// each serves an environment for longer than this, so the environment's pauses do not grow from
/// node to node. Two environments with one id replace each other at about this interval.
const LONG_LIFE: Duration = Duration::from_secs(1);
/// Spreads the environments that lose a rendezvous at the same time, so that they do not all
/// reconnect at once.
const SPREAD: Duration = Duration::from_millis(250);

/// The pauses of one environment. `random` is uniformly distributed from 0 to 1.
#[derive(Debug, Default)]
pub struct Backoff {
    failures: u32,
}

impl Backoff {
    /// The first pause of a series of failures is at most half a second, since another node may be
    /// available. Later ones double up to 30 s, and up to half of each is random.
    pub fn after_failure(&mut self, random: f64) -> Duration {
        let doublings = self.failures.saturating_sub(1).min(10);
        let pause = FIRST.saturating_mul(1 << doublings).min(LONGEST);
        self.failures = self.failures.saturating_add(1);
        match self.failures {
            1 => pause.mul_f64(random),
            _ => at_least_half(pause, random),
        }
    }

    /// The pause is short, unless the socket received nothing and ended at once, which counts as a
    /// failure.
    pub fn after_loss(&mut self, lived: Duration, was_used: bool, random: f64) -> Duration {
        match (lived < SHORT_LIFE, was_used) {
            (true, false) => return self.after_failure(random),
            (true, true) => return at_least_half(FIRST, random),
            (false, _) => {}
        }
        if lived >= LONG_LIFE {
            self.failures = 0;
        }
        SPREAD.mul_f64(random)
    }
}

fn at_least_half(pause: Duration, random: f64) -> Duration {
    pause.mul_f64(0.5 + random / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest() {
        for random in [0.0, 0.3, 1.0] {
            let mut backoff = Backoff::default();
            assert!(backoff.after_failure(random) <= FIRST);
            let mut expected = FIRST;
            for _ in 0..100 {
                let pause = backoff.after_failure(random);
                assert!(pause >= expected / 2 && pause <= expected, "{pause:?}, {expected:?}");
                expected = (expected * 2).min(LONGEST);
            }
            assert!(backoff.after_loss(SHORT_LIFE, false, random) <= SPREAD);
            assert!(backoff.after_failure(random) >= LONGEST / 2, "the series continues");
            assert!(backoff.after_loss(LONG_LIFE, false, random) <= SPREAD);
            assert!(backoff.after_loss(Duration::ZERO, true, random) <= FIRST);
            assert!(backoff.after_failure(random) <= FIRST, "a new series");
            assert!(backoff.after_loss(Duration::ZERO, false, random) >= FIRST / 2);
        }
    }
}

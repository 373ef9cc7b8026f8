//! When to ping, and when a peer that says nothing is gone. Takes the time, keeps none.

use tokio::time::Instant;

use super::KeepAlive;

pub(super) struct Liveness {
    keep_alive: KeepAlive,
    last_heard: Instant,
    /// Silence before this moment is forgiven: our writer was stuck, so no ping got through.
    forgiven_until: Instant,
    next_ping: Instant,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Wait,
    Ping,
    Dead,
}

impl Liveness {
    pub(super) fn new(keep_alive: KeepAlive, now: Instant) -> Self {
        Self {
            keep_alive,
            last_heard: now,
            forgiven_until: now,
            next_ping: now + keep_alive.ping_interval,
        }
    }

    pub(super) fn heard(&mut self, now: Instant) {
        self.last_heard = now;
    }

    /// When [`handle_timeout`](Self::handle_timeout) wants to be called.
    pub(super) fn next_timeout(&self) -> Instant {
        self.next_ping.min(self.silent_since() + self.keep_alive.silence_limit)
    }

    pub(super) fn handle_timeout(&mut self, now: Instant, writer_is_busy: bool) -> Verdict {
        if now >= self.next_ping + self.keep_alive.ping_interval {
            // It was we who were away (stopped, or in a debugger): nobody was asked anything.
            self.last_heard = now;
        }
        if now >= self.last_heard + self.keep_alive.stall_limit {
            return Verdict::Dead;
        }
        if writer_is_busy {
            self.forgiven_until = now;
        } else if now >= self.silent_since() + self.keep_alive.silence_limit {
            return Verdict::Dead;
        }
        if now < self.next_ping {
            return Verdict::Wait;
        }
        self.next_ping = now + self.keep_alive.ping_interval;
        Verdict::Ping
    }

    fn silent_since(&self) -> Instant {
        self.last_heard.max(self.forgiven_until)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn secs(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// Runs the timers until `Dead`, and returns the seconds at which each verdict fell.
    fn verdicts(busy: impl Fn(u64) -> bool, hears_at: &[u64]) -> (Vec<u64>, u64) {
        let start = Instant::now();
        let mut liveness = Liveness::new(KeepAlive::default(), start);
        let (mut pings, mut heard) = (Vec::new(), hears_at.iter().peekable());
        loop {
            let now = liveness.next_timeout();
            while let Some(at) = heard.next_if(|at| start + secs(**at) <= now) {
                liveness.heard(start + secs(*at));
            }
            let elapsed = (now - start).as_secs();
            match liveness.handle_timeout(now, busy(elapsed)) {
                Verdict::Ping => pings.push(elapsed),
                Verdict::Wait => {}
                Verdict::Dead => return (pings, elapsed),
            }
        }
    }

    #[test]
    fn a_silent_peer_is_pinged_and_then_given_up() {
        assert_eq!(verdicts(|_| false, &[]), (vec![15, 30, 45], 60));
        assert_eq!(verdicts(|_| false, &[20, 50]).1, 110);
    }

    #[test]
    fn our_own_absence_is_not_the_silence_of_the_peer() {
        let start = Instant::now();
        let mut liveness = Liveness::new(KeepAlive::default(), start);
        let back = start + secs(1000);
        assert_eq!(liveness.handle_timeout(back, false), Verdict::Ping);
        assert_eq!(liveness.next_timeout(), back + secs(15));
    }

    #[test]
    fn a_peer_that_does_not_read_gets_more_time() {
        assert_eq!(verdicts(|_| true, &[]).1, 300);
        // Reading again after 70 s, it can answer until a silence limit after we last were stuck.
        assert_eq!(verdicts(|now| now < 70, &[]).1, 120);
    }
}

//! Decides when to ping, and when a silent peer is considered gone. Callers pass the current time.

use std::time::Duration;

use tokio::time::Instant;

use super::{KeepAlive, SignOfLife};

/// The assumed speed of the slowest usable link. A pong waits behind data in flight in both
/// directions.
const SLOWEST_BYTES_A_SECOND: u64 = 4 << 10;

pub(super) struct Liveness {
    keep_alive: KeepAlive,
    last_heard: Instant,
    last_answer: Instant,
    /// Bytes received and written since the last answer.
    since_answer: u64,
    /// Silence before this moment is excused: the writer was busy, so no ping got through, or this
    /// process was suspended.
    forgiven_until: Instant,
    writer: Writer,
    next_ping: Instant,
}

/// The last observed state of the writer.
struct Writer {
    is_busy: bool,
    written: u64,
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
            last_answer: now,
            since_answer: 0,
            forgiven_until: now,
            writer: Writer { is_busy: false, written: 0 },
            next_ping: now + keep_alive.ping_interval,
        }
    }

    pub(super) fn heard(&mut self, bytes: usize, now: Instant) {
        self.last_heard = now;
        self.since_answer += bytes as u64;
    }

    pub(super) fn answered(&mut self, now: Instant) {
        self.last_answer = now;
        self.since_answer = 0;
    }

    pub(super) fn next_timeout(&self) -> Instant {
        self.next_ping.min(self.end())
    }

    pub(super) fn handle_timeout(
        &mut self,
        now: Instant,
        writer_is_busy: bool,
        written: u64,
    ) -> Verdict {
        if now >= self.next_ping + self.keep_alive.ping_interval {
            // This process itself was suspended (stopped, or in a debugger), so it sent the peer no
            // pings.
            self.heard(0, now);
            self.answered(now);
            self.forgiven_until = now;
        }
        self.look_at_writer(now, writer_is_busy, written);
        if now >= self.end() {
            return Verdict::Dead;
        }
        if now < self.next_ping {
            return Verdict::Wait;
        }
        self.next_ping = now + self.keep_alive.ping_interval;
        Verdict::Ping
    }

    fn look_at_writer(&mut self, now: Instant, is_busy: bool, written: u64) {
        let took = written - self.writer.written;
        self.since_answer += took;
        let is_excused = match self.keep_alive.sign_of_life {
            SignOfLife::Bytes => is_busy,
            // A socket that accepts no data is no excuse: the link may be dead.
            SignOfLife::Answers => is_busy && took > 0,
        };
        if is_excused {
            self.forgiven_until = now;
        }
        self.writer = Writer { is_busy, written };
    }

    /// When to give up on the peer without a further sign of life.
    fn end(&self) -> Instant {
        let KeepAlive { silence_limit, stall_limit, sign_of_life, .. } = self.keep_alive;
        match sign_of_life {
            SignOfLife::Bytes => {
                let stalled = self.last_heard + stall_limit;
                let silent = self.last_heard.max(self.forgiven_until) + silence_limit;
                if self.writer.is_busy { stalled } else { stalled.min(silent) }
            }
            SignOfLife::Answers => {
                let stalled = self.last_heard.max(self.forgiven_until) + stall_limit;
                let unanswered = self.last_answer.max(self.forgiven_until) + silence_limit;
                stalled.min(unanswered + self.time_under_way())
            }
        }
    }

    /// The time by which data in flight may delay a pong. Zero while the writer is busy:
    /// `forgiven_until` already covers a writer that makes progress, and one that makes none gets
    /// no extra time.
    fn time_under_way(&self) -> Duration {
        match self.writer.is_busy {
            true => Duration::ZERO,
            false => Duration::from_secs(self.since_answer / SLOWEST_BYTES_A_SECOND),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secs(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// Runs the timers until `Dead`. Returns the seconds of the pings, and that of `Dead`.
    fn verdicts(busy: impl Fn(u64) -> bool, hears_at: &[u64]) -> (Vec<u64>, u64) {
        let start = Instant::now();
        let mut liveness = Liveness::new(KeepAlive::default(), start);
        let (mut pings, mut heard) = (Vec::new(), hears_at.iter().peekable());
        loop {
            let now = liveness.next_timeout();
            while let Some(at) = heard.next_if(|at| start + secs(**at) <= now) {
                liveness.heard(1, start + secs(*at));
            }
            let elapsed = (now - start).as_secs();
            match liveness.handle_timeout(now, busy(elapsed), 0) {
                Verdict::Ping => pings.push(elapsed),
                Verdict::Wait => {}
                Verdict::Dead => return (pings, elapsed),
            }
        }
    }

    #[test]
    fn a_silent_peer_is_pinged_and_then_dead() {
        assert_eq!(verdicts(|_| false, &[]), (vec![15, 30, 45], 60));
        assert_eq!(verdicts(|_| false, &[20, 50]).1, 110);
    }

    #[test]
    fn a_suspended_process_does_not_blame_the_peer() {
        for keep_alive in [KeepAlive::default(), KeepAlive::for_client()] {
            let start = Instant::now();
            let mut liveness = Liveness::new(keep_alive, start);
            let back = start + secs(1000);
            assert_eq!(liveness.handle_timeout(back, false, 0), Verdict::Ping);
            assert_eq!(liveness.next_timeout(), back + keep_alive.ping_interval);
        }
    }

    #[test]
    fn a_peer_that_does_not_read_gets_more_time() {
        assert_eq!(verdicts(|_| true, &[]).1, 300);
        // The peer reads again at 70 s. It gets one silence limit from 60 s, when the writer was
        // last seen busy.
        assert_eq!(verdicts(|now| now < 70, &[]).1, 120);
    }

    /// The events at a client in one second.
    #[derive(Default)]
    struct Second {
        heard: usize,
        is_answered: bool,
        is_busy: bool,
        wrote: u64,
    }

    const LONG: u64 = 1000;

    /// The bytes heard from a server that only pings.
    fn pings(now: u64) -> usize {
        if now.is_multiple_of(15) { 10 } else { 0 }
    }

    /// Returns the second in which a client gives up on its server, if within [`LONG`].
    fn client_gives_up(second: impl Fn(u64) -> Second) -> Option<u64> {
        let start = Instant::now();
        let mut liveness = Liveness::new(KeepAlive::for_client(), start);
        let mut written = 0;
        for elapsed in 1..=LONG {
            let now = start + secs(elapsed);
            let Second { heard, is_answered, is_busy, wrote } = second(elapsed);
            written += wrote;
            if heard > 0 {
                liveness.heard(heard, now);
            }
            if is_answered {
                liveness.answered(now);
            }
            if liveness.next_timeout() <= now
                && liveness.handle_timeout(now, is_busy, written) == Verdict::Dead
            {
                return Some(elapsed);
            }
        }
        None
    }

    #[test]
    fn a_client_detects_a_link_that_is_dead_in_either_direction() {
        // Nothing arrives: once without an upload, once with a stuck upload.
        assert_eq!(client_gives_up(|_| Second::default()), Some(10));
        assert_eq!(client_gives_up(|_| Second { is_busy: true, ..Second::default() }), Some(10));
        // Nothing reaches the server: it keeps pinging, and its process prints a line per second.
        assert_eq!(
            client_gives_up(|now| Second { heard: pings(now), ..Second::default() }),
            Some(10)
        );
        let prints = |_| Second { heard: 200, wrote: 100, ..Second::default() };
        assert_eq!(client_gives_up(prints), Some(10));
        let stuck = |now| Second { heard: pings(now), is_busy: true, ..Second::default() };
        assert_eq!(client_gives_up(stuck), Some(10));
    }

    #[test]
    fn a_client_tolerates_a_slow_link() {
        // The pong waits behind a large response, or the ping behind a large upload.
        let download = |_| Second { heard: 5 << 10, ..Second::default() };
        assert_eq!(client_gives_up(download), None);
        let upload = |now: u64| Second {
            heard: pings(now),
            is_busy: true,
            wrote: u64::from(now.is_multiple_of(6)),
            ..Second::default()
        };
        assert_eq!(client_gives_up(upload), None);
        // The socket has accepted everything, and a live server sends its own pings.
        let buffered = |now: u64| Second {
            heard: pings(now),
            wrote: if now == 1 { 4 << 20 } else { 0 },
            is_answered: now >= 100,
            ..Second::default()
        };
        assert_eq!(client_gives_up(buffered), None);
        let buffered_and_dead =
            |now| Second { wrote: if now == 1 { 4 << 20 } else { 0 }, ..Second::default() };
        assert_eq!(client_gives_up(buffered_and_dead), Some(20));
    }
}

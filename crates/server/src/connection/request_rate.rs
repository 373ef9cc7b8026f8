//! The limit on requests per second of a connection. Callers pass the current time.

use std::time::Duration;

use tokio::time::Instant;

const SECOND: Duration = Duration::from_secs(1);

pub(super) struct RequestRate {
    /// `None`: no limit.
    interval: Option<Duration>,
    /// When the requests accepted so far fit the permitted rate; in the past if they fit already.
    paid_by: Instant,
}

impl RequestRate {
    /// 0 disables the limit. A burst may contain the requests of one second.
    pub(super) fn new(per_second: u32, now: Instant) -> Self {
        Self { interval: SECOND.checked_div(per_second), paid_by: now }
    }

    /// Counts a request. Returns whether it is within the limit; a refused request does not count.
    pub(super) fn admit(&mut self, now: Instant) -> bool {
        let Some(interval) = self.interval else { return true };
        let paid_by = self.paid_by.max(now) + interval;
        let is_within = paid_by <= now + SECOND;
        if is_within {
            self.paid_by = paid_by;
        }
        is_within
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_followed_by_the_rate() {
        let start = Instant::now();
        let mut rate = RequestRate::new(10, start);
        let admitted = |rate: &mut RequestRate, now| (0..100).filter(|_| rate.admit(now)).count();
        assert_eq!(admitted(&mut rate, start), 10);
        assert_eq!(admitted(&mut rate, start + SECOND / 10), 1);
        assert_eq!(admitted(&mut rate, start + SECOND / 2), 4);
        assert_eq!(admitted(&mut rate, start + 100 * SECOND), 10);
        assert_eq!(admitted(&mut RequestRate::new(0, start), start), 100);
        assert_eq!(admitted(&mut RequestRate::new(u32::MAX, start), start), 100);
    }
}

//! Delays the refusals of an address that fails to authenticate. Only refusals are delayed: a valid
//! token is accepted at once, even from an address with many failures. So an attacker who does not
//! wait for refusals is not slowed down, but tokens are too long to guess. Callers pass the current
//! time.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use tokio::time::Instant;

/// An address gets this many refusals without delay.
const FREE_FAILURES: u32 = 5;
/// Each further refusal is delayed by this much more, up to [`LONGEST_DELAY`]. The delay shrinks as
/// time passes.
const INTERVAL: Duration = Duration::from_millis(200);
/// Shorter than the default handshake timeout, so that a client receives a response and not a
/// timeout.
const LONGEST_DELAY: Duration = Duration::from_secs(5);
/// Maximum number of remembered addresses. Beyond that, those with the least debt are forgotten.
const MAX_ADDRESSES: usize = 4096;

#[derive(Debug, Default)]
pub(crate) struct FailedAttempts {
    /// When the debt of each address is paid off. Each failure adds [`INTERVAL`] to it.
    paid_by: HashMap<IpAddr, Instant>,
}

impl FailedAttempts {
    /// Counts a failure. Returns the delay of its refusal.
    pub(crate) fn delay(&mut self, address: IpAddr, now: Instant) -> Duration {
        let address = network_of(address);
        if !self.paid_by.contains_key(&address) && self.paid_by.len() >= MAX_ADDRESSES {
            self.forget(now);
        }
        let paid_by = self.paid_by.entry(address).or_insert(now);
        let debt = paid_by.saturating_duration_since(now);
        let delay = debt.saturating_sub(INTERVAL * (FREE_FAILURES - 1)).min(LONGEST_DELAY);
        // A debt beyond the longest delay need not grow.
        let most = LONGEST_DELAY + INTERVAL * FREE_FAILURES;
        *paid_by = now + (debt + INTERVAL).min(most);
        delay
    }

    /// Frees space for many addresses at once, since it scans all of them.
    fn forget(&mut self, now: Instant) {
        self.paid_by.retain(|_, paid_by| *paid_by > now);
        if self.paid_by.len() >= MAX_ADDRESSES {
            let mut moments: Vec<_> = self.paid_by.values().copied().collect();
            let (_, oldest, _) = moments.select_nth_unstable(MAX_ADDRESSES / 8);
            let oldest = *oldest;
            self.paid_by.retain(|_, paid_by| *paid_by > oldest);
        }
    }
}

/// Maps an IPv6 address to its /64. A subscriber has at least a /64, and could use a new address
/// for each attempt.
pub(crate) fn network_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let bits = address.to_bits() & !u128::from(u64::MAX);
            IpAddr::V6(Ipv6Addr::from_bits(bits))
        }
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_grow_to_a_limit_and_are_forgotten() {
        let mut attempts = FailedAttempts::default();
        let (start, address) = (Instant::now(), IpAddr::from([192, 0, 2, 1]));
        let delays: Vec<_> = (0..7).map(|_| attempts.delay(address, start)).collect();
        assert_eq!(delays[..5], [Duration::ZERO; 5]);
        assert_eq!(delays[5..], [INTERVAL, 2 * INTERVAL]);
        for _ in 0..10_000 {
            assert!(attempts.delay(address, start) <= LONGEST_DELAY);
        }
        assert_eq!(attempts.delay(address, start), LONGEST_DELAY);
        assert_eq!(attempts.delay(IpAddr::from([192, 0, 2, 2]), start), Duration::ZERO);
        let later = start + Duration::from_secs(10);
        assert_eq!(attempts.delay(address, later), Duration::ZERO);
    }

    #[test]
    fn an_ipv6_network_counts_as_one_address() {
        let mut attempts = FailedAttempts::default();
        let now = Instant::now();
        let address = |host: u16| IpAddr::from([0x2001, 0xdb8, 0, 1, 0, 0, 0, host]);
        let delays: Vec<_> = (0..6).map(|host| attempts.delay(address(host), now)).collect();
        assert_eq!(delays[5], INTERVAL);
        let mapped: IpAddr = "::ffff:192.0.2.1".parse().unwrap();
        assert_eq!(network_of(mapped), IpAddr::from([192, 0, 2, 1]));
    }

    #[test]
    fn the_number_of_remembered_addresses_is_bounded() {
        let mut attempts = FailedAttempts::default();
        let now = Instant::now();
        for number in 0..2 * u32::try_from(MAX_ADDRESSES).unwrap() {
            attempts.delay(IpAddr::from(number.to_be_bytes()), now);
        }
        assert!((1..=MAX_ADDRESSES).contains(&attempts.paid_by.len()));
    }
}

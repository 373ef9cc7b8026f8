//! Counters of the frames at one end of a relay, for its operator.

use std::sync::atomic::AtomicU64;

/// Totals since this end was created.
#[derive(Debug, Default)]
pub struct RelayCounters {
    pub sent: AtomicU64,
    pub received: AtomicU64,
    pub retransmitted: AtomicU64,
}

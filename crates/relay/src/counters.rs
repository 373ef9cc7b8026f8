//! Frames at one end of a relay, counted for its operator.

use std::sync::atomic::AtomicU64;

/// Since the end was made.
#[derive(Debug, Default)]
pub struct RelayCounters {
    pub sent: AtomicU64,
    pub received: AtomicU64,
    /// Records that were sent again because the peer seemed to lack them.
    pub retransmitted: AtomicU64,
}

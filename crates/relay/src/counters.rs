//! Counters of an environment's frames, for its operator. Those of a harness are not read.

use std::sync::atomic::AtomicU64;

/// Totals of all sockets since the environment was created.
#[derive(Debug, Default)]
pub struct RelayCounters {
    pub sent: AtomicU64,
    pub received: AtomicU64,
    pub retransmitted: AtomicU64,
}

//! The totals of all logs and their bounds.

use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::Notify;

/// Caps the memory bound of each log while all logs together exceed `max_memory`.
const SMALLEST_MEMORY: usize = 64 << 10;

/// Shared by all logs of a server.
#[derive(Debug)]
pub struct LogTotals {
    max_memory: u64,
    max_spilled: u64,
    memory: AtomicU64,
    spilled: AtomicU64,
    output: AtomicU64,
    discarded: AtomicU64,
    /// Wakes producers that wait because other logs hold too much.
    pub(super) freed: Notify,
}

impl Default for LogTotals {
    fn default() -> Self {
        Self::bounded(u64::MAX, u64::MAX)
    }
}

impl LogTotals {
    /// Beyond `max_memory` each log keeps little in memory. Beyond `max_spilled` nothing more is
    /// spilled: a log is full once its memory is.
    #[must_use]
    pub fn bounded(max_memory: u64, max_spilled: u64) -> Self {
        let zero = || AtomicU64::new(0);
        let (memory, spilled, output, discarded) = (zero(), zero(), zero(), zero());
        let freed = Notify::new();
        Self { max_memory, max_spilled, memory, spilled, output, discarded, freed }
    }

    /// Includes the overhead of each event.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        self.memory.load(Ordering::Relaxed)
    }

    #[must_use]
    pub fn spilled_bytes(&self) -> u64 {
        self.spilled.load(Ordering::Relaxed)
    }

    /// Returns the bytes of output ever appended.
    #[must_use]
    pub fn output_bytes(&self) -> u64 {
        self.output.load(Ordering::Relaxed)
    }

    /// Returns the bytes of output dropped for lack of room before the owner received them.
    #[must_use]
    pub fn discarded_bytes(&self) -> u64 {
        self.discarded.load(Ordering::Relaxed)
    }

    pub(super) fn memory_bound(&self, of_log: usize) -> usize {
        match self.has_memory() {
            true => of_log,
            false => of_log.min(SMALLEST_MEMORY),
        }
    }

    pub(super) fn may_spill(&self) -> bool {
        self.spilled_bytes() < self.max_spilled
    }

    fn has_memory(&self) -> bool {
        self.memory_bytes() <= self.max_memory
    }

    pub(super) fn add_output(&self, bytes: u64) {
        self.output.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(super) fn add_discarded(&self, bytes: u64) {
        self.discarded.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// One log's share of the totals. Dropping the log subtracts it.
#[derive(Debug, Default)]
pub(super) struct Share {
    memory: u64,
    spilled: u64,
}

impl Share {
    pub(super) fn update(&mut self, totals: &LogTotals, memory: u64, spilled: u64) {
        let (memory_before, memory_after) = change(&totals.memory, self.memory, memory);
        let (spilled_before, spilled_after) = change(&totals.spilled, self.spilled, spilled);
        *self = Self { memory, spilled };
        let max = totals.max_memory;
        let has_memory_again = memory_before > max && memory_after <= max;
        let max = totals.max_spilled;
        let may_spill_again = spilled_before >= max && spilled_after < max;
        if has_memory_again || may_spill_again {
            totals.freed.notify_waiters();
        }
    }
}

/// Returns the total before and after the change.
fn change(total: &AtomicU64, from: u64, to: u64) -> (u64, u64) {
    if from == to {
        let total = total.load(Ordering::Relaxed);
        return (total, total);
    }
    // If the share has shrunk, the difference wraps around, and adding it subtracts.
    let change = to.wrapping_sub(from);
    let before = total.fetch_add(change, Ordering::Relaxed);
    (before, before.wrapping_add(change))
}

//! What the logs of all processes hold together, and how much that may be.

use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::Notify;

/// What a log keeps in memory when all logs together have too much there.
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
    /// Wakes those who wait because others have too much.
    pub(super) freed: Notify,
}

impl Default for LogTotals {
    /// Without bounds.
    fn default() -> Self {
        Self::bounded(u64::MAX, u64::MAX)
    }
}

impl LogTotals {
    /// Beyond `max_memory` each log keeps little in memory; beyond `max_spilled` no more goes to files,
    /// and processes wait for their readers.
    #[must_use]
    pub fn bounded(max_memory: u64, max_spilled: u64) -> Self {
        let zero = || AtomicU64::new(0);
        let (memory, spilled, output, discarded) = (zero(), zero(), zero(), zero());
        let freed = Notify::new();
        Self { max_memory, max_spilled, memory, spilled, output, discarded, freed }
    }

    /// Bytes that logs hold in memory, with their overhead.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        self.memory.load(Ordering::Relaxed)
    }

    /// Bytes that logs hold in files.
    #[must_use]
    pub fn spilled_bytes(&self) -> u64 {
        self.spilled.load(Ordering::Relaxed)
    }

    /// Bytes of output that were ever appended.
    #[must_use]
    pub fn output_bytes(&self) -> u64 {
        self.output.load(Ordering::Relaxed)
    }

    /// Bytes of output that were discarded before a client had them.
    #[must_use]
    pub fn discarded_bytes(&self) -> u64 {
        self.discarded.load(Ordering::Relaxed)
    }

    pub(super) fn memory_bound(&self, of_log: usize) -> usize {
        match self.memory_bytes() > self.max_memory {
            true => of_log.min(SMALLEST_MEMORY),
            false => of_log,
        }
    }

    pub(super) fn may_spill(&self) -> bool {
        self.spilled_bytes() < self.max_spilled
    }

    fn is_full(&self) -> bool {
        self.memory_bytes() > self.max_memory || !self.may_spill()
    }

    pub(super) fn add_output(&self, bytes: u64) {
        self.output.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(super) fn add_discarded(&self, bytes: u64) {
        self.discarded.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// The part of one log in the totals, given back when dropped.
#[derive(Debug, Default)]
pub(super) struct Share {
    memory: u64,
    spilled: u64,
}

impl Share {
    pub(super) fn update(&mut self, totals: &LogTotals, memory: u64, spilled: u64) {
        let was_full = totals.is_full();
        change(&totals.memory, self.memory, memory);
        change(&totals.spilled, self.spilled, spilled);
        *self = Self { memory, spilled };
        if was_full && !totals.is_full() {
            totals.freed.notify_waiters();
        }
    }
}

fn change(total: &AtomicU64, from: u64, to: u64) {
    if from != to {
        // Wrapping, so that a smaller share is subtracted.
        total.fetch_add(to.wrapping_sub(from), Ordering::Relaxed);
    }
}

//! The contents of a log and the rules for keeping events: which of them stay in memory, go to the
//! file, or are dropped. Waiting, reading and writing are elsewhere. The only I/O here returns the
//! space of released blocks to the filesystem.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::time::Instant;

use super::snapshot::Heads;
use super::spill::{self, Spill};
use super::totals::{LogTotals, Share};
use super::{ENTRY_OVERHEAD, Entry, Event, LogLimits, LogListener, OnFull, Progress};

/// A reader that does not make room for a chunk within this time does not keep up.
const READER_TIMEOUT: Duration = Duration::from_millis(5);

pub(super) struct State {
    pub(super) progress: Progress,
    /// Bytes of output so far.
    pub(super) end_offset: u64,
    /// Invariant: contiguous numbers that end at `next_seq - 1`.
    pub(super) memory: VecDeque<Entry>,
    pub(super) memory_cost: usize,
    /// Invariant: contains the numbers just before `memory`, contiguous.
    pub(super) spill: Option<Spill>,
    /// The spill file could not be written. Nothing is spilled until memory is within its bound
    /// again.
    pub(super) spill_failed: bool,
    /// When the producer stops waiting for the reader to make room in memory.
    pub(super) reader_deadline: Option<Instant>,
    /// The confirming client is gone for good.
    pub(super) ownerless: bool,
    /// The position just after the exit, kept even when the entry is evicted.
    pub(super) exited: Option<LogPosition>,
    pub(super) confirmed: LogPosition,
    pub(super) heads: Heads,
    pub(super) listeners: Vec<Weak<dyn LogListener>>,
    share: Share,
    totals: Arc<LogTotals>,
}

impl Drop for State {
    fn drop(&mut self) {
        self.share.update(&self.totals, 0, 0);
    }
}

/// A position between two events.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct LogPosition {
    /// Number of the event before the position.
    pub(super) seq: u64,
    /// Bytes of output before the position.
    pub(super) offset: u64,
}

impl State {
    pub(super) fn new(limits: &LogLimits) -> Self {
        Self {
            progress: Progress { next_seq: 1, exit: None, closed: false, failure: None },
            end_offset: 0,
            memory: VecDeque::new(),
            memory_cost: 0,
            spill: None,
            spill_failed: false,
            reader_deadline: None,
            ownerless: false,
            exited: None,
            confirmed: LogPosition::default(),
            heads: Heads::new(limits.memory_bytes),
            listeners: Vec::new(),
            share: Share::default(),
            totals: Arc::clone(&limits.totals),
        }
    }

    /// Updates the totals after a change to the contents.
    pub(super) fn account(&mut self, limits: &LogLimits) {
        let spilled = self.spilled_bytes();
        self.share.update(&limits.totals, self.memory_cost as u64, spilled);
    }

    pub(super) fn push(&mut self, event: Event, now: Instant) {
        let (seq, offset) = (self.progress.next_seq, self.end_offset);
        let entry = Entry { seq, offset, at: now, event };
        self.end_offset = entry.end_offset();
        self.totals.add_output(self.end_offset - offset);
        self.progress.next_seq += 1;
        self.memory_cost += entry.cost();
        self.memory.push_back(entry);
    }

    pub(super) fn pop_memory(&mut self) {
        if let Some(entry) = self.memory.pop_front() {
            self.memory_cost -= entry.cost();
        }
    }

    pub(super) fn is_over(&self, limits: &LogLimits) -> bool {
        // The newest entry always stays, whatever its size.
        self.memory_cost > limits.memory_bound() && self.memory.len() > 1
    }

    pub(super) fn first_in_memory(&self) -> u64 {
        self.progress.next_seq - self.memory.len() as u64
    }

    pub(super) fn first_retained(&self) -> LogPosition {
        let first = match self.spill.as_ref().and_then(Spill::first) {
            Some((seq, offset)) => (seq, offset),
            None => match self.memory.front() {
                Some(entry) => (entry.seq, entry.offset),
                None => (self.progress.next_seq, self.end_offset),
            },
        };
        LogPosition { seq: first.0 - 1, offset: first.1 }
    }

    pub(super) fn first_since(&self, at: Instant) -> u64 {
        let in_file = || self.spill.as_ref().and_then(|spill| spill.first_since(at));
        match self.memory.partition_point(|entry| entry.at < at) {
            // Nothing in memory is older than `at`, so the first entry since then may be in the
            // file.
            0 => in_file().unwrap_or_else(|| self.first_in_memory()),
            older => self.first_in_memory() + older as u64,
        }
    }

    /// Returns the position after `seq`. Its offset is exact where it matters: at the beginning, at
    /// the confirmed position, and wherever the next event is still in memory. Elsewhere it is a
    /// lower bound.
    pub(super) fn position_after(&self, seq: u64) -> LogPosition {
        let offset = match seq {
            0 => 0,
            seq if seq == self.confirmed.seq => self.confirmed.offset,
            seq if seq >= self.first_retained().seq => self.offset_after(seq),
            seq if seq > self.confirmed.seq => self.confirmed.offset,
            _ => 0,
        };
        LogPosition { seq, offset }
    }

    /// Returns the bytes of output up to and including `seq`, or a lower bound if only a block is
    /// known.
    pub(super) fn offset_after(&self, seq: u64) -> u64 {
        if seq >= self.progress.next_seq - 1 {
            return self.end_offset;
        }
        match (seq + 1).checked_sub(self.first_in_memory()) {
            Some(index) => self.memory[index as usize].offset,
            None => self
                .spill
                .as_ref()
                .and_then(|spill| spill.offset_before(seq + 1))
                .unwrap_or(self.confirmed.offset),
        }
    }

    /// Drops confirmed events from the spill file, and from memory while it exceeds its bound.
    /// Never drops unconfirmed events.
    pub(super) fn evict_confirmed(&mut self, limits: &LogLimits) {
        self.release_spilled(self.confirmed.seq);
        while self.spill.is_none()
            && self.is_over(limits)
            && self.memory.front().is_some_and(|entry| entry.seq <= self.confirmed.seq)
        {
            self.pop_memory();
        }
        if !self.is_over(limits) {
            self.spill_failed = false; // Next time the disk may have room again.
        }
        self.account(limits);
    }

    /// Whether the oldest output is dropped to make room for new output.
    pub(super) fn discards(&self, limits: &LogLimits) -> bool {
        self.ownerless || limits.on_full == OnFull::Discard
    }

    pub(super) fn has_room(&self, limits: &LogLimits) -> bool {
        if !self.is_over(limits) || self.discards(limits) {
            return true;
        }
        !self.spill_failed && self.may_spill(limits)
    }

    /// Returns when to stop waiting for the reader before the next chunk, or `None` if there is no
    /// reason to wait.
    pub(super) fn wait_for_reader(&mut self, limits: &LogLimits, now: Instant) -> Option<Instant> {
        let events = self.progress.next_seq - 1 - self.confirmed.seq;
        let unconfirmed = self.end_offset - self.confirmed.offset + events * ENTRY_OVERHEAD as u64;
        let bound = limits.memory_bound();
        let chunk = spill::BATCH_BYTES.min(bound / 4) as u64;
        let fits = unconfirmed + chunk <= bound as u64;
        if fits {
            self.reader_deadline = None;
        }
        // A spill file shows that the reader is slow, and a slow reader must not slow down the
        // child.
        if fits || self.spill.is_some() || self.discards(limits) {
            return None;
        }
        let until = *self.reader_deadline.get_or_insert(now + READER_TIMEOUT);
        (until > now).then_some(until)
    }

    fn may_spill(&self, limits: &LogLimits) -> bool {
        self.spilled_bytes() < limits.spill_bytes && limits.totals.may_spill()
    }

    pub(super) fn spilled_bytes(&self) -> u64 {
        self.spill.as_ref().map_or(0, Spill::len)
    }

    /// Returns the oldest entries in memory if they must and may be spilled.
    pub(super) fn next_spill_batch(&self, limits: &LogLimits) -> Option<spill::Batch> {
        let full = !self.may_spill(limits);
        if self.ownerless || self.spill_failed || full || !self.is_over(limits) {
            return None;
        }
        // Somewhat more than needed, so that small chunks do not cost a write each.
        let bound = limits.memory_bound();
        let goal = bound - bound.min(spill::BATCH_BYTES);
        let mut left = self.memory_cost;
        let mut entries = Vec::new();
        for entry in self.memory.iter().take(self.memory.len() - 1) {
            if left <= goal {
                break;
            }
            left -= entry.cost();
            entries.push(entry.clone());
        }
        let (file, at) = match &self.spill {
            Some(spill) => (Some(spill.file()), spill.end()),
            None => (None, 0),
        };
        (!entries.is_empty()).then_some(spill::Batch { file, at, entries })
    }

    /// Moves written entries from memory to the index of the file.
    pub(super) fn spilled(
        &mut self,
        file: Arc<std::fs::File>,
        at: u64,
        len: u64,
        entries: &[Entry],
    ) {
        // False if some of the entries were confirmed and evicted during the write. The others are
        // still in memory, so the copy is not needed.
        let still_here = entries.first().is_some_and(|entry| entry.seq == self.first_in_memory());
        if !still_here {
            return;
        }
        // All earlier blocks may have been confirmed by now; this batch is still at its offset.
        self.spill.get_or_insert_with(|| Spill::ending_at(file, at)).push(entries, len);
        for _ in entries {
            self.pop_memory();
        }
    }

    /// Drops the oldest block of the file or, if there is none, the oldest entry in memory,
    /// confirmed or not. Returns false if memory is within its bound.
    pub(super) fn discard_oldest(&mut self, limits: &LogLimits) -> bool {
        if !self.is_over(limits) {
            return false;
        }
        let kept_from = self.first_retained().offset.max(self.confirmed.offset);
        match self.spill.as_ref().and_then(Spill::first_block_end) {
            Some(last) => self.release_spilled(last),
            None => self.pop_memory(),
        }
        // Output that the client has already received does not count as lost.
        let lost = self.first_retained().offset.saturating_sub(kept_from);
        self.totals.add_discarded(lost);
        true
    }

    pub(super) fn release_spilled(&mut self, seq: u64) {
        if let Some(spill) = &mut self.spill {
            spill.release_through(seq);
            if spill.is_empty() {
                self.spill = None;
            }
        }
    }
}

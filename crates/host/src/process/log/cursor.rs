//! Reads a log through a cursor.

use std::collections::VecDeque;
use std::fs::File;
use std::sync::Arc;

use tokio::time::Instant;

use super::spill::{self, Block};
use super::{Entry, Event, Log, LogPosition, Progress, State, spill_thread};

/// A reading position in a log. It retains nothing: events may be dropped before the cursor reads
/// them.
#[derive(Debug, Default)]
pub struct Cursor {
    read: LogPosition,
    /// Output offset where a gap began. The next event declares the gap.
    gap_from: Option<u64>,
    skips_confirmed: bool,
    /// Entries of the spill block at the cursor.
    block: VecDeque<Entry>,
}

/// An event and the number of output bytes missing just before it.
#[derive(Debug, Clone)]
pub struct Delivered {
    pub entry: Entry,
    pub dropped: u64,
}

/// Limits of one read. At least one chunk of output is returned regardless of the budget.
#[derive(Debug, Clone, Copy)]
pub struct Budget {
    pub bytes: u64,
    pub events: usize,
}

#[derive(Debug)]
pub struct Page {
    pub events: Vec<Delivered>,
    /// Whether the read reached the end of the log.
    pub complete: bool,
    /// Output bytes missing before and between these events.
    pub dropped: u64,
    pub progress: Progress,
}

/// Only exit and close carry no output.
const MAX_EVENTS_WITHOUT_OUTPUT: usize = 2;

enum Position {
    Taken(bool),
    InFile(Arc<File>, Block),
}

impl Cursor {
    #[must_use]
    pub fn after(log: &Log, seq: u64) -> Self {
        Self { read: log.lock().position_after(seq), ..Self::default() }
    }

    /// Returns the cursor of the client that confirms. It starts after the confirmed events and
    /// skips events that are confirmed before it reads them. They are not reported as a gap.
    #[must_use]
    pub fn unconfirmed(log: &Log) -> Self {
        Self { read: log.lock().confirmed, skips_confirmed: true, ..Self::default() }
    }

    /// Returns the number of the last event read or skipped.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.read.seq
    }

    /// Skips to just after `seq` if the cursor is before it.
    pub fn advance_to(&mut self, log: &Log, seq: u64) {
        if seq > self.read.seq {
            self.jump(log.lock().position_after(seq));
        }
    }

    fn jump(&mut self, to: LogPosition) {
        self.read = to;
        self.gap_from = None;
        self.block.retain(|entry| entry.seq > to.seq);
    }

    pub async fn read(&mut self, log: &Log, budget: Budget) -> Page {
        let mut events = Vec::new();
        let mut left = budget;
        loop {
            let (position, progress) = self.take(log, &mut left, &mut events);
            let complete = match position {
                Position::Taken(complete) => complete,
                Position::InFile(file, block) => {
                    self.load(log, file, block).await;
                    continue;
                }
            };
            let dropped = events.iter().map(|delivered| delivered.dropped).sum();
            return Page { events, complete, dropped, progress };
        }
    }

    /// Takes the events that need no file access, under one lock.
    fn take(
        &mut self,
        log: &Log,
        left: &mut Budget,
        events: &mut Vec<Delivered>,
    ) -> (Position, Progress) {
        let state = log.lock();
        if self.skips_confirmed && state.confirmed.seq > self.read.seq {
            self.jump(state.confirmed);
        }
        let mut some_output = events.iter().any(|taken| taken.entry.event.output_len() > 0);
        loop {
            let next = self.read.seq.saturating_add(1);
            if next >= state.progress.next_seq {
                return (Position::Taken(true), state.progress.clone());
            }
            let Some(entry) = self.peek(&state, next) else {
                let spill = state.spill.as_ref();
                let found = spill.and_then(|s| s.block_of(next).map(|b| (s.file(), b.clone())));
                match found {
                    Some((file, block)) => {
                        return (Position::InFile(file, block), state.progress.clone());
                    }
                    None => {
                        events.extend(self.skip_gap(&state));
                        continue;
                    }
                }
            };
            let len = entry.event.output_len() as u64;
            let fits = len <= left.bytes && left.events > 0;
            if !fits && (some_output || events.len() >= MAX_EVENTS_WITHOUT_OUTPUT) {
                return (Position::Taken(false), state.progress.clone());
            }
            left.bytes = left.bytes.saturating_sub(len);
            left.events = left.events.saturating_sub(1);
            if self.block.front().is_some_and(|cached| cached.seq == next) {
                self.block.pop_front();
            }
            let dropped = self.gap_from.take().map_or(0, |from| entry.offset.saturating_sub(from));
            self.read = LogPosition { seq: next, offset: entry.end_offset() };
            some_output |= len > 0;
            events.push(Delivered { entry, dropped });
        }
    }

    fn peek(&self, state: &State, next: u64) -> Option<Entry> {
        if let Some(cached) = self.block.front().filter(|entry| entry.seq == next) {
            return Some(cached.clone());
        }
        let index = next.checked_sub(state.first_in_memory())?;
        state.memory.get(index as usize).cloned()
    }

    /// Moves past the events that were dropped, and remembers where the gap began, so that the next
    /// event declares its size. Only output can be lost: an exit within the gap is returned.
    fn skip_gap(&mut self, state: &State) -> Option<Delivered> {
        self.block.clear();
        let from = *self.gap_from.get_or_insert(self.read.offset);
        let end = state.first_retained().seq.max(self.read.seq);
        let exit = state.exited.filter(|exit| (self.read.seq + 1..=end).contains(&exit.seq));
        let (Some(exit), Some(record)) = (exit, state.progress.exit) else {
            self.read.seq = end;
            return None;
        };
        self.read = exit;
        self.gap_from = None;
        let (seq, offset, at) = (exit.seq, exit.offset, Instant::now());
        let entry = Entry { seq, offset, at, event: Event::Exited(Box::new(record)) };
        Some(Delivered { entry, dropped: exit.offset.saturating_sub(from) })
    }

    /// Reads a block of the spill file. If that fails, the block is released and the next round
    /// sees the gap.
    async fn load(&mut self, log: &Log, file: Arc<File>, block: Block) {
        let wanted = block.clone();
        let read = spill_thread::run(move || spill::read(&file, &wanted)).await;
        let next = self.read.seq.saturating_add(1);
        let mut state = log.lock();
        // A block released in the meantime may have been punched out of the file.
        let retained = state.spill.as_ref().is_some_and(|spill| spill.block_of(next).is_some());
        if !retained {
            return;
        }
        match read {
            Ok(bytes) => {
                self.block = spill::decode(&block, bytes, state.progress.exit);
                self.block.retain(|entry| entry.seq >= next);
            }
            Err(error) => {
                let last = block.last_seq();
                tracing::warn!(%error, first_seq = next, last_seq = last, "cannot read the spilled output of a process; the output of the events first_seq to last_seq is lost");
                state.release_spilled(last);
            }
        }
    }
}

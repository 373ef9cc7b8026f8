//! The log of a process, which is read through cursors.
//!
//! Output, exit and close are numbered 1, 2, 3, … and appended by one producer, the process's own
//! task. Readers hold a [`Cursor`] each. The newest events are in memory. Unconfirmed events that
//! do not fit in memory go to a spill file. Once both are full, the producer either waits (the
//! child blocks) or drops the oldest events and leaves a gap of known size.
//!
//! The log knows nothing about connections. The layers above decide who reads and who confirms.

mod cursor;
mod snapshot;
mod spill;
mod spill_thread;
mod state;
mod totals;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tokio::sync::Notify;
use tokio::time::Instant;

pub use cursor::{Budget, Cursor, Delivered, Page};
pub use snapshot::Snapshot;
pub use spill_thread::start_spill_thread;
pub use totals::LogTotals;

use super::launch::ExitRecord;
use state::{LogPosition, State};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    Stdout,
    Stderr,
    Pty,
}

#[derive(Debug, Clone)]
pub enum Event {
    Output {
        stream: Stream,
        bytes: Bytes,
    },
    /// Boxed: each log has only one exit, and the size of an enum is that of its largest variant.
    Exited(Box<ExitRecord>),
    /// The last event: the process has exited and its output has ended.
    Closed,
}

impl Event {
    fn output_len(&self) -> usize {
        match self {
            Self::Output { bytes, .. } => bytes.len(),
            Self::Exited(_) | Self::Closed => 0,
        }
    }
}

#[derive(Debug, Clone)]
pub struct Entry {
    pub seq: u64,
    /// Bytes of output before this event, since the process started.
    offset: u64,
    /// When the event was appended. Exact only for an entry in memory.
    at: Instant,
    pub event: Event,
}

impl Entry {
    /// The memory cost of the entry, including overhead. Without the overhead, a million one-byte
    /// chunks would not be bounded.
    fn cost(&self) -> usize {
        self.event.output_len() + ENTRY_OVERHEAD
    }

    fn end_offset(&self) -> u64 {
        self.offset + self.event.output_len() as u64
    }
}

const ENTRY_OVERHEAD: usize = size_of::<Entry>() + 16;

/// Whether a full log blocks the child or drops its oldest output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnFull {
    Block,
    Discard,
}

#[derive(Debug, Clone)]
pub struct LogLimits {
    pub memory_bytes: usize,
    /// The size at which the spill file counts as full; 0 for no spill file.
    pub spill_bytes: u64,
    pub on_full: OnFull,
    pub totals: Arc<LogTotals>,
}

impl LogLimits {
    fn memory_bound(&self) -> usize {
        self.totals.memory_bound(self.memory_bytes)
    }
}

/// Notified when a log has grown. Called with the log locked: do little, and do not call the log.
pub trait LogListener: Send + Sync {
    fn log_grew(&self);
}

/// The state of a process as its log knows it.
#[derive(Debug, Clone)]
pub struct Progress {
    pub next_seq: u64,
    pub exit: Option<ExitRecord>,
    pub closed: bool,
    pub failure: Option<String>,
}

pub struct Log {
    limits: LogLimits,
    state: Mutex<State>,
    /// Wakes long polls and other waiters for an event.
    grew: Notify,
    /// Wakes the producer after a confirmation, and when the owner is gone.
    room: Notify,
    /// Held while entries move to the spill file, so that they move in order.
    spilling: tokio::sync::Mutex<()>,
}

impl std::fmt::Debug for Log {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Log").field("limits", &self.limits).finish_non_exhaustive()
    }
}

/// Wakes the waiters of the log even if a listener panics.
struct NotifyOnDrop<'a>(&'a Notify);

impl Drop for NotifyOnDrop<'_> {
    fn drop(&mut self) {
        self.0.notify_waiters();
    }
}

impl Log {
    #[must_use]
    pub fn new(limits: LogLimits) -> Self {
        Self {
            state: Mutex::new(State::new(&limits)),
            limits,
            grew: Notify::new(),
            room: Notify::new(),
            spilling: tokio::sync::Mutex::new(()),
        }
    }

    #[must_use]
    pub fn progress(&self) -> Progress {
        self.lock().progress.clone()
    }

    /// Registers a listener for as long as it lives, and notifies it at once if the log has events.
    pub fn add_listener(&self, listener: &Arc<dyn LogListener>) {
        let mut state = self.lock();
        state.listeners.retain(|other| other.strong_count() > 0);
        state.listeners.push(Arc::downgrade(listener));
        if state.progress.next_seq > 1 {
            listener.log_grew();
        }
    }

    /// Marks the events up to `seq` as received by the owner, so that they may be evicted.
    pub fn confirm(&self, seq: u64) {
        let mut state = self.lock();
        let seq = seq.min(state.progress.next_seq - 1);
        if seq > state.confirmed.seq {
            state.confirmed = LogPosition { seq, offset: state.offset_after(seq) };
            state.evict_confirmed(&self.limits);
            drop(state);
            self.room.notify_waiters();
        }
    }

    /// Returns the number of the first retained event appended at `at` or later, or the next number
    /// if there is none. In the spill file only blocks have a time, so the result may be somewhat
    /// earlier.
    #[must_use]
    pub fn first_since(&self, at: Instant) -> u64 {
        self.lock().first_since(at)
    }

    #[must_use]
    pub fn confirmed(&self) -> u64 {
        self.lock().confirmed.seq
    }

    /// Returns the size of the events in memory in bytes, with the overhead of each event. Spilled
    /// events do not count.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.lock().memory_cost
    }

    /// Waits until there is an event after `seq` or the log is closed.
    pub async fn wait_beyond(&self, seq: u64) {
        self.wait_until(|progress| progress.closed || progress.next_seq.saturating_sub(1) > seq)
            .await;
    }

    /// Waits until the process has exited or the log is closed without an exit.
    pub async fn wait_exited(&self) {
        self.wait_until(|progress| progress.exit.is_some() || progress.closed).await;
    }

    pub async fn wait_closed(&self) {
        self.wait_until(|progress| progress.closed).await;
    }

    async fn wait_until(&self, reached: impl Fn(&Progress) -> bool) {
        loop {
            let mut grew = std::pin::pin!(self.grew.notified());
            // Registered before the check, so that an event in between is not missed.
            grew.as_mut().enable();
            if reached(&self.lock().progress) {
                return;
            }
            grew.await;
        }
    }

    /// Appends output. The producer checks [`Self::has_room`] first and calls [`Self::settle`]
    /// afterwards.
    pub(crate) fn append_output(&self, stream: Stream, bytes: Bytes) {
        let mut state = self.lock();
        state.heads.extend(stream, &bytes);
        self.append(state, Event::Output { stream, bytes });
    }

    pub(crate) fn append_exit(&self, exit: ExitRecord) {
        let mut state = self.lock();
        state.progress.exit = Some(exit);
        state.exited = Some(LogPosition { seq: state.progress.next_seq, offset: state.end_offset });
        self.append(state, Event::Exited(Box::new(exit)));
    }

    pub(crate) fn append_closed(&self) {
        let mut state = self.lock();
        state.progress.closed = true;
        self.append(state, Event::Closed);
    }

    /// Closes the log without events, because the start failed, and wakes the waiters.
    pub(crate) fn abandon(&self) {
        self.lock().progress.closed = true;
        self.grew.notify_waiters();
    }

    /// Releases the log of a process whose owner will never confirm again. Drops the spilled events
    /// at once, and from now on the oldest output to make room, so that a blocked child can run to
    /// its end. Observers see the rest.
    pub fn forget_owner(&self) {
        let mut state = self.lock();
        state.ownerless = true;
        state.spill = None;
        state.account(&self.limits);
        drop(state);
        self.room.notify_waiters();
    }

    /// Records why the server lost track of the process.
    pub(crate) fn fail(&self, why: String) {
        self.lock().progress.failure = Some(why);
    }

    fn append(&self, mut state: MutexGuard<'_, State>, event: Event) {
        let waiters = NotifyOnDrop(&self.grew);
        state.push(event, Instant::now());
        state.evict_confirmed(&self.limits);
        for listener in &state.listeners {
            if let Some(listener) = listener.upgrade() {
                listener.log_grew();
            }
        }
        drop(state);
        drop(waiters);
    }

    pub(crate) fn has_room(&self) -> bool {
        self.lock().has_room(&self.limits)
    }

    /// The spill file is for readers that are slow or disconnected. For a reader that keeps up, the
    /// producer waits a moment instead: output that goes through the file costs several times as
    /// much.
    pub(crate) async fn wait_for_room(&self) {
        loop {
            let mut room = std::pin::pin!(self.room.notified());
            room.as_mut().enable();
            let mut freed = std::pin::pin!(self.limits.totals.freed.notified());
            freed.as_mut().enable();
            let deadline = {
                let mut state = self.lock();
                // Other logs may have lowered the bound since the last event.
                state.evict_confirmed(&self.limits);
                state.wait_for_reader(&self.limits, Instant::now())
            };
            match deadline {
                Some(until) => {
                    let _ = tokio::time::timeout_at(until, room).await;
                }
                None if self.has_room() => return,
                None => tokio::select! {
                    () = room => {}
                    () = freed => {}
                },
            }
        }
    }

    /// Brings memory back within its bound, if possible: spills the oldest output. If nothing may
    /// be spilled, drops the oldest output under [`OnFull::Discard`] or without an owner.
    pub(crate) async fn settle(&self) {
        if !self.lock().is_over(&self.limits) {
            return;
        }
        let _in_order = self.spilling.lock().await;
        loop {
            let batch = self.lock().next_spill_batch(&self.limits);
            match batch {
                Some(batch) => self.spill(batch).await,
                None => {
                    let mut state = self.lock();
                    if !state.discards(&self.limits) || !state.discard_oldest(&self.limits) {
                        return;
                    }
                    state.account(&self.limits);
                }
            }
        }
    }

    async fn spill(&self, batch: spill::Batch) {
        let (file, at) = (batch.file, batch.at);
        let encoded = spill::encode(&batch.entries);
        let len = encoded.len() as u64;
        match spill_thread::run(move || spill::write(file, at, &encoded)).await {
            Ok(file) => {
                let mut state = self.lock();
                state.spilled(file, at, len, &batch.entries);
                state.account(&self.limits);
            }
            Err(error) => {
                let directory = std::env::temp_dir();
                let directory = directory.display();
                tracing::warn!(%error, %directory, "cannot spill output to disk; the log is limited to memory for now");
                self.lock().spill_failed = true;
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A poisoned log stays readable, and the supervising task still appends its last events.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;

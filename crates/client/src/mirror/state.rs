//! The contents and rules of a mirror. `ProcessMirror` adds the lock and the notifications.

use std::collections::{BTreeMap, VecDeque};
use std::task::Waker;

use bytes::Bytes;
use exec_server_protocol::{Base64Bytes, OutputChunk, OutputStream, ReadResponse};

use super::{MirrorEvent, Offer};
use crate::ExecServerError;
use crate::events::{ExecProcessEvent, ProcessExit};

/// Capacity of a mirror: output, and an overhead per event. Refused events must be read from the
/// server again, so the mirror has room for the output that a fast server sends while a subscriber
/// waits to be scheduled on a busy machine.
pub(super) const CAPACITY: usize = 4 << 20;
/// How much is kept for later subscribers when all current ones have read it.
pub(super) const RETAINED: usize = 1 << 20;
const COST_OF_AN_EVENT: usize = 64;
/// After a refusal, the mirror reports room once it has this much, so that any chunk fits.
pub(super) const WORTHWHILE_ROOM: usize = (256 << 10) + COST_OF_AN_EVENT;

#[derive(Debug)]
pub(super) struct State {
    pub(super) events: VecDeque<StoredEvent>,
    /// The part of the capacity that `events` use.
    pub(super) cost: usize,
    pub(super) next: u64,
    /// The size of the evicted output and gaps, all of them before the first of `events`.
    pub(super) evicted_bytes: u64,
    pub(super) exit: Option<ProcessExit>,
    pub(super) closed: bool,
    pub(super) failure: Option<ExecServerError>,
    /// A feeder waits for room and has not been notified yet.
    pub(super) refused: bool,
    /// While this is set, nothing is evicted, because a first subscriber may still come: a fast
    /// process would lose output between its start and the caller's next statement.
    pub(super) awaits_subscriber: bool,
    /// The process has no handle. A new one may be created.
    pub(super) without_handle: bool,
    /// The start was abandoned, so the process will never have a handle.
    pub(super) unwanted: bool,
    pub(super) subscribers: BTreeMap<u64, Subscriber>,
    pub(super) next_subscriber: u64,
}

#[derive(Debug)]
pub(super) struct StoredEvent {
    pub(super) seq: u64,
    pub(super) entry: Entry,
}

#[derive(Debug)]
pub(super) enum Entry {
    Event(MirrorEvent),
    /// Stands for all missing events from its number up to that of the next entry.
    Gap {
        dropped_bytes: u64,
    },
}

#[derive(Debug)]
pub(super) struct Subscriber {
    /// The next event that the subscriber wants.
    pub(super) position: u64,
    /// The size of the output and gaps that were evicted before the subscriber existed. Reported
    /// first, as a gap.
    pub(super) missed: u64,
    /// The exit was evicted before the subscriber existed. Every subscriber receives the exit.
    pub(super) missed_exit: bool,
    pub(super) waker: Option<Waker>,
}

impl State {
    pub(super) fn is_over(&self) -> bool {
        self.closed || self.failure.is_some()
    }

    /// The first retained event, or the next one to arrive.
    pub(super) fn first(&self) -> u64 {
        self.events.front().map_or(self.next, |stored| stored.seq)
    }

    pub(super) fn offer(&mut self, seq: u64, event: MirrorEvent) -> Offer {
        if self.is_over() || seq < self.next {
            return Offer::Duplicate;
        }
        if seq > self.next {
            return Offer::Hole;
        }
        if let MirrorEvent::Output { chunk, .. } = &event {
            let cost = chunk.len() + COST_OF_AN_EVENT;
            self.evict_for(cost);
            // An empty mirror accepts any event, so that no chunk is too large for it.
            if self.cost > 0 && self.cost + cost > CAPACITY {
                self.refused = true;
                return Offer::Full;
            }
        }
        match &event {
            MirrorEvent::Output { .. } => {}
            // A read response has already reported the exit, under a number within a gap.
            MirrorEvent::Exited { .. } if self.exit.is_some() => {
                self.next = seq + 1;
                return Offer::Accepted;
            }
            MirrorEvent::Exited { exit_code, sandbox_denied, denied, details } => {
                self.exit = Some(ProcessExit {
                    seq,
                    exit_code: *exit_code,
                    sandbox_denied: *sandbox_denied,
                    denied: denied.clone(),
                    details: details.as_deref().cloned(),
                });
            }
            MirrorEvent::Closed => self.closed = true,
        }
        self.push(Entry::Event(event), seq + 1);
        Offer::Accepted
    }

    pub(super) fn skip_to(&mut self, seq: u64, dropped_bytes: u64) {
        self.push(Entry::Gap { dropped_bytes }, seq);
    }

    pub(super) fn push(&mut self, entry: Entry, next: u64) {
        self.cost += entry.cost();
        self.events.push_back(StoredEvent { seq: self.next, entry });
        self.next = next;
        self.wake_subscribers();
    }

    /// Evicts old events to make room for `cost`, but none that a subscriber still wants or that a
    /// first subscriber may want.
    pub(super) fn evict_for(&mut self, cost: usize) {
        if self.awaits_subscriber {
            return;
        }
        let wanted = self.subscribers.values().map(|subscriber| subscriber.position).min();
        // Without a subscriber, it is unknown what was read, so the mirror keeps all that fits.
        let kept = if wanted.is_some() { RETAINED } else { CAPACITY };
        while self.cost + cost > kept
            && let Some(oldest) = self.events.front()
            && wanted.is_none_or(|wanted| oldest.seq < wanted)
        {
            self.cost -= oldest.entry.cost();
            self.evicted_bytes = self.evicted_bytes.saturating_add(oldest.entry.output_bytes());
            self.events.pop_front();
        }
    }

    pub(super) fn next_event(&self, subscriber: &mut Subscriber) -> Option<ExecProcessEvent> {
        if subscriber.missed > 0 {
            let dropped_bytes = std::mem::take(&mut subscriber.missed);
            return Some(ExecProcessEvent::Gap { dropped_bytes });
        }
        if std::mem::take(&mut subscriber.missed_exit) {
            return self.exit.clone().map(ExecProcessEvent::Exited);
        }
        let stored = self.events.get(self.index_of(subscriber.position))?;
        subscriber.position = stored.seq + 1;
        Some(match &stored.entry {
            Entry::Gap { dropped_bytes } => ExecProcessEvent::Gap { dropped_bytes: *dropped_bytes },
            Entry::Event(MirrorEvent::Output { stream, chunk }) => {
                ExecProcessEvent::Output(output_chunk(stored.seq, *stream, chunk))
            }
            Entry::Event(MirrorEvent::Exited { .. }) => ExecProcessEvent::Exited(
                self.exit.clone().expect("a stored exit event sets `exit`"),
            ),
            Entry::Event(MirrorEvent::Closed) => ExecProcessEvent::Closed { seq: stored.seq },
        })
    }

    pub(super) fn index_of(&self, seq: u64) -> usize {
        self.events.partition_point(|stored| stored.seq < seq)
    }

    pub(super) fn read(&self, after: u64, max_bytes: u64) -> ReadResponse {
        let (mut chunks, mut bytes, mut dropped_bytes) = (Vec::new(), 0_u64, 0_u64);
        // Gaps since the last chunk. If this read stops before the next chunk, the next read counts
        // them.
        let mut gap = 0_u64;
        let mut next_seq = self.next;
        for stored in self.events.range(self.index_of(after.saturating_add(1))..) {
            match &stored.entry {
                Entry::Event(MirrorEvent::Output { stream, chunk }) => {
                    bytes = bytes.saturating_add(chunk.len() as u64);
                    if bytes > max_bytes && !chunks.is_empty() {
                        let last: &OutputChunk = &chunks[chunks.len() - 1];
                        next_seq = last.seq + 1;
                        gap = 0;
                        break;
                    }
                    chunks.push(output_chunk(stored.seq, *stream, chunk));
                    dropped_bytes = dropped_bytes.saturating_add(std::mem::take(&mut gap));
                }
                Entry::Event(_) => {}
                Entry::Gap { dropped_bytes } => gap = gap.saturating_add(*dropped_bytes),
            }
        }
        let dropped_bytes = dropped_bytes.saturating_add(gap);
        ReadResponse {
            chunks,
            next_seq,
            exited: self.exit.is_some(),
            exit_code: self.exit.as_ref().map(|exit| exit.exit_code),
            closed: self.closed,
            failure: self.failure.as_ref().map(ToString::to_string),
            sandbox_denied: self.exit.as_ref().is_some_and(|exit| exit.sandbox_denied),
            denied: self.exit.as_ref().and_then(|exit| exit.denied.clone()),
            dropped_bytes,
            exit: self.exit.as_ref().and_then(|exit| exit.details.clone()),
        }
    }

    pub(super) fn wake_subscribers(&mut self) {
        for subscriber in self.subscribers.values_mut() {
            if let Some(waker) = subscriber.waker.take() {
                waker.wake();
            }
        }
    }
}

impl Entry {
    pub(super) fn cost(&self) -> usize {
        match self {
            Self::Event(MirrorEvent::Output { chunk, .. }) => chunk.len() + COST_OF_AN_EVENT,
            Self::Event(_) | Self::Gap { .. } => COST_OF_AN_EVENT,
        }
    }

    pub(super) fn output_bytes(&self) -> u64 {
        match self {
            Self::Event(MirrorEvent::Output { chunk, .. }) => chunk.len() as u64,
            Self::Event(_) => 0,
            Self::Gap { dropped_bytes } => *dropped_bytes,
        }
    }
}

fn output_chunk(seq: u64, stream: OutputStream, chunk: &Bytes) -> OutputChunk {
    OutputChunk { seq, stream, chunk: Base64Bytes::from(chunk.clone()) }
}

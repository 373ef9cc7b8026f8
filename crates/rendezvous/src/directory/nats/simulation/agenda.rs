//! Events in the order of virtual time.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::time::Duration;

/// Events due at the same time are returned in the order in which they were added.
pub(crate) struct Agenda<E> {
    now: Duration,
    next_number: u64,
    entries: BinaryHeap<Entry<E>>,
}

struct Entry<E> {
    at: Duration,
    number: u64,
    event: E,
}

impl<E> Agenda<E> {
    pub(crate) fn new() -> Self {
        Self { now: Duration::ZERO, next_number: 0, entries: BinaryHeap::new() }
    }

    /// Returns the time since the simulation began.
    pub(crate) fn now(&self) -> Duration {
        self.now
    }

    pub(crate) fn add(&mut self, after: Duration, event: E) {
        let (at, number) = (self.now + after, self.next_number);
        self.next_number += 1;
        self.entries.push(Entry { at, number, event });
    }

    /// Returns the next event, and advances the clock to its time.
    pub(crate) fn next(&mut self) -> Option<E> {
        let Entry { at, event, .. } = self.entries.pop()?;
        self.now = at;
        Some(event)
    }
}

/// The heap returns the greatest entry, so the earliest one is the greatest.
impl<E> Ord for Entry<E> {
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.number).cmp(&(self.at, self.number))
    }
}

impl<E> PartialOrd for Entry<E> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> PartialEq for Entry<E> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<E> Eq for Entry<E> {}

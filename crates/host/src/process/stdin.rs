//! What a client wrote and the child has not read yet.
//!
//! Bytes are taken in the order they were offered. An offer is *accepted* once it lies within
//! [`STDIN_QUEUE_BYTES`] of what the child has read; until then its answer waits. As much again may
//! wait; beyond that an offer is refused, so that a client that never awaits an answer can neither fill
//! the server's memory nor block its own `terminate` behind its writes.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard};

use bytes::{Buf as _, Bytes};
use sha2::{Digest as _, Sha256};
use tokio::sync::Notify;

/// How much accepted input a process holds at most.
pub const STDIN_QUEUE_BYTES: u64 = 4 << 20;
/// How many write ids a process remembers.
const REMEMBERED_WRITES: usize = 4096;

#[derive(Debug)]
pub(super) struct StdinQueue {
    state: Mutex<State>,
    /// Wakes the task that writes to the child.
    offered: Notify,
    /// Wakes those who wait for their offer to be accepted.
    progressed: Notify,
}

#[derive(Debug)]
struct State {
    chunks: VecDeque<Bytes>,
    /// Bytes offered and bytes written since the start; what lies between is in `chunks`.
    offered: u64,
    written: u64,
    end: End,
    writes: RememberedWrites,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Open,
    /// No more offers; what is queued is still written.
    Closing,
    Closed,
}

/// A place in the input; see [`super::Process::accepted`].
#[derive(Debug, Clone, Copy)]
pub struct Ticket(u64);

/// The child reads no more input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StdinClosed;

/// Why an offer was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum OfferError {
    #[error("standard input is closed")]
    Closed,
    #[error("standard input is full: {held} bytes wait to be read")]
    Full { held: u64 },
    #[error("the write id was used before with other bytes")]
    IdReused,
}

impl StdinQueue {
    pub(super) fn new(open: bool) -> Self {
        Self {
            state: Mutex::new(State {
                chunks: VecDeque::new(),
                offered: 0,
                written: 0,
                end: if open { End::Open } else { End::Closed },
                writes: RememberedWrites::default(),
            }),
            offered: Notify::new(),
            progressed: Notify::new(),
        }
    }

    pub(super) fn offer(&self, bytes: Bytes, write_id: Option<&str>) -> Result<Ticket, OfferError> {
        let mut state = self.lock();
        // Before anything else: a write that was accepted stays accepted, also after the end.
        let digest = write_id.map(|id| (id, Sha256::digest(&bytes).into()));
        if let Some((id, digest)) = &digest
            && let Some(earlier) = state.writes.find(id, digest)?
        {
            return Ok(earlier);
        }
        if state.end != End::Open {
            return Err(OfferError::Closed);
        }
        let held = state.offered - state.written;
        if held > 0 && held + bytes.len() as u64 > 2 * STDIN_QUEUE_BYTES {
            return Err(OfferError::Full { held });
        }
        state.offered += bytes.len() as u64;
        let ticket = Ticket(state.offered);
        if let Some((id, digest)) = digest {
            state.writes.remember(id, digest, ticket);
        }
        if !bytes.is_empty() {
            state.chunks.push_back(bytes);
        }
        drop(state);
        self.offered.notify_one();
        Ok(ticket)
    }

    /// Waits until an offer is accepted.
    pub(super) async fn accepted(&self, ticket: Ticket) -> Result<(), StdinClosed> {
        loop {
            let mut progressed = std::pin::pin!(self.progressed.notified());
            progressed.as_mut().enable();
            if let Some(accepted) = self.accepted_now(ticket) {
                return accepted;
            }
            progressed.await;
        }
    }

    /// `None`: not yet known.
    pub(super) fn accepted_now(&self, ticket: Ticket) -> Option<Result<(), StdinClosed>> {
        let state = self.lock();
        if ticket.0 <= state.written + STDIN_QUEUE_BYTES {
            return Some(Ok(()));
        }
        (state.end == End::Closed).then_some(Err(StdinClosed))
    }

    /// Ends the input after what is queued. False when it was ended before.
    pub(super) fn finish(&self) -> bool {
        let mut state = self.lock();
        if state.end != End::Open {
            return false;
        }
        state.end = End::Closing;
        drop(state);
        self.offered.notify_one();
        true
    }

    /// The next bytes for the child; `None` at the end.
    pub(super) async fn front(&self) -> Option<Bytes> {
        loop {
            {
                let state = self.lock();
                if let Some(chunk) = state.chunks.front() {
                    return Some(chunk.clone());
                }
                if state.end != End::Open {
                    return None;
                }
            }
            // One consumer, and `notify_one` leaves a permit: nothing is missed in between.
            self.offered.notified().await;
        }
    }

    /// The child's end took this many bytes of the front.
    pub(super) fn wrote(&self, len: usize) {
        let mut state = self.lock();
        state.written += len as u64;
        if let Some(front) = state.chunks.front_mut() {
            front.advance(len);
            if front.is_empty() {
                state.chunks.pop_front();
            }
        }
        drop(state);
        self.progressed.notify_waiters();
    }

    /// Nobody will read any more.
    pub(super) fn close(&self) {
        let mut state = self.lock();
        state.end = End::Closed;
        state.chunks.clear();
        drop(state);
        self.progressed.notify_waiters();
        self.offered.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no code panics while it holds a stdin queue")
    }
}

/// The last writes that had an id.
#[derive(Debug, Default)]
struct RememberedWrites {
    by_id: HashMap<String, ([u8; 32], Ticket)>,
    order: VecDeque<String>,
}

impl RememberedWrites {
    fn find(&self, id: &str, digest: &[u8; 32]) -> Result<Option<Ticket>, OfferError> {
        match self.by_id.get(id) {
            Some((known, ticket)) if known == digest => Ok(Some(*ticket)),
            Some(_) => Err(OfferError::IdReused),
            None => Ok(None),
        }
    }

    fn remember(&mut self, id: &str, digest: [u8; 32], ticket: Ticket) {
        if self.order.len() == REMEMBERED_WRITES
            && let Some(oldest) = self.order.pop_front()
        {
            self.by_id.remove(&oldest);
        }
        self.order.push_back(id.to_owned());
        self.by_id.insert(id.to_owned(), (digest, ticket));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drain(queue: &StdinQueue) -> Vec<u8> {
        let mut all = Vec::new();
        loop {
            let front = queue.lock().chunks.front().cloned();
            let Some(chunk) = front else { return all };
            all.extend_from_slice(&chunk);
            queue.wrote(chunk.len());
        }
    }

    #[tokio::test]
    async fn a_repeated_id_is_written_once_and_stays_accepted_after_the_end() {
        let queue = StdinQueue::new(true);
        for _ in 0..3 {
            let ticket = queue.offer(Bytes::from_static(b"once"), Some("w1")).unwrap();
            queue.accepted(ticket).await.unwrap();
        }
        assert_eq!(
            queue.offer(Bytes::from_static(b"other"), Some("w1")).unwrap_err(),
            OfferError::IdReused
        );
        assert_eq!(drain(&queue), b"once");
        queue.close();
        let ticket = queue.offer(Bytes::from_static(b"once"), Some("w1")).unwrap();
        assert_eq!(queue.accepted(ticket).await, Ok(()));
        assert_eq!(queue.offer(Bytes::new(), None).unwrap_err(), OfferError::Closed);
    }

    #[test]
    fn at_least_the_last_4096_ids_are_remembered() {
        let queue = StdinQueue::new(true);
        for id in 0..=REMEMBERED_WRITES {
            queue.offer(Bytes::from_static(b"x"), Some(&id.to_string())).unwrap();
        }
        let before = queue.lock().offered;
        queue.offer(Bytes::from_static(b"x"), Some("1")).unwrap();
        assert_eq!(queue.lock().offered, before);
        assert_eq!(queue.lock().writes.by_id.len(), REMEMBERED_WRITES);
    }

    #[tokio::test]
    async fn what_is_held_is_bounded_and_answers_wait() {
        let queue = StdinQueue::new(true);
        let mebibyte = Bytes::from(vec![0; 1 << 20]);
        let tickets: Vec<_> =
            (0..8).map(|_| queue.offer(mebibyte.clone(), None).unwrap()).collect();
        assert!(matches!(queue.offer(mebibyte, None), Err(OfferError::Full { .. })));
        queue.accepted(tickets[3]).await.unwrap();
        let fifth = queue.accepted(tickets[4]);
        tokio::pin!(fifth);
        assert!(futures_poll_once(fifth.as_mut()).await.is_none());
        queue.wrote(1 << 20);
        fifth.await.unwrap();
        queue.close();
        assert_eq!(queue.accepted(tickets[7]).await, Err(StdinClosed));
    }

    async fn futures_poll_once<F: Future + Unpin>(mut future: F) -> Option<F::Output> {
        std::future::poll_fn(|cx| {
            std::task::Poll::Ready(match std::pin::Pin::new(&mut future).poll(cx) {
                std::task::Poll::Ready(value) => Some(value),
                std::task::Poll::Pending => None,
            })
        })
        .await
    }

    #[tokio::test]
    async fn the_end_comes_after_what_is_queued() {
        let queue = StdinQueue::new(true);
        queue.offer(Bytes::from_static(b"last"), None).unwrap();
        assert!(queue.finish());
        assert!(!queue.finish());
        assert_eq!(queue.front().await.unwrap(), "last");
        queue.wrote(4);
        assert_eq!(queue.front().await, None);
    }
}

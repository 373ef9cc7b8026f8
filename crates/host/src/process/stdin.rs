//! Input that a client has written and the child's pipe or terminal has not yet taken.
//!
//! Offers are taken in order. An offer is *accepted* once at most [`STDIN_QUEUE_BYTES`] bytes up to
//! its end are still queued; until then its response waits. The same amount may be queued beyond
//! that. Further offers are refused, so a client that never awaits responses can neither fill the
//! server's memory nor block its own `terminate` behind its writes. An empty queue takes an offer
//! of any size.
//!
//! The task that makes the offer writes as much as the child takes without waiting, so a keystroke
//! needs no other task. The process's supervisor writes the rest.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::{Buf as _, Bytes};
use sha2::{Digest as _, Sha256};
use tokio::sync::Notify;

use super::launch::{PtyMaster, StdinPipe};

/// The most bytes of accepted input that may be queued for a child.
pub const STDIN_QUEUE_BYTES: u64 = 4 << 20;
const REMEMBERED_WRITES: usize = 65_536;

#[derive(Debug)]
pub(super) enum Sink {
    Pipe(StdinPipe),
    Pty(Arc<PtyMaster>),
}

impl Sink {
    fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Pipe(pipe) => pipe.try_write(bytes),
            Self::Pty(pty) => pty.try_write(bytes),
        }
    }

    async fn writable(&self) {
        let writable = match self {
            Self::Pipe(pipe) => pipe.writable().await,
            Self::Pty(pty) => pty.writable().await,
        };
        if let Err(error) = writable {
            tracing::debug!(%error, "cannot wait for room in the child's stdin");
        }
    }
}

#[derive(Debug)]
pub(super) struct StdinQueue {
    state: Mutex<State>,
    /// Wakes the task that writes queued input.
    stuck: Notify,
    /// Wakes tasks that wait for their offer to be accepted.
    progressed: Notify,
}

#[derive(Debug)]
struct State {
    /// `None` before the child runs, if it has no stdin, and after its input has ended. Dropping a
    /// pipe ends the input.
    sink: Option<Arc<Sink>>,
    chunks: VecDeque<Bytes>,
    /// Bytes queued and bytes written since the start. Until the input is closed, `chunks` holds
    /// the difference.
    offered: u64,
    written: u64,
    end: End,
    /// Set when an offer was refused for lack of room. Later offers are refused too until the queue
    /// is empty: input that a client sends without awaiting responses must not arrive with a hole
    /// in it.
    refusing: bool,
    writes: RememberedWrites,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Open,
    /// Accepts no more offers; queued input is still written.
    Closing,
    Closed,
}

/// The position in the input where an offer ends. [`super::Process::accepted`] waits until the
/// offer is accepted.
#[derive(Debug, Clone, Copy)]
pub struct Ticket(u64);

/// The input was closed before the offer was accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StdinClosed;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OfferError {
    #[error("stdin is closed")]
    Closed,
    /// `is_draining`: an earlier offer was refused, and the queue is not empty yet.
    #[error("stdin {}: {held} bytes are waiting to be read", lack_of_room(*len, *is_draining))]
    Full { len: usize, held: u64, is_draining: bool },
    #[error("write id {write_id:?} was already used with other bytes")]
    IdReused { write_id: String },
}

fn lack_of_room(len: usize, is_draining: bool) -> String {
    match is_draining {
        true => "was full and must be empty before the next write".to_owned(),
        false => format!("has no room for {len} bytes"),
    }
}

impl StdinQueue {
    pub(super) fn new(open: bool) -> Self {
        Self {
            state: Mutex::new(State {
                sink: None,
                chunks: VecDeque::new(),
                offered: 0,
                written: 0,
                end: if open { End::Open } else { End::Closed },
                refusing: false,
                writes: RememberedWrites::default(),
            }),
            stuck: Notify::new(),
            progressed: Notify::new(),
        }
    }

    pub(super) fn offer(&self, bytes: Bytes, write_id: Option<&str>) -> Result<Ticket, OfferError> {
        let digests = write_id.map(|id| (digest(id.as_bytes()), digest(&bytes)));
        let mut state = self.lock();
        // Checked first: an accepted write stays accepted, even after the end of input.
        if let Some((id, bytes)) = &digests
            && let Some((known_bytes, earlier)) = state.writes.by_id.get(id)
        {
            return match known_bytes == bytes {
                true => Ok(*earlier),
                false => {
                    Err(OfferError::IdReused { write_id: write_id.unwrap_or_default().to_owned() })
                }
            };
        }
        if state.end != End::Open {
            return Err(OfferError::Closed);
        }
        let held = state.offered - state.written;
        let fits = held + bytes.len() as u64 <= 2 * STDIN_QUEUE_BYTES;
        let is_draining = held > 0 && state.refusing;
        state.refusing = is_draining || (held > 0 && !fits);
        if state.refusing {
            return Err(OfferError::Full { len: bytes.len(), held, is_draining });
        }
        state.offered += bytes.len() as u64;
        let ticket = Ticket(state.offered);
        if let Some((id, bytes)) = digests {
            state.writes.remember(id, bytes, ticket);
        }
        if !bytes.is_empty() {
            state.chunks.push_back(bytes);
            // A chunk behind others has to wait anyway.
            if state.chunks.len() == 1 {
                self.write_now(state);
            }
        }
        Ok(ticket)
    }

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

    /// Returns `None` while undecided.
    pub(super) fn accepted_now(&self, ticket: Ticket) -> Option<Result<(), StdinClosed>> {
        let state = self.lock();
        if ticket.0 <= state.written + STDIN_QUEUE_BYTES {
            return Some(Ok(()));
        }
        (state.end == End::Closed).then_some(Err(StdinClosed))
    }

    /// Ends the input after the queued bytes. Returns false if it had already ended.
    pub(super) fn finish(&self) -> bool {
        let mut state = self.lock();
        if state.end != End::Open {
            return false;
        }
        state.end = End::Closing;
        self.write_now(state);
        true
    }

    /// Connects the running child, and writes the input that arrived before it ran.
    pub(super) fn connect(&self, sink: Option<Sink>) {
        let mut state = self.lock();
        state.sink = sink.map(Arc::new);
        self.write_now(state);
    }

    /// Waits until the child can take queued input, then writes it.
    pub(super) async fn pump(&self) {
        loop {
            let sink = {
                let state = self.lock();
                if state.chunks.is_empty() { None } else { state.sink.clone() }
            };
            match sink {
                Some(sink) => {
                    sink.writable().await;
                    drop(sink);
                    return self.write_now(self.lock());
                }
                // `notify_one` leaves a permit for the only consumer, so no wakeup is lost.
                None => self.stuck.notified().await,
            }
        }
    }

    fn write_now(&self, mut state: MutexGuard<'_, State>) {
        let before = state.written;
        state.write();
        let progressed = state.written > before || state.end == End::Closed;
        let stuck = !state.chunks.is_empty();
        drop(state);
        if progressed {
            self.progressed.notify_waiters();
        }
        if stuck {
            self.stuck.notify_one();
        }
    }

    /// Closes the input and drops the queued bytes.
    pub(super) fn close(&self) {
        self.lock().close();
        self.progressed.notify_waiters();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn write(&mut self) {
        let Some(sink) = self.sink.clone() else { return };
        while let Some(front) = self.chunks.front_mut() {
            match sink.try_write(front) {
                Ok(len) => {
                    self.written += len as u64;
                    front.advance(len);
                    if front.is_empty() {
                        self.chunks.pop_front();
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) => {
                    tracing::debug!(%error, "cannot write to the child's stdin; closing it");
                    return self.close();
                }
            }
        }
        if self.end == End::Closing {
            self.close();
        }
    }

    fn close(&mut self) {
        self.end = End::Closed;
        self.chunks.clear();
        self.sink = None;
    }
}

/// The most recent writes with an id: 56 bytes each plus map overhead, about 6 MiB when full.
#[derive(Debug, Default)]
struct RememberedWrites {
    by_id: HashMap<Digest, (Digest, Ticket)>,
    order: VecDeque<Digest>,
}

/// The first half of a SHA-256: clients cannot construct colliding ids or chunks.
type Digest = [u8; 16];

fn digest(bytes: &[u8]) -> Digest {
    let whole: [u8; 32] = Sha256::digest(bytes).into();
    *whole.first_chunk().expect("a SHA-256 has 32 bytes")
}

impl RememberedWrites {
    fn remember(&mut self, id: Digest, bytes: Digest, ticket: Ticket) {
        if self.order.len() == REMEMBERED_WRITES
            && let Some(oldest) = self.order.pop_front()
        {
            self.by_id.remove(&oldest);
        }
        self.order.push_back(id);
        self.by_id.insert(id, (bytes, ticket));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Simulates a child that reads `len` bytes.
    fn take(queue: &StdinQueue, mut len: usize) -> Vec<u8> {
        let mut state = queue.lock();
        let mut taken = Vec::new();
        while let Some(mut front) = state.chunks.pop_front() {
            let some = front.split_to(front.len().min(len));
            len -= some.len();
            state.written += some.len() as u64;
            taken.extend_from_slice(&some);
            if !front.is_empty() {
                state.chunks.push_front(front);
                break;
            }
        }
        drop(state);
        queue.progressed.notify_waiters();
        taken
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
            OfferError::IdReused { write_id: "w1".to_owned() }
        );
        assert_eq!(take(&queue, 100), b"once");
        queue.close();
        let ticket = queue.offer(Bytes::from_static(b"once"), Some("w1")).unwrap();
        assert_eq!(queue.accepted(ticket).await, Ok(()));
        assert_eq!(queue.offer(Bytes::new(), None).unwrap_err(), OfferError::Closed);
    }

    #[test]
    fn the_last_65536_ids_are_remembered() {
        let queue = StdinQueue::new(true);
        for id in 0..=65_536 {
            queue.offer(Bytes::from_static(b"x"), Some(&id.to_string())).unwrap();
        }
        let before = queue.lock().offered;
        queue.offer(Bytes::from_static(b"x"), Some("1")).unwrap();
        assert_eq!(queue.lock().offered, before, "the second id is the oldest that is known");
        queue.offer(Bytes::from_static(b"x"), Some("0")).unwrap();
        assert_eq!(queue.lock().offered, before + 1, "the first was forgotten");
        assert_eq!(queue.lock().writes.by_id.len(), REMEMBERED_WRITES);
    }

    #[test]
    fn writes_without_an_id_cost_no_memory() {
        let queue = StdinQueue::new(true);
        queue.offer(Bytes::from_static(b"x"), None).unwrap();
        assert_eq!(queue.lock().writes.by_id.capacity(), 0);
        assert_eq!(queue.lock().writes.order.capacity(), 0);
    }

    #[tokio::test]
    async fn queued_input_is_bounded_and_responses_wait() {
        let queue = StdinQueue::new(true);
        let mebibyte = Bytes::from(vec![0; 1 << 20]);
        let tickets: Vec<_> =
            (0..8).map(|_| queue.offer(mebibyte.clone(), None).unwrap()).collect();
        assert_eq!(
            queue.offer(mebibyte, None).unwrap_err().to_string(),
            "stdin has no room for 1048576 bytes: 8388608 bytes are waiting to be read"
        );
        queue.accepted(tickets[3]).await.unwrap();
        let fifth = queue.accepted(tickets[4]);
        tokio::pin!(fifth);
        assert!(futures_poll_once(fifth.as_mut()).await.is_none());
        take(&queue, 1 << 20);
        fifth.await.unwrap();
        let small = Bytes::from_static(b"behind what was refused");
        assert!(matches!(queue.offer(small.clone(), None), Err(OfferError::Full { .. })));
        take(&queue, 6 << 20);
        assert_eq!(
            queue.offer(small.clone(), None).unwrap_err().to_string(),
            "stdin was full and must be empty before the next write: 1048576 bytes are waiting to \
             be read"
        );
        assert_eq!(take(&queue, 1 << 20).len(), 1 << 20);
        queue.offer(small, None).unwrap();
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
    async fn a_waiting_response_fails_when_the_input_ends() {
        let queue = StdinQueue::new(true);
        let large = Bytes::from(vec![0; STDIN_QUEUE_BYTES as usize + 1]);
        let ticket = queue.offer(large, None).unwrap();
        queue.close();
        assert_eq!(queue.accepted(ticket).await, Err(StdinClosed));
    }

    #[test]
    fn the_input_ends_after_the_queued_bytes() {
        let queue = StdinQueue::new(true);
        queue.offer(Bytes::from_static(b"last"), None).unwrap();
        assert!(queue.finish());
        assert!(!queue.finish());
        assert_eq!(queue.lock().end, End::Closing);
        assert_eq!(take(&queue, 100), b"last");
    }
}

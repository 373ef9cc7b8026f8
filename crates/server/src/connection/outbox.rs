//! The data that waits to be sent on one connection: responses, and feeds with new events.
//!
//! Notifications of output are never queued here. A feed in `ready` says that its log has grown;
//! the writer reads the log when the socket has room.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};

use exec_server_protocol::MAX_MESSAGE_BYTES;
use exec_server_transport::{Holding, MemoryShare};
use tokio::sync::Notify;

use super::outgoing_queue::{Events, OutgoingQueue};
use crate::feed::SocketFeed;

/// Above this size of unsent responses, ordinary requests wait: the client is not reading.
const ROOMY_BYTES: usize = 1 << 20;
/// Above this size of unsent responses, the connection is closed: the largest possible message,
/// plus responses that are sent without waiting for room.
const MAX_BYTES: usize = MAX_MESSAGE_BYTES + (16 << 20);

#[derive(Debug)]
pub(crate) struct Outbox {
    /// Larger responses cannot be sent.
    max_response: usize,
    state: Mutex<State>,
    /// Wakes the writer.
    filled: Notify,
    /// Wakes the tasks in [`Outbox::room`] and [`Outbox::idle`].
    drained: Notify,
    /// Wakes the tasks in [`Outbox::closed`], and only when the outbox closes.
    ended: Notify,
}

#[derive(Debug, Default)]
struct State {
    answers: OutgoingQueue,
    bytes: usize,
    /// Counts `bytes` against the memory that connections share.
    held: Holding,
    ready: VecDeque<Arc<SocketFeed>>,
    /// The writer has passed everything to the socket.
    idle: bool,
    closed: bool,
}

impl Outbox {
    pub(crate) fn new(memory: &MemoryShare) -> Self {
        let state = State { held: memory.hold(), ..State::default() };
        Self {
            max_response: memory.budget().largest().min(MAX_MESSAGE_BYTES),
            state: Mutex::new(state),
            filled: Notify::new(),
            drained: Notify::new(),
            ended: Notify::new(),
        }
    }

    pub(crate) fn max_response(&self) -> usize {
        self.max_response
    }

    /// Queues a response, a server request, or a notification that is not an event of a feed.
    /// Closes the connection if the client lets too many messages pile up.
    pub(crate) fn push(&self, message: Vec<u8>) {
        self.queue(message, None);
    }

    /// Queues a response that contains a process's events up to `seq`.
    pub(crate) fn push_events(&self, message: Vec<u8>, feed: Arc<SocketFeed>, seq: u64) {
        self.queue(message, Some((feed, seq)));
    }

    fn queue(&self, message: Vec<u8>, events: Option<Events>) {
        let mut state = self.lock();
        if state.closed {
            return;
        }
        state.idle = false;
        state.bytes += message.len();
        let bytes = state.bytes;
        state.held.set(bytes);
        let left = state.answers.push(message, events);
        if state.bytes > MAX_BYTES {
            tracing::warn!(
                bytes = state.bytes,
                "closing a connection whose client does not read its responses"
            );
            drop(state);
            self.close();
            return;
        }
        drop(state);
        drop(left);
        self.filled.notify_one();
    }

    /// Marks a feed as having something to send. The caller may hold the lock of the feed's log.
    pub(crate) fn ready(&self, feed: Arc<SocketFeed>) {
        let mut state = self.lock();
        if state.closed {
            return;
        }
        state.idle = false;
        state.ready.push_back(feed);
        drop(state);
        self.filled.notify_one();
    }

    /// Closes the outbox for good. Feeds own their outbox, so a closed outbox must own no feed.
    pub(crate) fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        state.held.set(0);
        let unsent = (std::mem::take(&mut state.ready), std::mem::take(&mut state.answers));
        drop(state);
        // Outside the lock: the last owner of a feed also drops its process.
        drop(unsent);
        self.filled.notify_one();
        self.drained.notify_waiters();
        self.ended.notify_waiters();
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.lock().closed
    }

    pub(crate) fn has_room(&self) -> bool {
        self.lock().bytes < ROOMY_BYTES
    }

    /// Waits until few responses are unsent, or the outbox is closed.
    pub(crate) async fn room(&self) {
        let has_room = |state: &State| state.bytes < ROOMY_BYTES || state.closed;
        self.wait_until(&self.drained, has_room).await;
    }

    /// Waits until the socket has everything, or the outbox is closed.
    pub(crate) async fn idle(&self) {
        self.wait_until(&self.drained, |state| state.idle || state.closed).await;
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.lock().idle
    }

    pub(crate) async fn closed(&self) {
        self.wait_until(&self.ended, |state| state.closed).await;
    }

    async fn wait_until(&self, told: &Notify, reached: impl Fn(&State) -> bool) {
        loop {
            let mut told = std::pin::pin!(told.notified());
            told.as_mut().enable();
            if reached(&self.lock()) {
                return;
            }
            told.await;
        }
    }

    /// For the writer: returns the next feed if output may be sent. Exchanges the waiting responses
    /// for the `sent` ones, whose memory is reused.
    pub(super) fn take(&self, sent: &mut OutgoingQueue, output: bool) -> Option<Arc<SocketFeed>> {
        let mut state = self.lock();
        std::mem::swap(&mut state.answers, sent);
        if output { state.ready.pop_front() } else { None }
    }

    pub(super) fn release_idle(&self) {
        self.lock().answers.release_idle();
    }

    pub(super) fn sent(&self, bytes: usize) {
        let mut state = self.lock();
        state.bytes -= bytes;
        if !state.closed {
            let unsent = state.bytes;
            state.held.set(unsent);
        }
        drop(state);
        if bytes > 0 {
            self.drained.notify_waiters();
        }
    }

    /// For the writer: waits for something to send. Resolves at once if there is something.
    pub(super) async fn filled(&self, output: bool) {
        {
            let mut state = self.lock();
            if !state.answers.is_empty() || (output && !state.ready.is_empty()) || state.closed {
                return;
            }
            state.idle = state.ready.is_empty();
        }
        self.drained.notify_waiters();
        self.filled.notified().await;
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no code panics while it holds an outbox")
    }
}

#[cfg(test)]
impl Default for Outbox {
    fn default() -> Self {
        Self::new(&exec_server_transport::MemoryBudget::new(usize::MAX).share())
    }
}

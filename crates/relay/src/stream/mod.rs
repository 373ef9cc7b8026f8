//! One established stream: an encrypted byte stream over frames, over one socket after another.
//!
//! A [`Stream`] is shared by three parties: the halves that the application reads and writes
//! ([`halves`]), the task of the socket, which brings frames and takes them away, and a timer. Each
//! changes the state under a lock; no code waits while it holds the lock. Records are sealed
//! when they are written and opened when they are read, so the socket's task does no cryptography.

mod halves;
mod state;
mod transmit_queue;

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use exec_server_transport::{Connection, length_prefixed};
use tokio::sync::{Notify, watch};
use tokio::time::sleep_until;

use crate::frame::{Frame, StreamId};
use crate::noise::Channel;
use halves::{Peer, StreamReader, StreamWriter};
use state::State;
pub(crate) use state::{Handled, Liveness};
pub(crate) use transmit_queue::TransmitQueue;

#[derive(Debug)]
pub(crate) struct Stream {
    id: StreamId,
    state: Mutex<State>,
    /// The queue in which the stream announces frames to send.
    queue: Arc<TransmitQueue>,
    /// Notified when the next timeout has become earlier, and when the stream has ended.
    timer_changed: Notify,
    /// Counts the frames from the peer.
    heard: watch::Sender<u64>,
    /// Counts the bytes sent by this end that the peer has read.
    bytes_read: watch::Sender<u64>,
    over: watch::Sender<bool>,
}

impl Stream {
    /// `peer_acknowledges`: the peer acknowledged during the handshake.
    pub(crate) fn new(
        id: StreamId,
        channel: Channel,
        liveness: Liveness,
        peer_acknowledges: bool,
        queue: Arc<TransmitQueue>,
    ) -> Arc<Self> {
        let state = State::new(id, channel, liveness, peer_acknowledges, Instant::now());
        Arc::new(Self {
            id,
            state: Mutex::new(state),
            queue,
            timer_changed: Notify::new(),
            heard: watch::Sender::new(0),
            bytes_read: watch::Sender::new(0),
            over: watch::Sender::new(false),
        })
    }

    pub(crate) fn id(&self) -> StreamId {
        self.id
    }

    /// Returns the stream as a connection. Must be called once; the end of the connection ends the
    /// stream.
    pub(crate) fn connection(self: &Arc<Self>) -> Connection {
        let reader = StreamReader::new(Arc::clone(self));
        let writer = StreamWriter::new(Arc::clone(self));
        length_prefixed(reader, writer, Arc::new(Peer(Arc::clone(self))))
    }

    pub(crate) fn handle_frame(self: &Arc<Self>, frame: Frame) -> Handled {
        let handled = self.change(|state, now| state.handle_frame(frame, now));
        // Only after the change: a probe that a reset wakes must find the stream ended.
        self.heard.send_modify(|frames| *frames += 1);
        handled
    }

    pub(crate) fn poll_frame(self: &Arc<Self>) -> Option<Frame> {
        let ((body, ack), retransmitted) = self.change(|state, now| {
            let before = state.retransmissions();
            Some((state.poll_transmit(now)?, state.retransmissions() - before))
        })?;
        self.queue.counters().retransmitted.fetch_add(retransmitted, Ordering::Relaxed);
        let (ack, ack_bits) = (ack.ack, ack.ack_bits);
        Some(Frame { stream_id: self.id, ack, ack_bits, body, trace: None })
    }

    pub(crate) fn note_reset_sent(self: &Arc<Self>) {
        self.change(|state, _| state.note_reset_sent());
    }

    /// Makes the stream wait for the next socket. A stream that is being reset ends.
    pub(crate) fn lose_socket(self: &Arc<Self>) {
        self.change(|state, _| state.lose_socket());
    }

    /// Continues over a new socket. Resets the stream if the old socket may have lost records and
    /// the peer does not acknowledge.
    pub(crate) fn replace_socket(self: &Arc<Self>) {
        self.change(State::replace_socket);
    }

    /// Ends the stream because the peer, or the rendezvous, broke the protocol.
    pub(crate) fn reset(self: &Arc<Self>) {
        self.change(|state, _| state.reset());
    }

    /// Ends the stream without notifying the peer.
    pub(crate) fn abandon(self: &Arc<Self>) {
        self.change(|state, _| state.abandon());
    }

    pub(crate) fn is_over(&self) -> bool {
        self.lock().is_over()
    }

    pub(crate) async fn ended(&self) {
        // Cannot fail: `self` holds the sender.
        let _ = self.over.subscribe().wait_for(|over| *over).await;
    }

    /// Returns whether the stream can outlive its socket.
    pub(crate) fn peer_acknowledges(&self) -> bool {
        self.lock().peer_acknowledges()
    }

    pub(crate) async fn run_timers(self: &Arc<Self>) {
        while let Some(next) = self.arm_timer() {
            tokio::select! {
                () = sleep_until(next.into()) => self.change(State::handle_timeout),
                () = self.timer_changed.notified() => {}
            }
        }
    }

    /// Returns when the timer must fire next; `None` once the stream has ended.
    fn arm_timer(&self) -> Option<Instant> {
        const LONG: Duration = Duration::from_secs(24 * 60 * 60);
        let mut state = self.lock();
        if state.is_over() {
            return None;
        }
        let next = state.poll_timeout().unwrap_or_else(|| Instant::now() + LONG);
        state.armed = Some(next);
        Some(next)
    }

    /// Changes the state, and notifies all parties of the consequences.
    fn change<T>(self: &Arc<Self>, change: impl FnOnce(&mut State, Instant) -> T) -> T {
        let mut state = self.lock();
        let result = change(&mut state, Instant::now());
        let news = state.take_news();
        let is_over = state.is_over();
        drop(state);
        if is_over {
            self.over.send_if_modified(|over| !std::mem::replace(over, true));
        }
        if let Some(bytes) = news.bytes_read {
            self.bytes_read.send_replace(bytes);
        }
        if news.is_timer_late {
            self.timer_changed.notify_one();
        }
        if news.is_queued {
            self.queue.push_stream(Arc::clone(self));
        }
        for waker in news.wakers.into_iter().flatten() {
            waker.wake();
        }
        result
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no code panics while it holds the lock")
    }
}

//! The state of a stream, and the effect of each event on it. No I/O; the time is an argument.

use std::collections::VecDeque;
use std::io;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use bytes::{Buf as _, Bytes, BytesMut};
use tokio::io::ReadBuf;

use crate::frame::{Body, Frame, ResetReason, StreamId};
use crate::noise::{Channel, MAX_RECORD_PLAINTEXT, TAG_LEN};
use crate::reliable::{Acknowledgement, ReliableStream, Segment, Transmit};

/// How long a closed stream waits for its last records to be acknowledged.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

const CLOSED: ResetReason = ResetReason::from_static("closed");
const SOCKET_LOST: ResetReason = ResetReason::from_static("socket_lost");
const PEER_SILENT: ResetReason = ResetReason::from_static("peer_silent");

/// When to probe a peer that acknowledges, and when to give up on it. A peer that never
/// acknowledges does not respond to probes, so it lives as long as the socket.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Liveness {
    pub(crate) heartbeat: Duration,
    pub(crate) silence_limit: Duration,
}

/// Whether a frame belonged to the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Handled {
    Yes,
    /// A handshake, although the stream has completed its handshake.
    SecondHandshake,
}

#[derive(Debug)]
pub(super) struct State {
    /// For logs.
    id: StreamId,
    reliable: ReliableStream,
    channel: Channel,
    phase: Phase,
    socket: Socket,
    liveness: Liveness,
    last_heard: Instant,
    last_heartbeat: Instant,
    /// The next frame that would only acknowledge is sent as a heartbeat.
    is_heartbeat_due: bool,
    /// The part of the last opened record that has not been read yet.
    plaintext: Bytes,
    /// The positions in the byte stream where unacknowledged records end.
    record_ends: VecDeque<u64>,
    written: u64,
    reader: Option<Waker>,
    writer: Option<Waker>,
    /// The time for which the timer is set.
    pub(super) armed: Option<Instant>,
    is_queued: bool,
    news: News,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Phase {
    Open,
    /// This end was closed. Data written before is still sent.
    Closing {
        until: Instant,
    },
    /// The peer must be notified.
    Resetting(ResetReason),
    /// The reset is on its way to the socket.
    ResetSent,
    Over,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Socket {
    Connected,
    Lost,
}

/// Notifications for the reader, the writer, the timer and the socket of a stream.
#[derive(Debug, Default)]
pub(super) struct News {
    pub(super) bytes_read: Option<u64>,
    pub(super) is_timer_late: bool,
    pub(super) is_queued: bool,
    pub(super) wakers: [Option<Waker>; 2],
}

impl State {
    pub(super) fn new(
        id: StreamId,
        channel: Channel,
        liveness: Liveness,
        peer_acknowledges: bool,
        now: Instant,
    ) -> Self {
        let mut reliable = ReliableStream::new(false);
        if peer_acknowledges {
            reliable.handle_ack(Acknowledgement::default(), true, now);
        }
        reliable.acknowledge_now();
        Self {
            id,
            reliable,
            channel,
            phase: Phase::Open,
            socket: Socket::Connected,
            liveness,
            last_heard: now,
            last_heartbeat: now,
            is_heartbeat_due: false,
            plaintext: Bytes::new(),
            record_ends: VecDeque::new(),
            written: 0,
            reader: None,
            writer: None,
            armed: None,
            is_queued: false,
            news: News::default(),
        }
    }

    pub(super) fn is_over(&self) -> bool {
        self.phase == Phase::Over
    }

    pub(super) fn peer_acknowledges(&self) -> bool {
        self.reliable.peer_acknowledges()
    }

    pub(super) fn retransmissions(&self) -> u64 {
        self.reliable.retransmissions()
    }

    /// Returns the notifications. Must be called after each change.
    pub(super) fn take_news(&mut self) -> News {
        self.note_acknowledged();
        if let Phase::Closing { .. } = self.phase
            && self.socket == Socket::Connected
            && self.reliable.is_settled()
        {
            self.phase = Phase::Resetting(CLOSED);
        }
        let wants_transmit = match self.phase {
            Phase::Open | Phase::Closing { .. } => self.reliable.wants_transmit(),
            Phase::Resetting(_) => true,
            Phase::ResetSent | Phase::Over => false,
        };
        if wants_transmit && self.socket == Socket::Connected && !self.is_queued {
            self.is_queued = true;
            self.news.is_queued = true;
        }
        self.news.is_timer_late = self.is_over()
            || match (self.poll_timeout(), self.armed) {
                (Some(next), Some(armed)) => next < armed,
                (Some(_), None) | (None, _) => false,
            };
        std::mem::take(&mut self.news)
    }

    fn note_acknowledged(&mut self) {
        let unacknowledged = self.reliable.unacknowledged_records();
        while self.record_ends.len() > unacknowledged {
            self.news.bytes_read = self.record_ends.pop_front();
        }
    }

    pub(super) fn handle_frame(&mut self, frame: Frame, now: Instant) -> Handled {
        if !matches!(self.phase, Phase::Open | Phase::Closing { .. }) {
            return Handled::Yes;
        }
        let Frame { ack, ack_bits, body, .. } = frame;
        if let Body::Handshake { .. } = body {
            return Handled::SecondHandshake;
        }
        self.last_heard = now;
        let is_ack_frame = body == Body::Ack;
        self.reliable.handle_ack(Acknowledgement { ack, ack_bits }, is_ack_frame, now);
        let handled = match body {
            Body::Data { seq, segment_index: index, segment_count: count, payload } => {
                let segment = Segment { seq, index, count, payload };
                self.reliable.handle_data(segment, now)
            }
            Body::Resume { next_seq } => self.reliable.handle_resume(next_seq),
            Body::Heartbeat => {
                self.reliable.acknowledge_now();
                Ok(())
            }
            Body::Ack => Ok(()),
            Body::Reset { reason } => {
                tracing::debug!(stream = %self.id, %reason, "the peer reset a stream");
                self.end(Phase::Over);
                return Handled::Yes;
            }
            Body::Handshake { .. } => unreachable!("a handshake returns above"),
        };
        match handled {
            Ok(()) => self.wake_both(),
            Err(error) => {
                tracing::debug!(stream = %self.id, %error, "resetting a stream");
                self.reset();
            }
        }
        Handled::Yes
    }

    pub(super) fn poll_transmit(&mut self, now: Instant) -> Option<(Body, Acknowledgement)> {
        self.is_queued = false;
        if self.socket == Socket::Lost {
            return None;
        }
        match &self.phase {
            Phase::Open | Phase::Closing { .. } => {}
            Phase::Resetting(reason) => {
                let body = Body::Reset { reason: reason.clone() };
                self.phase = Phase::ResetSent;
                return Some((body, Acknowledgement::default()));
            }
            Phase::ResetSent | Phase::Over => return None,
        }
        let (transmit, ack) = self.reliable.poll_transmit(now)?;
        // The socket takes a frame now. That may complete a flush to a peer that does not
        // acknowledge (see `poll_flush`), so wake the writer.
        self.news.wakers[1] = self.writer.take().or(self.news.wakers[1].take());
        let body = match transmit {
            Transmit::Data { seq, record } => {
                Body::Data { seq, segment_index: 0, segment_count: 1, payload: record }
            }
            Transmit::Ack => match std::mem::take(&mut self.is_heartbeat_due) {
                true => Body::Heartbeat,
                false => Body::Ack,
            },
            Transmit::Resume { next_seq } => Body::Resume { next_seq },
        };
        Some((body, ack))
    }

    pub(super) fn lose_socket(&mut self) {
        self.socket = Socket::Lost;
        if let Phase::Resetting(_) | Phase::ResetSent = self.phase {
            // The peer learns of the end from the rendezvous, or from the response to its next
            // frame.
            self.end(Phase::Over);
        }
    }

    pub(super) fn note_reset_sent(&mut self) {
        if self.phase == Phase::ResetSent {
            self.end(Phase::Over);
        }
    }

    pub(super) fn replace_socket(&mut self, now: Instant) {
        self.socket = Socket::Connected;
        self.is_queued = false;
        (self.last_heard, self.last_heartbeat) = (now, now);
        if self.reliable.replace_socket().is_err() {
            self.end(Phase::Resetting(SOCKET_LOST));
        }
    }

    pub(super) fn reset(&mut self) {
        self.end(Phase::Resetting(ResetReason::NOISE_PROTOCOL_ERROR));
    }

    pub(super) fn abandon(&mut self) {
        self.end(Phase::Over);
    }

    /// Accepts no more writes. What was written before is still sent, for at most
    /// [`CLOSE_TIMEOUT`].
    pub(super) fn close(&mut self, now: Instant) {
        if self.phase == Phase::Open {
            self.phase = Phase::Closing { until: now + CLOSE_TIMEOUT };
        }
    }

    pub(super) fn ask_for_heartbeat(&mut self) {
        self.is_heartbeat_due = true;
        self.reliable.acknowledge_now();
    }

    pub(super) fn handle_timeout(&mut self, now: Instant) {
        self.reliable.handle_timeout(now);
        if let Phase::Closing { until } = self.phase
            && now >= until
        {
            self.end(match self.socket {
                Socket::Connected => Phase::Resetting(CLOSED),
                Socket::Lost => Phase::Over,
            });
        }
        if self.socket == Socket::Lost || !self.peer_acknowledges() {
            return;
        }
        if now >= self.last_heard + self.liveness.silence_limit {
            self.end(Phase::Resetting(PEER_SILENT));
        } else if now >= self.next_heartbeat() {
            self.last_heartbeat = now;
            self.ask_for_heartbeat();
        }
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let closing = match self.phase {
            Phase::Closing { until } => Some(until),
            Phase::Open => None,
            Phase::Resetting(_) | Phase::ResetSent | Phase::Over => return None,
        };
        if self.socket == Socket::Lost {
            return closing;
        }
        let silence = self
            .peer_acknowledges()
            .then(|| self.next_heartbeat().min(self.last_heard + self.liveness.silence_limit));
        [closing, silence, self.reliable.poll_timeout()].into_iter().flatten().min()
    }

    /// Any frame from the peer postpones the heartbeat.
    fn next_heartbeat(&self) -> Instant {
        self.last_heard.max(self.last_heartbeat) + self.liveness.heartbeat
    }

    pub(super) fn poll_read(
        &mut self,
        context: &Context<'_>,
        buffer: &mut ReadBuf<'_>,
        now: Instant,
    ) -> Poll<io::Result<()>> {
        while self.plaintext.is_empty() {
            let Some(record) = self.reliable.poll_record(now) else {
                if !matches!(self.phase, Phase::Open | Phase::Closing { .. }) {
                    return Poll::Ready(Ok(()));
                }
                self.reader = Some(context.waker().clone());
                return Poll::Pending;
            };
            match self.channel.receiver.open(record) {
                Ok(plaintext) => self.plaintext = plaintext,
                Err(error) => {
                    tracing::debug!(stream = %self.id, %error, "resetting a stream");
                    self.reset();
                    return Poll::Ready(Err(io::ErrorKind::InvalidData.into()));
                }
            }
        }
        let count = self.plaintext.len().min(buffer.remaining());
        buffer.put_slice(&self.plaintext[..count]);
        self.plaintext.advance(count);
        Poll::Ready(Ok(()))
    }

    /// Writes at most one record.
    pub(super) fn poll_write(
        &mut self,
        context: &Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.phase != Phase::Open {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        if bytes.is_empty() {
            return Poll::Ready(Ok(0));
        }
        if !self.reliable.has_room() {
            self.writer = Some(context.waker().clone());
            return Poll::Pending;
        }
        let bytes = &bytes[..bytes.len().min(MAX_RECORD_PLAINTEXT)];
        let mut record = BytesMut::with_capacity(bytes.len() + TAG_LEN);
        record.extend_from_slice(bytes);
        let sealed = self.channel.sender.seal(record).map_err(io::Error::other);
        let sent = sealed.and_then(|record| self.reliable.send(record).map_err(io::Error::other));
        if let Err(error) = sent {
            self.end(Phase::Resetting(CLOSED));
            return Poll::Ready(Err(error));
        }
        self.written += bytes.len() as u64;
        self.record_ends.push_back(self.written);
        Poll::Ready(Ok(bytes.len()))
    }

    /// A peer that never acknowledges is assumed to have received everything that the socket took,
    /// so the flush waits until the socket has taken all records.
    pub(super) fn poll_flush(&mut self, context: &Context<'_>) -> Poll<io::Result<()>> {
        match self.phase {
            Phase::Open if self.peer_acknowledges() || self.reliable.is_settled() => {
                Poll::Ready(Ok(()))
            }
            Phase::Open => {
                self.writer = Some(context.waker().clone());
                Poll::Pending
            }
            Phase::Closing { .. } | Phase::Resetting(_) | Phase::ResetSent | Phase::Over => {
                Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()))
            }
        }
    }

    pub(super) fn poll_shutdown(
        &mut self,
        context: &Context<'_>,
        now: Instant,
    ) -> Poll<io::Result<()>> {
        self.close(now);
        if self.is_over() {
            return Poll::Ready(Ok(()));
        }
        self.writer = Some(context.waker().clone());
        Poll::Pending
    }

    /// Moves to a later phase. Phases never go back.
    fn end(&mut self, phase: Phase) {
        let is_ending = matches!(self.phase, Phase::Resetting(_) | Phase::ResetSent);
        if self.is_over() || (is_ending && phase != Phase::Over) {
            return;
        }
        self.phase = phase;
        self.wake_both();
    }

    fn wake_both(&mut self) {
        let [reader, writer] = &mut self.news.wakers;
        *reader = self.reader.take().or(reader.take());
        *writer = self.writer.take().or(writer.take());
    }
}

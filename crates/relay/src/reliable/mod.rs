//! A stream of records over frames that may be lost, repeated and reordered, and over sockets that are
//! replaced. Each record arrives once and in order, or the stream ends.
//!
//! No I/O, no clock and no cryptography here: frames and the time come in by `handle_*`, frames and
//! the next moment of interest go out by `poll_*`. A record is handed over encrypted and is sent
//! again as the same bytes, so a retransmission never uses a nonce twice.
//!
//! Acknowledgements travel in clear, and the rendezvous can forge them. A forged one makes the sender
//! forget a record too early; the receiver then waits for it in vain. Nothing is ever delivered
//! wrongly: the channel above refuses records out of order.
//!
//! Existing peers send no acknowledgements. For them the socket is the only order there is, and its end
//! is the end of the stream.

mod receiver;
mod sender;
#[cfg(test)]
mod simulation;

use std::time::{Duration, Instant};

use bytes::Bytes;

use receiver::Receiver;
pub use receiver::{ReceiveError, Segment};
use sender::Sender;
pub use sender::{SequenceExhausted, SocketLost};

/// Records that are under way and not acknowledged, at most: what a receiver holds for a stream.
pub const WINDOW_RECORDS: u32 = 64;
/// Their bytes. One record is always allowed.
pub const WINDOW_BYTES: usize = 1 << 20;

/// The longest time for which an acknowledgement waits for a frame that it can travel with.
const ACK_DELAY: Duration = Duration::from_millis(25);
/// Records, and their bytes, after which it does not wait: a quarter of the window.
const ACK_EVERY: u32 = WINDOW_RECORDS / 4;
const ACK_EVERY_BYTES: usize = WINDOW_BYTES / 4;

/// The records that were received, as every outbound frame says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Acknowledgement {
    /// Everything up to here has been received. Zero may also mean that nothing has.
    pub ack: u32,
    /// Bit `i` stands for the sequence number `ack + 1 + i`.
    pub ack_bits: u32,
}

/// The content of a frame, besides the acknowledgement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Transmit {
    Data {
        seq: u32,
        record: Bytes,
    },
    /// Nothing but the acknowledgement.
    Ack,
    /// The first frame on a new socket: the sequence number at which this side goes on.
    Resume {
        next_seq: u32,
    },
}

/// One end of a stream.
#[derive(Debug)]
pub struct ReliableStream {
    sender: Sender,
    receiver: Receiver,
    ack: AckSchedule,
    /// A new socket is told where this side goes on before anything else is sent there.
    resume_due: bool,
}

/// When an acknowledgement has to be sent, if no other frame takes it along.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AckSchedule {
    /// The peer knows everything.
    Idle,
    By(Instant),
    Now,
}

impl ReliableStream {
    /// A stream on which nothing has been sent. The end that opens it says so with a `resume` of 0.
    #[must_use]
    pub fn new(opens: bool) -> Self {
        Self {
            sender: Sender::default(),
            receiver: Receiver::default(),
            ack: AckSchedule::Idle,
            resume_due: opens,
        }
    }

    /// Whether [`send`](Self::send) takes one more record.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.sender.has_room()
    }

    /// Whether the peer has ever acknowledged anything.
    #[must_use]
    pub fn peer_acknowledges(&self) -> bool {
        self.sender.peer_acknowledges()
    }

    /// Records that were sent or wait to be, and that the peer is not known to have taken.
    #[must_use]
    pub fn unacknowledged_records(&self) -> usize {
        self.sender.unacknowledged_records()
    }

    /// Whether all records were sent, and acknowledged by a peer that acknowledges.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.sender.is_settled()
    }

    /// Whether [`poll_transmit`](Self::poll_transmit) has a frame.
    #[must_use]
    pub fn wants_transmit(&self) -> bool {
        self.resume_due || self.ack == AckSchedule::Now || self.sender.has_due()
    }

    /// Asks for an acknowledgement to be sent, so that the peer learns that this end does so.
    pub fn acknowledge_now(&mut self) {
        self.ack = AckSchedule::Now;
    }

    /// Takes a record, which is not empty. To be called while there is room.
    pub fn send(&mut self, record: Bytes) -> Result<(), SequenceExhausted> {
        self.sender.send(record)
    }

    /// Every inbound frame brings one. `is_ack_frame`: it came for its own sake, so the peer acknowledges.
    pub fn handle_ack(&mut self, ack: Acknowledgement, is_ack_frame: bool, now: Instant) {
        self.sender.handle_ack(ack, is_ack_frame, now);
    }

    pub fn handle_data(&mut self, segment: Segment, now: Instant) -> Result<(), ReceiveError> {
        let is_new = self.receiver.handle_data(segment, self.sender.peer_acknowledges())?;
        self.ack = match is_new {
            true => self.ack.by(now + ACK_DELAY),
            // The peer did not get the acknowledgement.
            false => AckSchedule::Now,
        };
        Ok(())
    }

    /// The peer has a new socket, and goes on there.
    pub fn handle_resume(&mut self, next_seq: u32) -> Result<(), ReceiveError> {
        self.receiver.handle_resume(next_seq)?;
        self.sender.handle_resume();
        self.ack = AckSchedule::Now;
        Ok(())
    }

    /// This end has a new socket. What was under way on the old one is sent again, if that helps.
    pub fn replace_socket(&mut self) -> Result<(), SocketLost> {
        self.sender.replace_socket()?;
        self.resume_due = true;
        Ok(())
    }

    pub fn handle_timeout(&mut self, now: Instant) {
        self.sender.handle_timeout(now);
        if let AckSchedule::By(moment) = self.ack
            && moment <= now
        {
            self.ack = AckSchedule::Now;
        }
    }

    /// When [`handle_timeout`](Self::handle_timeout) wants to be called.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let ack = match self.ack {
            AckSchedule::By(moment) => Some(moment),
            AckSchedule::Idle | AckSchedule::Now => None,
        };
        self.sender.poll_timeout().into_iter().chain(ack).min()
    }

    /// Records that were sent more than once, counted each time.
    #[must_use]
    pub fn retransmissions(&self) -> u64 {
        self.sender.retransmissions()
    }

    /// The next frame to send. Every frame takes the acknowledgement along.
    pub fn poll_transmit(&mut self, now: Instant) -> Option<(Transmit, Acknowledgement)> {
        let transmit = if std::mem::take(&mut self.resume_due) {
            Transmit::Resume { next_seq: self.sender.next_unacknowledged() }
        } else if let Some((seq, record)) = self.sender.poll_transmit(now) {
            Transmit::Data { seq, record }
        } else if self.ack == AckSchedule::Now {
            Transmit::Ack
        } else {
            return None;
        };
        self.ack = AckSchedule::Idle;
        Some((transmit, self.receiver.acknowledge()))
    }

    /// The next record, in order. It is acknowledged from now on, so a stream that is not read holds
    /// back its peer and nothing else.
    pub fn poll_record(&mut self, now: Instant) -> Option<Bytes> {
        let record = self.receiver.poll_record()?;
        let is_much = self.receiver.unacknowledged() >= ACK_EVERY
            || self.receiver.unacknowledged_bytes() >= ACK_EVERY_BYTES;
        self.ack = match is_much {
            true => AckSchedule::Now,
            false => self.ack.by(now + ACK_DELAY),
        };
        Some(record)
    }
}

impl AckSchedule {
    /// At that moment at the latest.
    fn by(self, moment: Instant) -> Self {
        match self {
            Self::Idle => Self::By(moment),
            Self::By(earlier) => Self::By(earlier.min(moment)),
            Self::Now => Self::Now,
        }
    }
}

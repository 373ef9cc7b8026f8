//! A stream of records over frames that may be lost, repeated and reordered, and over sockets that
//! are replaced. Each record arrives once and in order, or the stream ends.
//!
//! No I/O, no clock and no cryptography here: frames and the time enter through `handle_*`; frames
//! and the next timeout leave through `poll_*`. Records are handed over encrypted, and a
//! retransmission sends the same bytes, so it never uses a nonce twice.
//!
//! Acknowledgements travel in plaintext, and the rendezvous can forge them. A forged one can make
//! the sender forget a record too early; the receiver then waits in vain for that record. Nothing
//! is ever delivered wrongly: the channel above refuses records out of order.
//!
//! Some deployed peers send no acknowledgements. A stream to such a peer relies on its socket to
//! keep frames in order, and ends with the socket.

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

/// Maximum number of unacknowledged records in flight: a receiver buffers that many for a stream.
pub const WINDOW_RECORDS: u32 = 64;
/// Maximum bytes of unacknowledged records in flight. The last record may exceed it.
pub const WINDOW_BYTES: usize = 1 << 20;

/// How long an acknowledgement may wait for another frame that can carry it.
const ACK_DELAY: Duration = Duration::from_millis(25);
/// Once the reader has taken this many segments, or [`ACK_EVERY_BYTES`], since the last
/// acknowledgement, the next one is sent at once. Both are a quarter of the window.
const ACK_EVERY: u32 = WINDOW_RECORDS / 4;
const ACK_EVERY_BYTES: usize = WINDOW_BYTES / 4;

/// The records that were received, as stated in every outbound frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Acknowledgement {
    /// Everything up to here has been received. Zero may also mean that nothing has.
    pub ack: u32,
    /// Bit `i` stands for the sequence number `ack + 1 + i`.
    pub ack_bits: u32,
}

/// The content of a frame other than the acknowledgement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Transmit {
    Data {
        seq: u32,
        record: Bytes,
    },
    /// Only the acknowledgement.
    Ack,
    /// The first frame on a new socket: the sequence number with which this side continues.
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
    resume_due: bool,
}

/// When an acknowledgement must be sent, unless another frame carries it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AckSchedule {
    Idle,
    By(Instant),
    Now,
}

impl ReliableStream {
    /// If this end `opens` the stream, its first frame is a `Resume` of 0.
    #[must_use]
    pub fn new(opens: bool) -> Self {
        Self {
            sender: Sender::default(),
            receiver: Receiver::default(),
            ack: AckSchedule::Idle,
            resume_due: opens,
        }
    }

    /// Returns whether [`send`](Self::send) accepts one more record.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.sender.has_room()
    }

    /// Returns whether the peer has shown that it acknowledges.
    #[must_use]
    pub fn peer_acknowledges(&self) -> bool {
        self.sender.peer_acknowledges()
    }

    /// Returns the number of records in the window, from the oldest unacknowledged one to the
    /// newest.
    #[must_use]
    pub fn unacknowledged_records(&self) -> usize {
        self.sender.unacknowledged_records()
    }

    /// Returns whether all records were sent and, if the peer acknowledges, acknowledged.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.sender.is_settled()
    }

    /// Returns whether [`poll_transmit`](Self::poll_transmit) has a frame.
    #[must_use]
    pub fn wants_transmit(&self) -> bool {
        self.resume_due || self.ack == AckSchedule::Now || self.sender.has_due()
    }

    /// Schedules an acknowledgement at once, so that the peer learns that this end acknowledges.
    pub fn acknowledge_now(&mut self) {
        self.ack = AckSchedule::Now;
    }

    /// Queues a record, which must not be empty. Call it only while there is room.
    pub fn send(&mut self, record: Bytes) -> Result<(), SequenceExhausted> {
        self.sender.send(record)
    }

    /// Handles the acknowledgement that an inbound frame carries. `is_ack_frame`: the frame carries
    /// nothing else, which shows that the peer acknowledges, even if all fields are zero.
    pub fn handle_ack(&mut self, ack: Acknowledgement, is_ack_frame: bool, now: Instant) {
        self.sender.handle_ack(ack, is_ack_frame, now);
    }

    pub fn handle_data(&mut self, segment: Segment, now: Instant) -> Result<(), ReceiveError> {
        let is_new = self.receiver.handle_data(segment, self.sender.peer_acknowledges())?;
        self.ack = match is_new {
            true => self.ack.by(now + ACK_DELAY),
            // The segment was repeated, perhaps because the acknowledgement was lost, or is beyond
            // the window.
            false => AckSchedule::Now,
        };
        Ok(())
    }

    /// Handles a `Resume`: the peer continues on a new socket.
    pub fn handle_resume(&mut self, next_seq: u32) -> Result<(), ReceiveError> {
        self.receiver.handle_resume(next_seq)?;
        self.sender.handle_resume();
        self.ack = AckSchedule::Now;
        Ok(())
    }

    /// Continues on a new socket of this end. The data in flight on the old one is sent again, if
    /// the peer acknowledges.
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

    /// Returns when [`handle_timeout`](Self::handle_timeout) must be called.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let ack = match self.ack {
            AckSchedule::By(moment) => Some(moment),
            AckSchedule::Idle | AckSchedule::Now => None,
        };
        self.sender.poll_timeout().into_iter().chain(ack).min()
    }

    #[must_use]
    pub fn retransmissions(&self) -> u64 {
        self.sender.retransmissions()
    }

    /// Returns the next frame to send. Every frame carries the acknowledgement.
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

    /// Returns the next record, in order. A record leaves the window only here, so an unread stream
    /// holds back its peer and nothing else.
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
    /// Returns the schedule, with `moment` as its latest time.
    fn by(self, moment: Instant) -> Self {
        match self {
            Self::Idle => Self::By(moment),
            Self::By(earlier) => Self::By(earlier.min(moment)),
            Self::Now => Self::Now,
        }
    }
}

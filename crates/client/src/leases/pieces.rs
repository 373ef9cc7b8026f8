//! Pieces of an HTTP body that have not been consumed yet.

use std::collections::VecDeque;

use bytes::Bytes;
use exec_server_protocol::{BodyDeltaNotification, Method, RpcError};

use super::inbox::Queue;
use crate::{ExecServerError, Violation};

/// While the waiting pieces have this size or more, a server in the same program waits for room.
const FULL_BYTES: usize = 1 << 20;
/// Maximum size of waiting pieces from a server that waits for acknowledgements. Such a server
/// pauses while 2 MiB or more are unacknowledged.
const MAX_HELD_BACK: usize = 16 << 20;
/// Maximum size of waiting pieces from a server without backpressure.
const MAX_UNCHECKED: usize = 64 << 20;
/// The cost of a piece in addition to its bytes, so that the number of tiny pieces is bounded, too.
const PIECE_OVERHEAD: usize = 64;
/// An acknowledgement is sent after this many consumed bytes, or [`ACK_PIECES`] consumed pieces.
const ACK_BYTES: usize = 256 << 10;
const ACK_PIECES: u64 = 64;

#[derive(Debug)]
pub(crate) struct Pieces {
    waiting: VecDeque<(u64, Bytes)>,
    cost: usize,
    /// The number of the next piece.
    next: u64,
    /// Whether the server waits for acknowledgements.
    acks: bool,
    /// The last consumed piece.
    consumed: u64,
    /// The last acknowledged piece.
    acknowledged: u64,
    unacknowledged_bytes: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PieceKind {
    More,
    Last,
}

impl Default for Pieces {
    fn default() -> Self {
        Self {
            waiting: VecDeque::new(),
            cost: 0,
            next: 1,
            acks: false,
            consumed: 0,
            acknowledged: 0,
            unacknowledged_bytes: 0,
        }
    }
}

impl Pieces {
    pub(crate) fn acknowledge(&mut self, acks: bool) {
        self.acks = acks;
    }

    pub(crate) fn add(
        &mut self,
        delta: BodyDeltaNotification,
    ) -> Result<PieceKind, ExecServerError> {
        let BodyDeltaNotification { seq, delta_base64, done, error, .. } = delta;
        if seq != self.next {
            return Err(Violation::BodyNumbers { expected: self.next, got: seq }.into());
        }
        self.next += 1;
        let cost = delta_base64.len() + PIECE_OVERHEAD;
        match self.acks {
            true if self.cost + cost > MAX_HELD_BACK => {
                return Err(Violation::NotHeldBack { limit: MAX_HELD_BACK }.into());
            }
            false if self.cost + cost > MAX_UNCHECKED => {
                let method = Method::HttpRequest.name();
                return Err(ExecServerError::NotConsumed { method, limit: MAX_UNCHECKED });
            }
            _ => {}
        }
        if !delta_base64.is_empty() {
            self.cost += cost;
            self.waiting.push_back((seq, delta_base64.into_bytes()));
        }
        match error {
            Some(error) => Err(ExecServerError::Server(RpcError::internal(error))),
            None if done => Ok(PieceKind::Last),
            None => Ok(PieceKind::More),
        }
    }

    /// Returns the number of the piece to acknowledge now, if any.
    pub(crate) fn take_ack(&mut self) -> Option<u64> {
        if !self.has_outbound() {
            return None;
        }
        self.acknowledged = self.consumed;
        self.unacknowledged_bytes = 0;
        Some(self.consumed)
    }
}

impl Queue for Pieces {
    type Item = Bytes;

    fn pop(&mut self) -> Option<Bytes> {
        let (seq, piece) = self.waiting.pop_front()?;
        self.cost -= piece.len() + PIECE_OVERHEAD;
        self.consumed = seq;
        self.unacknowledged_bytes += piece.len();
        Some(piece)
    }

    fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    fn is_full(&self) -> bool {
        self.cost >= FULL_BYTES
    }

    fn has_outbound(&self) -> bool {
        let pieces = self.consumed - self.acknowledged;
        self.acks && (self.unacknowledged_bytes >= ACK_BYTES || pieces >= ACK_PIECES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn delta(seq: u64, bytes: usize) -> BodyDeltaNotification {
        BodyDeltaNotification {
            request_id: String::new(),
            seq,
            delta_base64: vec![b'x'; bytes].into(),
            done: false,
            error: None,
        }
    }

    fn acknowledging() -> Pieces {
        Pieces { acks: true, ..Pieces::default() }
    }

    #[test]
    fn consumed_pieces_are_acknowledged_in_batches() {
        let mut pieces = acknowledging();
        for seq in 1..=4 {
            assert_eq!(pieces.add(delta(seq, 100 << 10)).unwrap(), PieceKind::More);
        }
        assert_eq!(pieces.take_ack(), None, "nothing is consumed yet");
        pieces.pop().unwrap();
        pieces.pop().unwrap();
        assert_eq!(pieces.take_ack(), None);
        pieces.pop().unwrap();
        assert_eq!(pieces.take_ack(), Some(3));
        assert_eq!(pieces.take_ack(), None);
        for seq in 5..=70 {
            pieces.add(delta(seq, 1)).unwrap();
        }
        while !pieces.has_outbound() {
            pieces.pop().expect("tiny pieces are acknowledged, too");
        }
        assert_eq!(pieces.take_ack(), Some(67));
    }

    #[test]
    fn no_acknowledgement_is_due_for_a_server_without_support() {
        let mut pieces = Pieces::default();
        pieces.add(delta(1, 1 << 20)).unwrap();
        pieces.pop().unwrap();
        assert_eq!(pieces.take_ack(), None);
    }

    #[test]
    fn a_flood_exceeds_the_limit() {
        for (mut pieces, limit) in [(acknowledging(), 16), (Pieces::default(), 64)] {
            let fits = (1..).take_while(|seq| pieces.add(delta(*seq, 1 << 20)).is_ok()).count();
            assert_eq!(fits, limit - 1, "the overhead counts");
        }
        let mut pieces = acknowledging();
        for seq in 1..1_000_000 {
            pieces.add(delta(seq, 0)).unwrap();
        }
        assert_eq!(pieces.waiting.len(), 0, "empty pieces are not queued");
    }

    #[test]
    fn a_missing_piece_is_an_error() {
        for (first, second) in [(1, 3), (1, 1), (2, 3), (0, 1)] {
            let mut pieces = Pieces::default();
            let added = pieces.add(delta(first, 1)).and_then(|_| pieces.add(delta(second, 1)));
            let error = added.unwrap_err();
            assert!(matches!(error, ExecServerError::ProtocolViolation(_)), "{error}");
        }
    }

    #[test]
    fn the_last_piece_may_carry_bytes_or_an_error() {
        let mut pieces = Pieces::default();
        let last = BodyDeltaNotification { done: true, ..delta(1, 3) };
        assert_eq!(pieces.add(last).unwrap(), PieceKind::Last);
        assert_eq!(pieces.pop().unwrap().len(), 3);
        let failed = BodyDeltaNotification { error: Some("cut off".into()), ..delta(2, 0) };
        assert!(pieces.add(failed).unwrap_err().to_string().contains("cut off"));
    }
}

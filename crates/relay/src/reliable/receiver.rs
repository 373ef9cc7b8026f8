//! The receiving half: puts records in order, and buffers no more than the window.

use std::collections::{BTreeMap, VecDeque};

use bytes::{Bytes, BytesMut};

use super::{Acknowledgement, WINDOW_BYTES, WINDOW_RECORDS};

/// The largest Noise message, and so the largest record.
const MAX_RECORD_BYTES: usize = 65_535;

/// A `data` frame. This program sends records in one segment; other peers may split theirs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Segment {
    pub seq: u32,
    /// Its place in the record, from 0.
    pub index: u32,
    /// The number of segments in the record.
    pub count: u32,
    pub payload: Bytes,
}

/// Why a stream cannot continue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ReceiveError {
    /// The peer retransmits nothing, so this frame cannot be dropped.
    #[error("frame {seq} does not fit into the window; expected frame {expected}")]
    BeyondWindow { seq: u32, expected: u64 },
    #[error("the peer continues at frame {next_seq}, but frame {expected} never arrived")]
    Gap { next_seq: u32, expected: u64 },
    #[error("frame {seq} is not the next segment of its record")]
    Segments { seq: u32 },
    #[error("a record exceeds {MAX_RECORD_BYTES} bytes")]
    RecordTooLarge,
}

#[derive(Debug, Default)]
pub(super) struct Receiver {
    /// The number of the next segment in order. All earlier segments were assembled.
    next: u64,
    /// Segments beyond `next`.
    ahead: BTreeMap<u64, Segment>,
    /// Complete records that have not been taken yet, each with the number after its last segment.
    ready: VecDeque<(u64, Bytes)>,
    /// Bytes of `ahead` and `ready`.
    bytes: usize,
    partial: Option<Partial>,
    /// The number after the last segment that was taken. The window begins here.
    taken: u64,
    /// The value of `taken` in the last acknowledgement.
    told: u64,
    /// Bytes of the records that were taken since the last acknowledgement.
    untold_bytes: usize,
}

/// A record whose last segments are missing.
#[derive(Debug)]
struct Partial {
    count: u32,
    /// The index of the next missing segment.
    index: u32,
    payload: BytesMut,
}

impl Receiver {
    /// Returns whether the segment was accepted: `false` for a repetition, and for a segment beyond
    /// the window that the peer will send again.
    pub(super) fn handle_data(
        &mut self,
        segment: Segment,
        peer_sends_again: bool,
    ) -> Result<bool, ReceiveError> {
        let seq = u64::from(segment.seq);
        if seq < self.next || self.ahead.contains_key(&seq) {
            return Ok(false);
        }
        let is_beyond = seq >= self.taken + u64::from(WINDOW_RECORDS);
        // The byte limit does not apply to the next segment, without which nothing can continue.
        let is_too_much = seq != self.next && self.bytes + segment.payload.len() > WINDOW_BYTES;
        if is_beyond || is_too_much {
            if peer_sends_again {
                return Ok(false);
            }
            return Err(ReceiveError::BeyondWindow { seq: segment.seq, expected: self.next });
        }
        self.bytes += segment.payload.len();
        self.ahead.insert(seq, segment);
        while let Some(segment) = self.ahead.remove(&self.next) {
            self.next += 1;
            self.assemble(segment)?;
        }
        Ok(true)
    }

    /// Adds the next segment in order.
    fn assemble(&mut self, segment: Segment) -> Result<(), ReceiveError> {
        let Segment { seq, index, count, payload } = segment;
        let expected = self.partial.as_ref().map_or(0, |partial| partial.index);
        let is_of_record = self.partial.as_ref().is_none_or(|partial| partial.count == count);
        if index != expected || !is_of_record || index >= count {
            return Err(ReceiveError::Segments { seq });
        }
        let record = if count == 1 {
            payload
        } else {
            let mut partial = self.partial.take().unwrap_or_else(|| Partial {
                count,
                index: 0,
                payload: BytesMut::new(),
            });
            if partial.payload.len() + payload.len() > MAX_RECORD_BYTES {
                return Err(ReceiveError::RecordTooLarge);
            }
            partial.payload.extend_from_slice(&payload);
            partial.index += 1;
            if partial.index < count {
                // An assembled segment counts as taken, so that one record cannot fill the window.
                self.bytes -= payload.len();
                if self.ready.is_empty() {
                    self.taken = self.next;
                }
                self.partial = Some(partial);
                return Ok(());
            }
            self.bytes += partial.payload.len() - payload.len();
            partial.payload.freeze()
        };
        self.ready.push_back((self.next, record));
        Ok(())
    }

    /// Checks that no segment before `next_seq`, with which the peer continues, is missing.
    pub(super) fn handle_resume(&self, next_seq: u32) -> Result<(), ReceiveError> {
        if u64::from(next_seq) > self.next {
            return Err(ReceiveError::Gap { next_seq, expected: self.next });
        }
        Ok(())
    }

    pub(super) fn poll_record(&mut self) -> Option<Bytes> {
        let (end, record) = self.ready.pop_front()?;
        self.bytes -= record.len();
        self.untold_bytes += record.len();
        self.taken = self.ready.front().map_or_else(
            // Segments of the next record that are already assembled count, too.
            || self.next,
            |_| end,
        );
        Some(record)
    }

    /// Returns the number of segments taken since the last acknowledgement.
    pub(super) fn unacknowledged(&self) -> u32 {
        u32::try_from(self.taken - self.told).unwrap_or(u32::MAX)
    }

    pub(super) fn unacknowledged_bytes(&self) -> usize {
        self.untold_bytes
    }

    pub(super) fn acknowledge(&mut self) -> Acknowledgement {
        self.told = self.taken;
        self.untold_bytes = 0;
        let ack = self.taken.saturating_sub(1);
        let is_held = |seq: u64| seq < self.next || self.ahead.contains_key(&seq);
        let bits = (0..32).filter(|bit| is_held(ack + 1 + bit));
        let ack_bits = bits.fold(0, |bits, bit| bits | 1 << bit);
        Acknowledgement { ack: u32::try_from(ack).unwrap_or(u32::MAX), ack_bits }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment(seq: u32) -> Segment {
        Segment { seq, index: 0, count: 1, payload: Bytes::from(seq.to_be_bytes().to_vec()) }
    }

    fn records(receiver: &mut Receiver) -> Vec<u32> {
        let records = std::iter::from_fn(|| receiver.poll_record());
        records.map(|record| u32::from_be_bytes((&record[..]).try_into().unwrap())).collect()
    }

    #[test]
    fn records_are_put_in_order_and_taken_once() {
        let mut receiver = Receiver::default();
        for (seq, is_new) in [(2, true), (0, true), (0, false), (2, false), (1, true), (1, false)] {
            assert_eq!(receiver.handle_data(segment(seq), true), Ok(is_new), "{seq}");
        }
        assert_eq!(records(&mut receiver), [0, 1, 2]);
        assert_eq!(receiver.handle_data(segment(1), true), Ok(false));
        assert_eq!(receiver.bytes, 0);
    }

    #[test]
    fn acknowledgements_cover_taken_and_waiting_records() {
        let mut receiver = Receiver::default();
        assert_eq!(receiver.acknowledge(), Acknowledgement::default());
        for seq in [0, 1, 3] {
            receiver.handle_data(segment(seq), true).unwrap();
        }
        assert_eq!(receiver.acknowledge(), Acknowledgement { ack: 0, ack_bits: 0b101 });
        receiver.poll_record().unwrap();
        assert_eq!(receiver.acknowledge(), Acknowledgement { ack: 0, ack_bits: 0b101 });
        receiver.poll_record().unwrap();
        assert_eq!(receiver.acknowledge(), Acknowledgement { ack: 1, ack_bits: 0b10 });
    }

    #[test]
    fn the_window_bounds_the_buffered_segments() {
        let mut receiver = Receiver::default();
        for seq in 1..2 * WINDOW_RECORDS {
            let is_held = receiver.handle_data(segment(seq), true).unwrap();
            assert_eq!(is_held, seq < WINDOW_RECORDS, "{seq}");
        }
        let beyond = receiver.handle_data(segment(WINDOW_RECORDS), false);
        assert!(matches!(beyond, Err(ReceiveError::BeyondWindow { .. })));
        // An application that does not read also limits the peer.
        receiver.handle_data(segment(0), true).unwrap();
        assert_eq!(receiver.handle_data(segment(WINDOW_RECORDS), true), Ok(false));
        assert_eq!(records(&mut receiver).len(), WINDOW_RECORDS as usize);
        assert_eq!(receiver.handle_data(segment(WINDOW_RECORDS), true), Ok(true));

        let mut receiver = Receiver::default();
        let large =
            |seq| Segment { payload: Bytes::from(vec![0; WINDOW_BYTES / 4]), ..segment(seq) };
        let held = (1..10).filter(|seq| receiver.handle_data(large(*seq), true).unwrap()).count();
        assert_eq!(held, 4);
        assert_eq!(
            receiver.handle_data(large(0), true),
            Ok(true),
            "the byte limit does not apply to the next segment"
        );
    }

    #[test]
    fn segments_become_one_record() {
        let part = |seq, index, count, payload: &'static str| Segment {
            seq,
            index,
            count,
            payload: Bytes::from(payload),
        };
        let mut receiver = Receiver::default();
        for segment in
            [part(2, 2, 3, "c"), part(0, 0, 3, "a"), part(1, 1, 3, "b"), part(3, 0, 1, "d")]
        {
            receiver.handle_data(segment, true).unwrap();
        }
        assert_eq!(receiver.poll_record().unwrap(), "abc");
        assert_eq!(receiver.poll_record().unwrap(), "d");
        assert_eq!((receiver.bytes, receiver.taken), (0, 4));

        for wrong in [
            &[part(0, 1, 2, "a")][..],
            &[part(0, 0, 0, "a")],
            &[part(0, 0, 2, "a"), part(1, 0, 1, "b")],
            &[part(0, 0, 2, "a"), part(1, 1, 3, "b")],
            &[part(0, 0, 3, "a"), part(1, 2, 3, "b")],
        ] {
            let mut receiver = Receiver::default();
            let ends = wrong.iter().map(|segment| receiver.handle_data(segment.clone(), true));
            assert!(matches!(ends.last(), Some(Err(ReceiveError::Segments { .. }))), "{wrong:?}");
        }
    }

    #[test]
    fn a_record_of_many_segments_is_bounded_and_does_not_fill_the_window() {
        let mut receiver = Receiver::default();
        let part =
            |index| Segment { seq: index, index, count: 1000, payload: Bytes::from(vec![0; 600]) };
        let ends: Vec<_> = (0..1000).map(|index| receiver.handle_data(part(index), true)).collect();
        let limit = MAX_RECORD_BYTES / 600;
        assert!(ends[..limit].iter().all(|end| *end == Ok(true)));
        assert_eq!(ends[limit], Err(ReceiveError::RecordTooLarge));
    }

    #[test]
    fn a_resume_beyond_the_next_segment_means_a_loss() {
        let mut receiver = Receiver::default();
        receiver.handle_data(segment(0), true).unwrap();
        assert_eq!(receiver.handle_resume(0), Ok(()));
        assert_eq!(receiver.handle_resume(1), Ok(()));
        let gap = Err(ReceiveError::Gap { next_seq: 2, expected: 1 });
        assert_eq!(receiver.handle_resume(2), gap);
    }
}

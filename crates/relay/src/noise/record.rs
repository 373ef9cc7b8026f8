//! Records: the encrypted pieces of a stream, after the handshake.
//!
//! The position of a record in its stream is its nonce, and is not part of the record. So the
//! caller orders records before opening them, and retransmits the bytes of a sealed record instead
//! of sealing again.

use std::fmt;

use bytes::{Bytes, BytesMut};
use clatter::cipherstate::{CipherState, CipherStates};
use clatter::constants::MAX_MESSAGE_LEN;
use ring::aead::{Aad, LessSafeKey, Nonce};

pub use super::primitives::TAG_LEN;
use super::primitives::{RingAesGcm, ring_key, ring_nonce};

/// The longest plaintext of a record. The shortest is one byte.
pub const MAX_RECORD_PLAINTEXT: usize = 60 * 1024;

/// The number of records in one direction: one for each value of `seq`, which does not wrap.
const MAX_RECORDS: u64 = 1 << 32;

/// Both directions of an established stream.
#[derive(Debug)]
pub struct Channel {
    pub sender: RecordSealer,
    pub receiver: RecordOpener,
}

impl Channel {
    pub(super) fn of_harness(keys: CipherStates<RingAesGcm>) -> Self {
        Self {
            sender: RecordSealer { direction: Direction::new(keys.initiator_to_responder) },
            receiver: RecordOpener { direction: Some(Direction::new(keys.responder_to_initiator)) },
        }
    }

    pub(super) fn of_environment(keys: CipherStates<RingAesGcm>) -> Self {
        Self {
            sender: RecordSealer { direction: Direction::new(keys.responder_to_initiator) },
            receiver: RecordOpener { direction: Some(Direction::new(keys.initiator_to_responder)) },
        }
    }
}

pub struct RecordSealer {
    direction: Direction,
}

impl RecordSealer {
    /// Encrypts the next record in place. With [`TAG_LEN`] bytes of spare capacity nothing is
    /// copied.
    ///
    /// The peer must open records in the order in which they were sealed.
    pub fn seal(&mut self, mut record: BytesMut) -> Result<Bytes, SealError> {
        let len = record.len();
        if !(1..=MAX_RECORD_PLAINTEXT).contains(&len) {
            return Err(SealError::PlaintextLength { len });
        }
        // Invariant: the counter advances before the key is used, so no nonce is used twice.
        let nonce = self.direction.next_nonce().ok_or(SealError::Exhausted)?;
        let tag = self
            .direction
            .key
            .seal_in_place_separate_tag(nonce, Aad::empty(), &mut record)
            .expect("a record is shorter than the limit of AES-GCM");
        record.extend_from_slice(tag.as_ref());
        Ok(record.freeze())
    }
}

impl fmt::Debug for RecordSealer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("RecordSealer")
            .field("next", &self.direction.next)
            .finish_non_exhaustive()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SealError {
    /// A caller error. The stream can continue.
    #[error("the record has {len} bytes; expected 1 to {MAX_RECORD_PLAINTEXT}")]
    PlaintextLength { len: usize },
    /// The stream must end.
    #[error("the stream has used all of its record numbers")]
    Exhausted,
}

/// Decrypts the records of the other direction. After the first failure it opens nothing.
pub struct RecordOpener {
    /// `None` after a failure.
    direction: Option<Direction>,
}

impl RecordOpener {
    /// Decrypts the next record, in place if nothing else shares its buffer.
    ///
    /// Every error ends the stream.
    pub fn open(&mut self, record: Bytes) -> Result<Bytes, OpenError> {
        let direction = self.direction.as_mut().ok_or(OpenError::Failed)?;
        let opened = direction.open(record);
        if opened.is_err() {
            self.direction = None;
        }
        opened
    }
}

impl fmt::Debug for RecordOpener {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("RecordOpener")
            .field("next", &self.direction.as_ref().map(|direction| direction.next))
            .finish_non_exhaustive()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    #[error("the encrypted record has {len} bytes; expected {} to {}", 1 + TAG_LEN, MAX_RECORD)]
    Length { len: usize },
    #[error("record {number} is forged, repeated or out of order")]
    Forged { number: u64 },
    #[error("the stream has used all of its record numbers")]
    Exhausted,
    #[error("an earlier record of the stream was refused")]
    Failed,
}

const MAX_RECORD: usize = MAX_RECORD_PLAINTEXT + TAG_LEN;
const _: () = assert!(MAX_RECORD <= MAX_MESSAGE_LEN);

struct Direction {
    key: LessSafeKey,
    next: u64,
}

impl Direction {
    fn new(state: CipherState<RingAesGcm>) -> Self {
        let (key, next) = state.take();
        Self { key: ring_key(&key), next }
    }

    fn next_nonce(&mut self) -> Option<Nonce> {
        let number = self.next;
        (number < MAX_RECORDS).then(|| {
            self.next += 1;
            ring_nonce(number)
        })
    }

    fn open(&mut self, record: Bytes) -> Result<Bytes, OpenError> {
        let len = record.len();
        if !(1 + TAG_LEN..=MAX_RECORD).contains(&len) {
            return Err(OpenError::Length { len });
        }
        let number = self.next;
        let nonce = self.next_nonce().ok_or(OpenError::Exhausted)?;
        let mut record =
            record.try_into_mut().unwrap_or_else(|shared| BytesMut::from(shared.as_ref()));
        self.key
            .open_in_place(nonce, Aad::empty(), &mut record)
            .map_err(|_| OpenError::Forged { number })?;
        record.truncate(len - TAG_LEN);
        Ok(record.freeze())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clatter::bytearray::SensitiveByteArray;
    use clatter::crypto::cipher::AesGcm;
    use clatter::traits::Cipher;

    const KEY: [u8; 32] = [0x42; 32];

    fn sealer(next: u64) -> RecordSealer {
        RecordSealer { direction: Direction { key: ring_key(&KEY), next } }
    }

    fn opener(next: u64) -> RecordOpener {
        RecordOpener { direction: Some(Direction { key: ring_key(&KEY), next }) }
    }

    #[test]
    fn every_sequence_number_has_a_record_and_none_wraps() {
        let last = u64::from(u32::MAX);
        let mut sealer = sealer(last);
        let mut opener = opener(last);
        let record = sealer.seal(BytesMut::from("last")).unwrap();

        let mut expected = [0; 4 + TAG_LEN];
        AesGcm::encrypt(&SensitiveByteArray::new(KEY), last, &[], b"last", &mut expected).unwrap();
        assert_eq!(record, expected.as_slice());

        assert_eq!(opener.open(record.clone()).unwrap(), "last");
        for _ in 0..2 {
            assert_eq!(sealer.seal(BytesMut::from("more")), Err(SealError::Exhausted));
        }
        assert_eq!(opener.open(record.clone()), Err(OpenError::Exhausted));
        assert_eq!(opener.open(record), Err(OpenError::Failed));
    }

    #[test]
    fn a_plaintext_of_a_wrong_length_uses_no_number() {
        let mut sealer = sealer(0);
        for len in [0, MAX_RECORD_PLAINTEXT + 1] {
            let error = sealer.seal(BytesMut::zeroed(len));
            assert_eq!(error, Err(SealError::PlaintextLength { len }));
        }
        let record = sealer.seal(BytesMut::from("first")).unwrap();
        assert_eq!(opener(0).open(record).unwrap(), "first");
    }

    #[test]
    fn the_shortest_and_the_longest_record_pass() {
        let (mut sealer, mut opener) = (sealer(0), opener(0));
        for len in [1, MAX_RECORD_PLAINTEXT] {
            let record = sealer.seal(BytesMut::zeroed(len)).unwrap();
            assert_eq!(record.len(), len + TAG_LEN);
            assert_eq!(opener.open(record).unwrap(), vec![0; len]);
        }
    }

    #[test]
    fn records_of_a_wrong_length_kill_the_opener() {
        let good = sealer(0).seal(BytesMut::from("x")).unwrap();
        for len in [0, 1, TAG_LEN, MAX_RECORD + 1] {
            let mut opener = opener(0);
            let error = opener.open(BytesMut::zeroed(len).freeze());
            assert_eq!(error, Err(OpenError::Length { len }));
            assert_eq!(opener.open(good.clone()), Err(OpenError::Failed));
        }
    }

    /// The buffer of the WebSocket message becomes the plaintext, without a copy.
    #[test]
    fn sealing_and_opening_work_in_place() {
        let mut buffer = BytesMut::with_capacity(4 + TAG_LEN);
        buffer.extend_from_slice(b"text");
        let address = buffer.as_ptr();
        let record = sealer(0).seal(buffer).unwrap();
        assert_eq!(record.as_ptr(), address);

        let mut message = BytesMut::from("header");
        message.extend_from_slice(&record);
        let payload = message.freeze().split_off(6);
        let address = payload.as_ptr();
        let opened = opener(0).open(payload).unwrap();
        assert_eq!(opened, "text");
        assert_eq!(opened.as_ptr(), address);
    }

    /// A shared buffer stays unchanged: a retransmission must send the same bytes.
    #[test]
    fn a_shared_record_is_not_overwritten() {
        let record = sealer(0).seal(BytesMut::from("text")).unwrap();
        let kept = record.clone();
        let before = kept.to_vec();
        assert_eq!(opener(0).open(record).unwrap(), "text");
        assert_eq!(kept, before);
    }

    #[test]
    fn every_flipped_bit_is_refused() {
        let record = sealer(0).seal(BytesMut::from("the text of a record")).unwrap();
        for bit in 0..record.len() * 8 {
            let mut altered = BytesMut::from(&record[..]);
            altered[bit / 8] ^= 1 << (bit % 8);
            let mut opener = opener(0);
            assert_eq!(opener.open(altered.freeze()), Err(OpenError::Forged { number: 0 }));
            assert_eq!(opener.open(record.clone()), Err(OpenError::Failed));
        }
    }

    #[test]
    fn every_truncated_or_extended_record_is_refused() {
        let record = sealer(0).seal(BytesMut::from("the text of a record")).unwrap();
        for len in (0..record.len()).chain(record.len() + 1..record.len() + 20) {
            let mut altered = BytesMut::from(&record[..]);
            altered.resize(len, 0);
            opener(0).open(altered.freeze()).unwrap_err();
        }
    }

    #[test]
    fn a_forged_record_leaves_no_plaintext_in_its_buffer() {
        let mut record = BytesMut::from(&sealer(0).seal(BytesMut::from("secret")).unwrap()[..]);
        record[6] ^= 1;
        let mut direction = opener(0).direction.unwrap();
        let nonce = direction.next_nonce().unwrap();
        direction.key.open_in_place(nonce, Aad::empty(), &mut record).unwrap_err();
        assert_eq!(&record[..6], [0; 6]);
    }
}

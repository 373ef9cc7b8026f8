use std::borrow::Borrow;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::str::FromStr;

use thiserror::Error;
use uuid::Uuid;

pub const MAX_STREAM_ID_BYTES: usize = 64;

/// The name of a stream: 1 to 64 graphic ASCII characters.
///
/// Harnesses pick a UUIDv4, but any text within the bounds is valid. Frames are routed by the text
/// and the handshake authenticates it, so the text is kept as it was sent: another spelling of the
/// same UUID is another stream. The bounds give the maps of a rendezvous keys of a fixed size, and
/// keep an id from forging a log line.
#[derive(Clone, Copy)]
pub struct StreamId {
    len: u8,
    /// ASCII up to `len`, then zeros.
    bytes: [u8; MAX_STREAM_ID_BYTES],
}

/// Omits the text: it comes from a peer, and may be unprintable or long.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("stream id of {len} bytes is not 1 to {MAX_STREAM_ID_BYTES} graphic ASCII characters")]
pub struct InvalidStreamId {
    pub len: usize,
}

impl StreamId {
    /// Returns a new UUIDv4, in lowercase with hyphens.
    #[must_use]
    pub fn random() -> Self {
        let mut bytes = [0; MAX_STREAM_ID_BYTES];
        let len = Uuid::new_v4().hyphenated().encode_lower(&mut bytes).len();
        Self { len: u8::try_from(len).expect("a UUID has 36 characters"), bytes }
    }

    #[must_use]
    pub fn as_str(&self) -> &str {
        let text = &self.bytes[..usize::from(self.len)];
        str::from_utf8(text).expect("a stream id is ASCII")
    }
}

impl FromStr for StreamId {
    type Err = InvalidStreamId;

    fn from_str(text: &str) -> Result<Self, InvalidStreamId> {
        let error = InvalidStreamId { len: text.len() };
        if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(error);
        }
        let mut bytes = [0; MAX_STREAM_ID_BYTES];
        bytes.get_mut(..text.len()).ok_or(error)?.copy_from_slice(text.as_bytes());
        Ok(Self { len: u8::try_from(text.len()).map_err(|_| error)?, bytes })
    }
}

/// Lets the text from [`peek_stream_id`](super::peek_stream_id) be looked up in a map of streams.
impl Borrow<str> for StreamId {
    fn borrow(&self) -> &str {
        self.as_str()
    }
}

impl PartialEq for StreamId {
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
    }
}

impl Eq for StreamId {}

impl Hash for StreamId {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_str().hash(state);
    }
}

impl fmt::Display for StreamId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl fmt::Debug for StreamId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    #[test]
    fn a_random_id_is_a_canonical_uuid_of_version_4() {
        let id = StreamId::random();
        let uuid = Uuid::parse_str(id.as_str()).unwrap();
        assert_eq!(uuid.get_version_num(), 4);
        assert_eq!(uuid.hyphenated().to_string(), id.to_string());
        assert_ne!(id, StreamId::random());
    }

    #[test]
    fn text_is_kept_as_it_was_sent() {
        for text in ["s", "A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11", &"x".repeat(64)] {
            assert_eq!(text.parse::<StreamId>().unwrap().as_str(), text);
        }
    }

    #[test]
    fn empty_long_and_non_graphic_text_is_refused() {
        for text in ["", "a b", "a\n", "\u{7f}", "é", &"x".repeat(65), &"x".repeat(300)] {
            assert_eq!(text.parse::<StreamId>(), Err(InvalidStreamId { len: text.len() }));
        }
    }

    #[test]
    fn a_map_is_searched_by_text() {
        let id = StreamId::random();
        let streams = HashMap::from([(id, 7)]);
        assert_eq!(streams.get(id.as_str()), Some(&7));
        assert_eq!(streams.get("other"), None);
    }
}

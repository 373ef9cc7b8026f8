//! The context that both ends mix into the handshake before its first message.

/// The first part of every prologue. It separates this protocol from others that use Noise.
pub const DOMAIN: &str = "codex-exec-server-relay-noise/v1";

/// Identifies a stream. A handshake succeeds only if both ends have the same prologue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Prologue<'a> {
    pub environment_id: &'a str,
    pub registration_id: &'a str,
    pub stream_id: &'a str,
}

impl Prologue<'_> {
    /// Encodes each part after its length, so that no text can move from one part into the next.
    pub(super) fn encode(&self) -> Vec<u8> {
        let parts = [DOMAIN, self.environment_id, self.registration_id, self.stream_id];
        let mut bytes = Vec::with_capacity(parts.iter().map(|part| 8 + part.len()).sum());
        for part in parts {
            bytes.extend_from_slice(&(part.len() as u64).to_be_bytes());
            bytes.extend_from_slice(part.as_bytes());
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_preceded_by_their_length() {
        let prologue = Prologue { environment_id: "box", registration_id: "", stream_id: "é" };
        let expected = [
            b"\0\0\0\0\0\0\0\x20codex-exec-server-relay-noise/v1".as_slice(),
            b"\0\0\0\0\0\0\0\x03box",
            b"\0\0\0\0\0\0\0\0",
            b"\0\0\0\0\0\0\0\x02\xc3\xa9",
        ]
        .concat();
        assert_eq!(prologue.encode(), expected);
    }

    #[test]
    fn text_cannot_move_between_parts() {
        let prologue = |environment_id, registration_id| {
            Prologue { environment_id, registration_id, stream_id: "s" }.encode()
        };
        assert_ne!(prologue("ab", "c"), prologue("a", "bc"));
    }
}

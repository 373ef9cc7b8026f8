use std::borrow::Cow;
use std::fmt;

/// The longest reason that is kept.
pub const MAX_RESET_REASON_BYTES: usize = 256;

/// Why a peer ended a stream. Never empty. A text beyond [`MAX_RESET_REASON_BYTES`] is cut off: the
/// reset counts even if its reason is too long.
///
/// A rendezvous can forge a reason, so a reason decides only whether a first contact is retried.
/// The text may come from an attacker: `Display` and `Debug` write it in printable ASCII on one
/// line.
#[derive(Clone, PartialEq, Eq)]
pub struct ResetReason(Cow<'static, str>);

impl ResetReason {
    /// The handshake failed or was refused, or the peer or the rendezvous broke the protocol. Some
    /// deployed peers send the same text.
    pub const NOISE_PROTOCOL_ERROR: Self = Self::from_static("noise_relay_protocol_error");
    /// The environment cannot take the stream now: it has too many streams or handshakes, is
    /// shutting down, or its registry could not decide.
    pub const LIMIT_REACHED: Self = Self::from_static("limit_reached");
    /// The environment has no such stream: the handshake was lost, the stream has ended, or the
    /// environment was restarted.
    pub const UNKNOWN_STREAM: Self = Self::from_static("unknown_stream");

    /// Creates a reason from a fixed text, which is checked at compile time if the reason is a
    /// constant.
    #[must_use]
    pub const fn from_static(text: &'static str) -> Self {
        assert!(!text.is_empty() && text.len() <= MAX_RESET_REASON_BYTES);
        Self(Cow::Borrowed(text))
    }

    /// Returns `None` if the text is empty.
    #[must_use]
    pub fn new(text: &str) -> Option<Self> {
        let kept = &text[..text.floor_char_boundary(MAX_RESET_REASON_BYTES)];
        (!kept.is_empty()).then(|| Self(Cow::Owned(kept.to_owned())))
    }

    /// Returns the text as it was sent. Not for display: it may contain control characters.
    #[must_use]
    pub fn raw(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ResetReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.escape_default().fmt(f)
    }
}

impl fmt::Debug for ResetReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_text_is_displayed_as_printable_ascii() {
        let reason = ResetReason::new("gone\r\n\x1b[2J\u{202e}\u{9b}\"é").unwrap();
        let shown = r#"gone\r\n\u{1b}[2J\u{202e}\u{9b}\"\u{e9}"#;
        assert_eq!(reason.to_string(), shown);
        assert_eq!(format!("{reason:?}"), format!("\"{shown}\""));
        assert_eq!(reason.raw(), "gone\r\n\x1b[2J\u{202e}\u{9b}\"é");
    }

    #[test]
    fn a_long_reason_is_truncated_between_characters() {
        let reason = ResetReason::new(&"é".repeat(4096)).unwrap();
        assert_eq!(reason.raw(), "é".repeat(128));
        let reason = ResetReason::new(&format!("a{}", "é".repeat(4096))).unwrap();
        assert_eq!(reason.raw().len(), 255);
    }

    #[test]
    fn an_empty_reason_is_refused() {
        assert_eq!(ResetReason::new(""), None);
    }
}

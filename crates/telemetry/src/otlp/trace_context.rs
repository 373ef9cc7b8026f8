//! The caller's trace context, in the format of W3C Trace Context. The caller's span becomes the
//! parent.
//!
//! An invalid context is ignored. Callers choose its text, so it is never logged.

use std::sync::Arc;

/// The specification asks programs to propagate a `tracestate` of up to this size. A longer one is
/// dropped.
const MAX_STATE_BYTES: usize = 512;
const MAX_STATE_MEMBERS: usize = 32;
const MAX_STATE_PART_BYTES: usize = 256;

/// `00-`, a trace id, `-`, a span id, `-` and the flags.
const TRACEPARENT_BYTES: usize = 55;
const SAMPLED: u8 = 1;

/// A span of another program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemoteParent {
    pub(super) trace_id: [u8; 16],
    pub(super) span_id: [u8; 8],
    pub(super) is_sampled: bool,
    pub(super) state: Option<Arc<str>>,
}

impl RemoteParent {
    /// Returns `None` if `traceparent` is invalid. An invalid `tracestate` is dropped.
    #[must_use]
    pub fn parse(traceparent: &str, tracestate: Option<&str>) -> Option<Self> {
        let text = traceparent.as_bytes();
        let version = hex::<1>(text.get(..2)?)?[0];
        // Later versions may append fields; version 255 is invalid.
        let has_known_length = match version {
            0 => text.len() == TRACEPARENT_BYTES,
            255 => false,
            _ => text.len() == TRACEPARENT_BYTES || text.get(TRACEPARENT_BYTES) == Some(&b'-'),
        };
        let dashes = [2, 35, 52].map(|at| text.get(at));
        if !has_known_length || dashes != [Some(&b'-'); 3] {
            return None;
        }
        let trace_id = hex(text.get(3..35)?)?;
        let span_id = hex(text.get(36..52)?)?;
        let [flags] = hex(text.get(53..TRACEPARENT_BYTES)?)?;
        if trace_id == [0; 16] || span_id == [0; 8] {
            return None;
        }
        let state = tracestate.filter(|state| is_valid_state(state)).map(Arc::from);
        Some(Self { trace_id, span_id, is_sampled: flags & SAMPLED != 0, state })
    }
}

/// Decodes lowercase digits only, as the specification requires.
fn hex<const N: usize>(text: &[u8]) -> Option<[u8; N]> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(text.as_chunks::<2>().0) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(bytes)
}

fn is_valid_state(state: &str) -> bool {
    if state.is_empty() || state.len() > MAX_STATE_BYTES {
        return false;
    }
    let mut keys = Vec::new();
    for member in state.split(',').map(|member| member.trim_matches([' ', '\t'])) {
        // Empty members are allowed.
        if member.is_empty() {
            continue;
        }
        let Some((key, value)) = member.split_once('=') else { return false };
        if !is_key(key) || !is_value(value) || keys.contains(&key) {
            return false;
        }
        keys.push(key);
    }
    (1..=MAX_STATE_MEMBERS).contains(&keys.len())
}

fn is_key(key: &str) -> bool {
    let is_start = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let is_rest = |byte: u8| is_start(&byte) || matches!(byte, b'_' | b'-' | b'*' | b'/' | b'@');
    key.len() <= MAX_STATE_PART_BYTES
        && key.as_bytes().first().is_some_and(is_start)
        && key.bytes().all(is_rest)
        && key.matches('@').count() <= 1
}

fn is_value(value: &str) -> bool {
    value.len() <= MAX_STATE_PART_BYTES
        && !value.is_empty()
        && value.bytes().all(|byte| matches!(byte, b' '..=b'~') && byte != b'=')
}

#[cfg(test)]
mod tests {
    use super::*;

    const VALID: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    fn parse(traceparent: &str) -> Option<RemoteParent> {
        RemoteParent::parse(traceparent, None)
    }

    #[test]
    fn a_valid_parent_is_parsed() {
        let parent = parse(VALID).unwrap();
        assert_eq!(parent.trace_id[..3], [0x0a, 0xf7, 0x65]);
        assert_eq!(parent.trace_id[15], 0x9c);
        assert_eq!(parent.span_id, [0xb7, 0xad, 0x6b, 0x71, 0x69, 0x20, 0x33, 0x31]);
        assert!(parent.is_sampled);
        assert!(!parse(&VALID.replace("-01", "-00")).unwrap().is_sampled);
        // Unknown flags are ignored.
        assert!(parse(&VALID.replace("-01", "-ff")).unwrap().is_sampled);
    }

    #[test]
    fn later_versions_may_have_more_fields() {
        assert!(parse(&VALID.replacen("00", "cc", 1)).is_some());
        assert!(parse(&format!("{}-more", VALID.replacen("00", "cc", 1))).is_some());
        assert!(parse(&format!("{}more", VALID.replacen("00", "cc", 1))).is_none());
        assert!(parse(&format!("{VALID}-more")).is_none());
    }

    #[test]
    fn an_invalid_context_is_ignored() {
        let mut invalid = vec![
            String::new(),
            "00".to_owned(),
            VALID.to_uppercase(),
            VALID.replacen("00", "ff", 1),
            VALID.replacen("00", "0x", 1),
            VALID.replace("0af7651916cd43dd8448eb211c80319c", &"0".repeat(32)),
            VALID.replace("b7ad6b7169203331", &"0".repeat(16)),
            VALID.replace('-', "_"),
            VALID.replace("0af", "\u{e9}a"),
            format!(" {VALID}"),
            format!("{VALID}\n"),
            "\u{1b}[31m".repeat(100_000),
            "0".repeat(1 << 20),
        ];
        invalid.extend((0..VALID.len()).map(|len| VALID[..len].to_owned()));
        for text in invalid {
            assert_eq!(parse(&text), None, "{:?}", text.chars().take(60).collect::<String>());
        }
    }

    #[test]
    fn an_invalid_state_is_dropped() {
        let state = |state: &str| RemoteParent::parse(VALID, Some(state)).unwrap().state;
        for valid in ["a=1", "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE", "a@b=x y , c=1,", "0-_*/=~"]
        {
            assert_eq!(state(valid).as_deref(), Some(valid));
        }
        let many: Vec<_> = (0..33).map(|key| format!("k{key}=1")).collect();
        for invalid in [
            "",
            ",",
            "a",
            "=1",
            "a=",
            "A=1",
            "a=1,a=2",
            "a=1\nb",
            "a=\u{1b}[31m",
            "a=b=c",
            "a@b@c=1",
            "a=\u{e9}",
            &many.join(","),
            &format!("a={}", "x".repeat(257)),
            &"a=1,".repeat(1 << 18),
        ] {
            assert_eq!(state(invalid), None, "{:?}", invalid.chars().take(60).collect::<String>());
        }
    }
}

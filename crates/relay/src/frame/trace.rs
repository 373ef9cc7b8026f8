/// The longest `tracestate` that is kept. W3C Trace Context asks to propagate at least this much.
pub const MAX_TRACESTATE_BYTES: usize = 512;

/// The lengths of the fields of a `traceparent`: version, trace id, parent id, flags.
const TRACEPARENT_FIELDS: [usize; 4] = [2, 32, 16, 2];

/// W3C trace context of a request. The rendezvous can read it, and forge it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trace {
    traceparent: String,
    tracestate: Option<String>,
}

impl Trace {
    /// Returns `None` if `traceparent` does not have the form `00-TRACE-PARENT-FLAGS` of version 0.
    /// A malformed `tracestate` is dropped.
    #[must_use]
    pub fn new(traceparent: String, tracestate: Option<String>) -> Option<Self> {
        is_traceparent(&traceparent).then(|| Self {
            traceparent,
            tracestate: tracestate.filter(|state| is_tracestate(state)),
        })
    }

    #[must_use]
    pub fn traceparent(&self) -> &str {
        &self.traceparent
    }

    #[must_use]
    pub fn tracestate(&self) -> Option<&str> {
        self.tracestate.as_deref()
    }
}

/// Accepts only version 0. Later versions may be longer, and losing a trace is better than keeping
/// unbounded text.
fn is_traceparent(text: &str) -> bool {
    let mut fields = text.split('-');
    let is_formed = TRACEPARENT_FIELDS.iter().all(|len| {
        let is_hex = |field: &str| field.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        fields.next().is_some_and(|field| field.len() == *len && is_hex(field))
    });
    // An id of all zeros is invalid.
    let is_zero = |field: &str| field.bytes().all(|byte| byte == b'0');
    is_formed
        && fields.next().is_none()
        && text.starts_with("00-")
        && !text.split('-').skip(1).take(2).any(is_zero)
}

fn is_tracestate(text: &str) -> bool {
    (1..=MAX_TRACESTATE_BYTES).contains(&text.len())
        && text.bytes().all(|byte| matches!(byte, b' '..=b'~'))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    #[test]
    fn a_trace_keeps_both_fields() {
        let trace = Trace::new(PARENT.to_owned(), Some("vendor=a, other=b".to_owned())).unwrap();
        assert_eq!(trace.traceparent(), PARENT);
        assert_eq!(trace.tracestate(), Some("vendor=a, other=b"));
    }

    #[test]
    fn a_malformed_traceparent_is_ignored() {
        let zero_trace = format!("00-{}-b7ad6b7169203331-01", "0".repeat(32));
        let zero_parent = format!("00-0af7651916cd43dd8448eb211c80319c-{}-01", "0".repeat(16));
        for text in [
            "",
            "t",
            &PARENT[1..],
            &PARENT[..54],
            &PARENT.to_uppercase(),
            &PARENT.replace("00-", "ff-"),
            &PARENT.replace('7', "\n"),
            &PARENT.replace("0a", "é"),
            &format!("{PARENT}-"),
            &format!("{PARENT}-extra"),
            &zero_trace,
            &zero_parent,
        ] {
            assert_eq!(Trace::new(text.to_owned(), None), None, "{text}");
        }
    }

    #[test]
    fn a_malformed_tracestate_is_dropped() {
        for state in ["", "a=\n", "a=é", &"x".repeat(513)] {
            let trace = Trace::new(PARENT.to_owned(), Some(state.to_owned())).unwrap();
            assert_eq!(trace.tracestate(), None, "{state}");
        }
        let longest = "x".repeat(512);
        let trace = Trace::new(PARENT.to_owned(), Some(longest.clone())).unwrap();
        assert_eq!(trace.tracestate(), Some(&*longest));
    }
}

//! JSON-RPC 2.0 without the `jsonrpc` member.

use std::borrow::Cow;
use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::bounds;

/// The id of an error response to a message whose own id could not be read.
pub const UNKNOWN_REQUEST_ID: RequestId = RequestId::Integer(-1);

/// Chosen by the sender of the request.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(untagged, expecting = "the id must be a string or a 64-bit integer")]
pub enum RequestId {
    Integer(i64),
    String(String),
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Integer(id) => id.fmt(f),
            Self::String(id) => write!(f, "{id:?}"),
        }
    }
}

/// W3C trace context that a client may send with a request.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TraceContext {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tracestate: Option<String>,
}

/// One message. Its params, result and error are still undecoded text.
#[derive(Debug)]
pub enum Message<'a> {
    Request(Request<'a>),
    Notification(Notification<'a>),
    Response { id: RequestId, result: Option<&'a RawValue>, error: Option<&'a RawValue> },
}

#[derive(Debug)]
pub struct Request<'a> {
    pub id: RequestId,
    pub method: Cow<'a, str>,
    pub params: Option<Params<'a>>,
    pub trace: Option<TraceContext>,
}

#[derive(Debug)]
pub struct Notification<'a> {
    pub method: Cow<'a, str>,
    pub params: Option<&'a RawValue>,
}

/// The params of a request as undecoded text. They may hold a file, so they are not scanned again
/// before they are decoded.
//
// Invariant: one JSON value in UTF-8.
#[derive(Clone, Copy)]
pub struct Params<'a>(&'a [u8]);

impl<'a> Params<'a> {
    #[must_use]
    pub fn as_bytes(self) -> &'a [u8] {
        self.0
    }

    /// Returns the text as a `str`, at the cost of another scan over every byte.
    #[must_use]
    pub fn get(self) -> &'a str {
        str::from_utf8(self.0).expect("checked JSON is UTF-8")
    }
}

impl fmt::Debug for Params<'_> {
    /// Shows the length only: files and input must not reach logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Params({} bytes)", self.0.len())
    }
}

impl<'a> From<&'a RawValue> for Params<'a> {
    fn from(value: &'a RawValue) -> Self {
        Self(value.get().as_bytes())
    }
}

#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    #[error("message of {len} bytes exceeds the limit of {}", bounds::MAX_MESSAGE_BYTES)]
    TooLarge { len: usize },
    #[error("message is not acceptable JSON: {0}")]
    Json(#[source] serde_json::Error),
    #[error("message is not a JSON-RPC object: {0}")]
    Shape(#[source] serde_json::Error),
    #[error("JSON-RPC batches are not supported; send one message at a time")]
    Batch,
    #[error("message has neither a method nor an id")]
    Neither,
}

/// Checks the limits of this protocol and decodes one message.
pub fn decode(text: &[u8]) -> Result<Message<'_>, DecodeError> {
    check_size(text)?;
    let mut spans = Spans::default();
    bounds::walk(text, &mut |key, value| spans.note(key, value)).map_err(DecodeError::Json)?;
    match spans.read() {
        Ok(Some(message)) => Ok(message),
        // Slow path: decoding the whole message yields a precise error.
        Ok(None) | Err(_) => decode_unchecked(text),
    }
}

/// Checks that a message is JSON without duplicate keys and within the limits on its size, the
/// number of its values and their nesting.
pub fn check_bounds(text: &[u8]) -> Result<(), DecodeError> {
    check_size(text)?;
    bounds::check(text).map_err(DecodeError::Json)
}

fn check_size(text: &[u8]) -> Result<(), DecodeError> {
    match text.len() {
        0..=bounds::MAX_MESSAGE_BYTES => Ok(()),
        len => Err(DecodeError::TooLarge { len }),
    }
}

/// Decodes one message without [`check_bounds`], for clients: a legitimate response may hold more
/// values than a request. The decoder itself bounds the nesting.
pub fn decode_unchecked(text: &[u8]) -> Result<Message<'_>, DecodeError> {
    if text.trim_ascii_start().starts_with(b"[") {
        return Err(DecodeError::Batch);
    }
    let members: Members<'_> = serde_json::from_slice(text).map_err(DecodeError::Shape)?;
    match (members.method, members.id) {
        (Some(method), Some(id)) => Ok(Message::Request(Request {
            id,
            method,
            params: members.params.map(Params::from),
            trace: members.trace.and_then(|trace| read_trace(trace.get().as_bytes())),
        })),
        (Some(method), None) => {
            Ok(Message::Notification(Notification { method, params: members.params }))
        }
        (None, Some(id)) => {
            Ok(Message::Response { id, result: members.result, error: members.error })
        }
        (None, None) => Err(DecodeError::Neither),
    }
}

/// The members of a checked message, as slices of its text.
#[derive(Default)]
struct Spans<'a> {
    id: Option<&'a [u8]>,
    method: Option<&'a [u8]>,
    params: Option<&'a [u8]>,
    result: Option<&'a [u8]>,
    error: Option<&'a [u8]>,
    trace: Option<&'a [u8]>,
}

impl<'a> Spans<'a> {
    fn note(&mut self, key: &[u8], value: &'a [u8]) {
        let member = match key {
            b"id" => &mut self.id,
            b"method" => &mut self.method,
            b"params" => &mut self.params,
            b"result" => &mut self.result,
            b"error" => &mut self.error,
            b"trace" => &mut self.trace,
            _ => return,
        };
        // `null` means the same as leaving the member out.
        *member = (value != b"null").then_some(value);
    }

    /// Returns `None` for text that is neither a request, a notification nor a response. Does not
    /// look at the params of a request.
    fn read(&self) -> serde_json::Result<Option<Message<'a>>> {
        let trace = self.trace.and_then(read_trace);
        Ok(match (read(self.method)?, read(self.id)?) {
            (Some(method), Some(id)) => {
                let params = self.params.map(Params);
                Some(Message::Request(Request { id, method, params, trace }))
            }
            (Some(method), None) => {
                let params = read(self.params)?;
                Some(Message::Notification(Notification { method, params }))
            }
            (None, Some(id)) => {
                let (result, error) = (read(self.result)?, read(self.error)?);
                Some(Message::Response { id, result, error })
            }
            (None, None) => None,
        })
    }
}

fn read<'a, T: Deserialize<'a>>(span: Option<&'a [u8]>) -> serde_json::Result<Option<T>> {
    span.map(serde_json::from_slice).transpose()
}

/// Ignores an invalid trace: it must not fail the request.
fn read_trace(text: &[u8]) -> Option<TraceContext> {
    serde_json::from_slice(text).ok()
}

#[derive(Deserialize)]
struct Members<'a> {
    id: Option<RequestId>,
    #[serde(borrow)]
    method: Option<Cow<'a, str>>,
    #[serde(borrow)]
    params: Option<&'a RawValue>,
    #[serde(borrow)]
    result: Option<&'a RawValue>,
    #[serde(borrow)]
    error: Option<&'a RawValue>,
    #[serde(borrow)]
    trace: Option<&'a RawValue>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_notifications_and_responses_decode() {
        let Message::Request(request) =
            decode(br#"{"jsonrpc":"2.0","id":"a","method":"m","params":{"x":1},"other":[]}"#)
                .unwrap()
        else {
            panic!("not a request")
        };
        assert_eq!(request.id, RequestId::String("a".into()));
        assert_eq!(request.params.unwrap().get(), r#"{"x":1}"#);

        assert!(matches!(
            decode(br#"{"method":"initialized","params":null}"#).unwrap(),
            Message::Notification(Notification { params: None, .. })
        ));
        assert!(matches!(
            decode(br#"{"id":7,"result":null}"#).unwrap(),
            Message::Response { id: RequestId::Integer(7), .. }
        ));
    }

    #[test]
    fn the_fast_and_the_slow_decoder_agree() {
        for text in [
            r#"{"id":1,"method":"m","params":{"a":[1]},"trace":{"traceparent":"t","other":1}}"#,
            r#"{"\u0069d":1,"m\u0065thod":"\u006d","params" : [ 1 ] }"#,
            r#"{"params":null,"trace":null,"id":"x","method":"m","result":1,"idd":2,"ID":3}"#,
            r#"{"id":null,"method":"m","params":{"a":"\ud800"}}"#,
            r#"{"id":1,"method":null,"result":{"a":"b"},"error":null}"#,
            r#"{"id":1,"error":{"code":1}}"#,
            r#"{"params":{"id":1,"method":"m"}}"#,
            r#"{"id":1,"method":"m","trace":7}"#,
            r#"{"id":1,"method":"\ud800"}"#,
            r#"{"id":99999999999999999999,"method":"m"}"#,
            r#"{"id":null}"#,
            r#"["id","method"]"#,
            r#""id""#,
            "null",
        ] {
            let shown = |decoded: Result<Message<'_>, DecodeError>| match decoded {
                Ok(Message::Request(request)) => {
                    format!("{request:?} {:?}", request.params.map(Params::get))
                }
                Ok(message) => format!("{message:?}"),
                Err(error) => error.to_string(),
            };
            let checked = shown(decode(text.as_bytes()));
            assert_eq!(checked, shown(decode_unchecked(text.as_bytes())), "{text}");
        }
    }

    #[test]
    fn an_invalid_trace_is_ignored() {
        for trace in ["7", "[7]", r#""x""#, r#"{"traceparent":7}"#, r#"{"tracestate":{}}"#] {
            let text = format!(r#"{{"id":1,"method":"m","trace":{trace}}}"#);
            let Ok(Message::Request(request)) = decode(text.as_bytes()) else { panic!("{text}") };
            assert_eq!(request.trace, None, "{text}");
        }
    }

    #[test]
    fn keys_may_be_spelled_with_escapes() {
        let text = br#"{"\u0069d":1,"m\u0065thod":"m","p\u0061rams":{"x":"\u0041"}}"#;
        let Message::Request(request) = decode(text).unwrap() else { panic!("not a request") };
        assert_eq!(request.id, RequestId::Integer(1));
        assert_eq!(request.params.unwrap().as_bytes(), br#"{"x":"\u0041"}"#);
    }

    #[test]
    fn bad_utf8_is_refused_at_any_position() {
        for text in [
            &b"{\"id\":1,\"method\":\"\xff\"}"[..],
            b"{\"id\":1,\"method\":\"m\",\"params\":{\"a\":\"\xff\"}}",
            b"{\"id\":1,\"method\":\"m\",\"params\":{\"\xff\":1}}",
            b"{\"id\":1,\"method\":\"m\",\"other\":\"\xff\"}",
            b"{\"id\":1,\"method\":\"m\"}\xff",
        ] {
            assert!(matches!(decode(text), Err(DecodeError::Json(_))));
        }
    }

    #[test]
    fn decode_errors_state_the_reason() {
        for (text, expected) in [
            ("[]", "batches"),
            (" [{\"id\":1,\"method\":\"m\"}]", "batches"),
            ("{}", "neither a method nor an id"),
            ("7", "not a JSON-RPC object"),
            ("{\"id\":1.5,\"method\":\"m\"}", "the id must be a string or a 64-bit integer"),
            ("{\"id\":[],\"method\":\"m\"}", "the id must be a string or a 64-bit integer"),
            ("{\"id\":1,\"method\":5}", "not a JSON-RPC object"),
            ("{", "not acceptable JSON"),
            ("{\"id\":1,\"id\":2,\"method\":\"m\"}", "duplicate key \"id\""),
        ] {
            let error = decode(text.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}

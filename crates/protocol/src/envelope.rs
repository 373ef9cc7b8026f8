//! JSON-RPC 2.0 without the `jsonrpc` member.

use std::borrow::Cow;
use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::bounds;

/// The id of an error that answers a message whose own id could not be read.
pub const UNKNOWN_REQUEST_ID: RequestId = RequestId::Integer(-1);

/// Chosen by whoever sends the request.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(untagged)]
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

/// W3C trace context that a client may put beside a request.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct TraceContext {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tracestate: Option<String>,
}

/// One message, its params still as the text that was sent.
#[derive(Debug)]
pub enum Message<'a> {
    Request(Request<'a>),
    Notification(Notification<'a>),
    /// An answer; `result` and `error` as they were sent.
    Response {
        id: RequestId,
        result: Option<&'a RawValue>,
        error: Option<&'a RawValue>,
    },
}

#[derive(Debug)]
pub struct Request<'a> {
    pub id: RequestId,
    pub method: Cow<'a, str>,
    pub params: Option<&'a RawValue>,
    pub trace: Option<TraceContext>,
}

#[derive(Debug)]
pub struct Notification<'a> {
    pub method: Cow<'a, str>,
    pub params: Option<&'a RawValue>,
}

/// Why a text is not a message.
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

/// Reads one message within the limits of this protocol.
pub fn decode(text: &[u8]) -> Result<Message<'_>, DecodeError> {
    check_bounds(text)?;
    decode_unchecked(text)
}

/// Whether a message keeps to the limits: its size, the number of its values, no duplicate keys.
pub fn check_bounds(text: &[u8]) -> Result<(), DecodeError> {
    if text.len() > bounds::MAX_MESSAGE_BYTES {
        return Err(DecodeError::TooLarge { len: text.len() });
    }
    bounds::check(text).map_err(DecodeError::Json)
}

/// Reads one message of a peer that was chosen: a client may believe its server about the number of values, which may
/// be many in an honest answer. Nesting is bounded all the same.
pub fn decode_unchecked(text: &[u8]) -> Result<Message<'_>, DecodeError> {
    if text.trim_ascii_start().starts_with(b"[") {
        return Err(DecodeError::Batch);
    }
    let members: Members<'_> = serde_json::from_slice(text).map_err(DecodeError::Shape)?;
    match (members.method, members.id) {
        (Some(method), Some(id)) => Ok(Message::Request(Request {
            id,
            method,
            params: members.params,
            trace: members.trace,
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
    trace: Option<TraceContext>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_three_kinds() {
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
    fn what_is_not_a_message_says_why() {
        for (text, expected) in [
            ("[]", "batches"),
            (" [{\"id\":1,\"method\":\"m\"}]", "batches"),
            ("{}", "neither a method nor an id"),
            ("7", "not a JSON-RPC object"),
            ("{\"id\":1.5,\"method\":\"m\"}", "not a JSON-RPC object"),
            ("{\"id\":1,\"method\":5}", "not a JSON-RPC object"),
            ("{", "not acceptable JSON"),
            ("{\"id\":1,\"id\":2,\"method\":\"m\"}", "duplicate key \"id\""),
        ] {
            let error = decode(text.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}

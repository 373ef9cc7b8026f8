//! The messages of a tunnel: frames, heartbeats and one close.
//!
//! A frame is the whole payload of a message without headers, so it is neither copied nor
//! inspected. Only the few other messages have a header, which names their kind.

use std::borrow::Cow;

use async_nats::{HeaderMap, Message};
use bytes::{BufMut as _, Bytes, BytesMut};
use exec_server_transport::CloseCode;

use crate::router::Closing;

const KIND: &str = "Exec-Server-Tunnel";
const HEARTBEAT: &str = "heartbeat";
const CLOSE: &str = "close";
/// Maximum length of a reason in a WebSocket close frame.
const MAX_REASON_BYTES: usize = 123;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum TunnelMessage {
    Frame(Bytes),
    Heartbeat,
    Close(Closing),
}

impl TunnelMessage {
    pub(super) fn encode(self) -> (Option<HeaderMap>, Bytes) {
        match self {
            Self::Frame(frame) => (None, frame),
            Self::Heartbeat => (Some(kind(HEARTBEAT)), Bytes::new()),
            Self::Close(Closing { code, reason }) => {
                let mut payload = BytesMut::new();
                payload.put_u16(code.into());
                payload.put_slice(reason.as_bytes());
                (Some(kind(CLOSE)), payload.freeze())
            }
        }
    }

    /// Returns `None` for a status of the NATS server, and for a message that is malformed or of an
    /// unknown kind, as a newer node may send.
    pub(super) fn decode(message: Message) -> Option<Self> {
        if message.status.is_some() {
            return None;
        }
        let Some(headers) = message.headers else { return Some(Self::Frame(message.payload)) };
        match headers.get(KIND)?.as_str() {
            HEARTBEAT => Some(Self::Heartbeat),
            CLOSE => {
                let (code, reason) = message.payload.split_first_chunk()?;
                let code = CloseCode::from(u16::from_be_bytes(*code));
                let reason = String::from_utf8_lossy(reason);
                let is_valid = code.is_allowed() && reason.len() <= MAX_REASON_BYTES;
                Some(Self::Close(match is_valid {
                    true => Closing { code, reason: Cow::Owned(reason.into_owned()) },
                    false => Closing::new(CloseCode::Away, ""),
                }))
            }
            _ => None,
        }
    }
}

fn kind(value: &str) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert(KIND, value);
    headers
}

#[cfg(test)]
mod tests {
    use super::*;

    fn received(headers: Option<HeaderMap>, payload: Bytes) -> Message {
        Message {
            subject: "s".into(),
            reply: None,
            length: payload.len(),
            payload,
            headers,
            status: None,
            description: None,
        }
    }

    #[test]
    fn messages_arrive_as_they_were_sent() {
        let closing = Closing::new(CloseCode::Restart, "service restart");
        let frame = TunnelMessage::Frame(Bytes::from_static(b"\0close"));
        for message in [frame, TunnelMessage::Heartbeat, TunnelMessage::Close(closing)] {
            let (headers, payload) = message.clone().encode();
            assert_eq!(TunnelMessage::decode(received(headers, payload)), Some(message));
        }
    }

    #[test]
    fn a_frame_is_the_whole_payload() {
        let frame = Bytes::from_static(b"frame");
        let (headers, payload) = TunnelMessage::Frame(frame.clone()).encode();
        assert!(headers.is_none() && payload.as_ptr() == frame.as_ptr());
    }

    #[test]
    fn a_close_that_no_socket_can_send_is_replaced() {
        let close = |payload: &[u8]| {
            let payload = Bytes::copy_from_slice(payload);
            TunnelMessage::decode(received(Some(kind(CLOSE)), payload))
        };
        let replaced = Some(TunnelMessage::Close(Closing::new(CloseCode::Away, "")));
        assert_eq!(close(&[3, 238]), replaced, "1006 is never sent");
        assert_eq!(close(&[&[3, 232][..], &[b'a'; 124]].concat()), replaced);
        assert_eq!(close(&[3]), None);
        assert_eq!(TunnelMessage::decode(received(Some(kind("later")), Bytes::new())), None);
    }
}

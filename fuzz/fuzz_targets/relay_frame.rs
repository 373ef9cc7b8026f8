//! An accepted frame is routed to its own stream, is within its bounds, and survives a round trip.
#![no_main]

use bytes::Bytes;
use exec_server_relay::frame::{Body, Frame, MAX_PAYLOAD_BYTES, peek_stream_id};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let peeked = peek_stream_id(bytes);
    let Ok(frame) = Frame::decode(Bytes::copy_from_slice(bytes)) else { return };
    assert_eq!(peeked, Ok(frame.stream_id.as_str()));
    match &frame.body {
        Body::Data { payload, .. } | Body::Handshake { payload } => {
            assert!((1..=MAX_PAYLOAD_BYTES).contains(&payload.len()));
        }
        Body::Reset { reason } => {
            assert!(reason.to_string().bytes().all(|byte| matches!(byte, b' '..=b'~')));
        }
        Body::Ack | Body::Resume { .. } | Body::Heartbeat => {}
    }
    assert_eq!(Frame::decode(frame.encode()), Ok(frame));
});

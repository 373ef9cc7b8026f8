//! The bytes of every kind of frame, written out by the encoding rules of protobuf, and the frames
//! that are refused.
//!
//! A key is `number << 3 | wire type`; wire type 0 is a varint, 2 is a length and that many bytes.
//! Scalar fields that are zero or empty are left out.

use bytes::Bytes;
use exec_server_relay::frame::{
    Body, Frame, FrameError, InvalidStreamId, MAX_FRAME_BYTES, MAX_PAYLOAD_BYTES, MAX_SEGMENTS,
    PeekError, ResetReason, Trace, peek_stream_id,
};

const STREAM_ID: &str = "f47ac10b-58cc-4372-a567-0e02b2c3d479";
const TRACEPARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

/// version = 1: key 1 << 3 | 0.
const VERSION_FIELD: &[u8] = b"\x08\x01";
/// stream_id: key 2 << 3 | 2, 0x24 = 36 bytes.
const STREAM_ID_FIELD: &[u8] = b"\x12\x24f47ac10b-58cc-4372-a567-0e02b2c3d479";
/// ack_frame: key 6 << 3 | 2, empty.
const ACK_BODY: &[u8] = b"\x32\x00";

fn frame(ack: u32, ack_bits: u32, body: Body) -> Frame {
    let stream_id = STREAM_ID.parse().expect("a UUID is a stream id");
    Frame { stream_id, ack, ack_bits, body, trace: None }
}

/// Encodes a frame without acknowledgement fields.
fn bytes_of(body: &[u8]) -> Bytes {
    [VERSION_FIELD, STREAM_ID_FIELD, body].concat().into()
}

fn decode_body(body: &[u8]) -> Result<Body, FrameError> {
    Frame::decode(bytes_of(body)).map(|frame| frame.body)
}

fn delimited(number: u8, value: &[u8]) -> Vec<u8> {
    let mut bytes = vec![number << 3 | 2];
    let mut len = value.len();
    while len >= 0x80 {
        bytes.push(len.to_le_bytes()[0] | 0x80);
        len >>= 7;
    }
    bytes.push(len.to_le_bytes()[0]);
    [&bytes, value].concat()
}

/// Returns the body of a record in one segment.
fn data(payload: &[u8]) -> Vec<u8> {
    delimited(5, &[b"\x18\x01", &*delimited(4, payload)].concat())
}

/// Returns a frame of exactly `len` bytes, filled with a field that no schema has.
fn padded(body: &[u8], len: usize) -> Bytes {
    let unpadded = bytes_of(body).len();
    // 4 bytes: the key of the padding, and its length in three bytes.
    let padding = delimited(15, &vec![0; len - unpadded - 4]);
    let bytes = bytes_of(&[body, &padding].concat());
    assert_eq!(bytes.len(), len);
    bytes
}

#[track_caller]
fn assert_golden(frame: &Frame, parts: &[&[u8]]) {
    let bytes = Bytes::from(parts.concat());
    assert_eq!(frame.encode(), bytes);
    assert_eq!(Frame::decode(bytes.clone()).as_ref(), Ok(frame));
    assert_eq!(peek_stream_id(&bytes), Ok(STREAM_ID));
}

#[test]
fn data_has_its_golden_bytes() {
    let payload = Bytes::from_static(b"hello");
    let body = Body::Data { seq: 300, segment_index: 1, segment_count: 3, payload };
    assert_golden(
        &frame(5, 0x8000_0001, body),
        &[
            VERSION_FIELD,
            STREAM_ID_FIELD,
            b"\x18\x05",                 // ack = 5: key 3 << 3 | 0
            b"\x20\x81\x80\x80\x80\x08", // ack_bits = 0x80000001: key 4 << 3 | 0
            b"\x2a\x0e",                 // data: key 5 << 3 | 2, 14 bytes
            b"\x08\xac\x02",             // seq = 300 = 2 * 128 + 44
            b"\x10\x01",                 // segment_index = 1
            b"\x18\x03",                 // segment_count = 3
            b"\x22\x05hello",            // payload: key 4 << 3 | 2, 5 bytes
        ],
    );
}

#[test]
fn the_first_record_has_its_golden_bytes() {
    let payload = Bytes::from_static(b"\xde\xad");
    let body = Body::Data { seq: 0, segment_index: 0, segment_count: 1, payload };
    assert_golden(
        &frame(0, 0, body),
        &[
            VERSION_FIELD,
            STREAM_ID_FIELD,
            b"\x2a\x06",         // data: 6 bytes, without the zeros seq and segment_index
            b"\x18\x01",         // segment_count = 1
            b"\x22\x02\xde\xad", // payload: 2 bytes
        ],
    );
}

#[test]
fn an_ack_has_its_golden_bytes() {
    assert_golden(
        &frame(u32::MAX, 1, Body::Ack),
        &[
            VERSION_FIELD,
            STREAM_ID_FIELD,
            b"\x18\xff\xff\xff\xff\x0f", // ack: four times seven bits, and four more
            b"\x20\x01",                 // ack_bits
            ACK_BODY,
        ],
    );
}

#[test]
fn a_resume_has_its_golden_bytes() {
    assert_golden(
        &frame(0, 0, Body::Resume { next_seq: 0 }),
        &[VERSION_FIELD, STREAM_ID_FIELD, b"\x3a\x00"], // resume: key 7 << 3 | 2, empty
    );
    assert_golden(
        &frame(0, 0, Body::Resume { next_seq: 128 }),
        &[
            VERSION_FIELD,
            STREAM_ID_FIELD,
            b"\x3a\x03",     // resume: 3 bytes
            b"\x08\x80\x01", // next_seq = 128
        ],
    );
}

#[test]
fn a_reset_has_its_golden_bytes() {
    assert_golden(
        &frame(0, 0, Body::Reset { reason: ResetReason::NOISE_PROTOCOL_ERROR }),
        &[
            VERSION_FIELD,
            STREAM_ID_FIELD,
            b"\x42\x1c",                           // reset: key 8 << 3 | 2, 28 bytes
            b"\x0a\x1anoise_relay_protocol_error", // reason: key 1 << 3 | 2, 26 bytes
        ],
    );
}

#[test]
fn a_heartbeat_has_its_golden_bytes() {
    assert_golden(
        &frame(0, 0, Body::Heartbeat),
        &[VERSION_FIELD, STREAM_ID_FIELD, b"\x4a\x00"], // heartbeat: key 9 << 3 | 2, empty
    );
}

#[test]
fn a_handshake_has_its_golden_bytes() {
    assert_golden(
        &frame(0, 0, Body::Handshake { payload: Bytes::from_static(&[1, 2, 3]) }),
        &[
            VERSION_FIELD,
            STREAM_ID_FIELD,
            b"\x52\x05",             // handshake: key 10 << 3 | 2, 5 bytes
            b"\x0a\x03\x01\x02\x03", // payload: key 1 << 3 | 2, 3 bytes
        ],
    );
}

#[test]
fn a_trace_has_its_golden_bytes() {
    let trace = Trace::new(TRACEPARENT.to_owned(), Some("a=b".to_owned()));
    assert!(trace.is_some());
    assert_golden(
        &Frame { trace, ..frame(0, 0, Body::Ack) },
        &[
            VERSION_FIELD,
            STREAM_ID_FIELD,
            ACK_BODY,
            b"\x5a\x37", // traceparent: key 11 << 3 | 2, 0x37 = 55 bytes
            TRACEPARENT.as_bytes(),
            b"\x62\x03a=b", // tracestate: key 12 << 3 | 2, 3 bytes
        ],
    );
}

#[test]
fn the_order_of_fields_and_unknown_fields_do_not_matter() {
    let unknown = b"\x78\x07\x7a\x03abc"; // field 15 as a varint and as a string
    let bytes = [b"\x4a\x00", ACK_BODY, unknown, STREAM_ID_FIELD, VERSION_FIELD].concat();
    // The last of two bodies counts.
    assert_eq!(Frame::decode(bytes.into()), Ok(frame(0, 0, Body::Ack)));
}

#[test]
fn other_versions_are_refused() {
    let missing = [STREAM_ID_FIELD, ACK_BODY].concat();
    let error = FrameError::UnsupportedVersion { version: 0 };
    assert_eq!(Frame::decode(missing.into()), Err(error));
    let newer = [b"\x08\x02", STREAM_ID_FIELD, ACK_BODY].concat();
    let error = FrameError::UnsupportedVersion { version: 2 };
    assert_eq!(Frame::decode(newer.into()), Err(error));
}

#[test]
fn invalid_stream_ids_are_refused() {
    for id in ["", "a b", "é", "a\x1b[2J", &"x".repeat(65)] {
        let bytes = [VERSION_FIELD, &delimited(2, id.as_bytes()), ACK_BODY].concat();
        let error = InvalidStreamId { len: id.len() };
        assert_eq!(Frame::decode(bytes.into()), Err(FrameError::StreamId(error)), "{id}");
    }
    let missing = [VERSION_FIELD, ACK_BODY].concat();
    let error = InvalidStreamId { len: 0 };
    assert_eq!(Frame::decode(missing.into()), Err(FrameError::StreamId(error)));
}

#[test]
fn a_frame_without_a_known_body_is_refused() {
    assert_eq!(decode_body(b""), Err(FrameError::NoBody));
    // A body of a later schema is an unknown field.
    assert_eq!(decode_body(b"\x6a\x00"), Err(FrameError::NoBody));
}

#[test]
fn payloads_have_1_to_65_535_bytes() {
    let handshake = |payload: &[u8]| delimited(10, &delimited(1, payload));
    for body in [data, handshake] {
        assert_eq!(decode_body(&body(b"")), Err(FrameError::NoPayload));
        assert!(decode_body(&body(&[7; MAX_PAYLOAD_BYTES])).is_ok());
        let error = FrameError::PayloadTooLarge { len: 65_536, max: 65_535 };
        assert_eq!(decode_body(&body(&[7; 65_536])), Err(error));
    }
    assert_eq!(decode_body(b"\x2a\x02\x18\x01"), Err(FrameError::NoPayload));
    assert_eq!(decode_body(b"\x52\x00"), Err(FrameError::NoPayload));
}

#[test]
fn segments_are_counted_from_zero_and_bounded() {
    let segment = |index: u8, count: u8| {
        decode_body(&delimited(5, &[0x10, index, 0x18, count, 0x22, 0x01, b'x']))
    };
    let payload = Bytes::from_static(b"x");
    let last = Body::Data { seq: 0, segment_index: 63, segment_count: MAX_SEGMENTS, payload };
    assert_eq!(segment(63, 64), Ok(last));
    for (index, count) in [(0, 0), (1, 0), (1, 1), (2, 1), (64, 64), (0, 65), (64, 65)] {
        let error = FrameError::InvalidSegment { index: index.into(), count: count.into() };
        assert_eq!(segment(index, count), Err(error));
    }
}

#[test]
fn a_reset_needs_a_reason_and_a_long_one_is_truncated() {
    assert_eq!(decode_body(b"\x42\x00"), Err(FrameError::NoResetReason));
    assert_eq!(decode_body(b"\x42\x02\x0a\x00"), Err(FrameError::NoResetReason));
    let long = delimited(8, &delimited(1, &[b'x'; 100_000]));
    let reason = ResetReason::new(&"x".repeat(256)).unwrap();
    assert_eq!(decode_body(&long), Ok(Body::Reset { reason }));
}

#[test]
fn malformed_traces_are_dropped() {
    let trace = |parent: &str, state: &str| {
        let fields = [delimited(11, parent.as_bytes()), delimited(12, state.as_bytes())].concat();
        Frame::decode(bytes_of(&[ACK_BODY, &fields].concat())).unwrap().trace
    };
    assert_eq!(trace("t", "a=b"), None);
    assert_eq!(trace("", "a=b"), None);
    assert_eq!(trace(TRACEPARENT, "a=\n"), Trace::new(TRACEPARENT.to_owned(), None));
    let without_parent = bytes_of(&[ACK_BODY, &delimited(12, b"a=b")].concat());
    assert_eq!(Frame::decode(without_parent).unwrap().trace, None);
}

#[test]
fn a_frame_has_at_most_256_kib() {
    let largest = padded(ACK_BODY, MAX_FRAME_BYTES);
    assert_eq!(Frame::decode(largest), Ok(frame(0, 0, Body::Ack)));
    let error = FrameError::TooLarge { len: 262_145, max: 262_144 };
    assert_eq!(Frame::decode(padded(ACK_BODY, MAX_FRAME_BYTES + 1)), Err(error.clone()));
    // The size is checked first: these bytes are not a frame at all.
    assert_eq!(Frame::decode(vec![0xff; MAX_FRAME_BYTES + 1].into()), Err(error));
}

#[test]
fn malformed_messages_are_refused() {
    assert_eq!(
        Frame::decode(Bytes::from_static(b"{\"jsonrpc\":\"2.0\"}")),
        Err(FrameError::Unroutable(PeekError::Group { field: 15 }))
    );
    // Routable, but with a reason that is not UTF-8, or text as the version.
    let broken: [&[u8]; 2] = [b"\x42\x03\x0a\x01\xff", b"\x0a\x01x\x32\x00"];
    for body in broken {
        assert!(matches!(decode_body(body), Err(FrameError::Malformed(_))));
        assert_eq!(peek_stream_id(&bytes_of(body)), Ok(STREAM_ID));
    }
}

#[test]
fn a_payload_is_not_copied() {
    for body in [data(&[7; 60_000]), delimited(10, &delimited(1, &[7; 4000]))] {
        let bytes = bytes_of(&body);
        let payload = match Frame::decode(bytes.clone()).unwrap().body {
            Body::Data { payload, .. } | Body::Handshake { payload } => payload,
            other => panic!("no payload in {other:?}"),
        };
        assert!(bytes.as_ptr_range().contains(&payload.as_ptr()));
    }
}

#[test]
fn a_payload_does_not_keep_a_padded_frame_alive() {
    let bytes = padded(&data(b"x"), MAX_FRAME_BYTES);
    let Body::Data { payload, .. } = Frame::decode(bytes.clone()).unwrap().body else {
        panic!("the frame has no data")
    };
    assert_eq!(payload, "x");
    assert!(bytes.is_unique());
}

#[test]
#[cfg(debug_assertions)]
#[should_panic(expected = "the peer would refuse this frame")]
fn an_invalid_frame_is_not_encoded() {
    let _ = frame(0, 0, Body::Handshake { payload: Bytes::new() }).encode();
}

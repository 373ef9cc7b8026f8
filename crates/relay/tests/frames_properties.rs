//! Frames survive the wire, and no bytes make the decoder panic or exceed the bounds of a frame.

use bytes::Bytes;
use exec_server_relay::frame::{
    Body, Frame, MAX_PAYLOAD_BYTES, MAX_RESET_REASON_BYTES, MAX_SEGMENTS, ResetReason, StreamId,
    Trace, peek_stream_id,
};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::{option, sample};

fn payloads() -> impl Strategy<Value = Bytes> {
    prop_oneof![
        8 => vec(any::<u8>(), 1..200).prop_map(Bytes::from),
        1 => (1..=MAX_PAYLOAD_BYTES, any::<u8>()).prop_map(|(len, byte)| vec![byte; len].into()),
    ]
}

fn bodies() -> impl Strategy<Value = Body> {
    let segments = (1..=MAX_SEGMENTS).prop_flat_map(|count| (0..count, Just(count)));
    prop_oneof![
        (any::<u32>(), segments, payloads()).prop_map(|(seq, (index, count), payload)| {
            Body::Data { seq, segment_index: index, segment_count: count, payload }
        }),
        Just(Body::Ack),
        any::<u32>().prop_map(|next_seq| Body::Resume { next_seq }),
        ".{1,300}"
            .prop_map(|text| Body::Reset { reason: ResetReason::new(&text).expect("not empty") }),
        Just(Body::Heartbeat),
        payloads().prop_map(|payload| Body::Handshake { payload }),
    ]
}

fn traces() -> impl Strategy<Value = Trace> {
    ("00-[0-9a-f]{31}1-[0-9a-f]{15}1-[0-9a-f]{2}", option::of("[ -~]{1,512}"))
        .prop_map(|(parent, state)| Trace::new(parent, state).expect("well-formed"))
}

fn frames() -> impl Strategy<Value = Frame> {
    let ids = prop_oneof![
        Just(StreamId::random()),
        "[!-~]{1,64}".prop_map(|id| id.parse().expect("a valid id"))
    ];
    (ids, any::<(u32, u32)>(), bodies(), option::of(traces())).prop_map(
        |(stream_id, (ack, ack_bits), body, trace)| Frame { stream_id, ack, ack_bits, body, trace },
    )
}

/// Checks that decoding does not panic, and that a decoded frame is within the bounds, has the
/// stream id by which a rendezvous routes it, and survives a round trip.
fn check_decode(bytes: &Bytes) {
    let Ok(frame) = Frame::decode(bytes.clone()) else { return };
    assert_eq!(peek_stream_id(bytes), Ok(frame.stream_id.as_str()));
    match &frame.body {
        Body::Data { segment_index, segment_count, payload, .. } => {
            assert!(segment_index < segment_count && *segment_count <= MAX_SEGMENTS);
            assert!((1..=MAX_PAYLOAD_BYTES).contains(&payload.len()));
        }
        Body::Handshake { payload } => {
            assert!((1..=MAX_PAYLOAD_BYTES).contains(&payload.len()));
        }
        Body::Reset { reason } => {
            assert!((1..=MAX_RESET_REASON_BYTES).contains(&reason.raw().len()));
            assert!(reason.to_string().bytes().all(|byte| matches!(byte, b' '..=b'~')));
        }
        Body::Ack | Body::Resume { .. } | Body::Heartbeat => {}
    }
    assert_eq!(Frame::decode(frame.encode()), Ok(frame));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn frames_survive_the_wire(frame in frames()) {
        let bytes = frame.encode();
        prop_assert_eq!(peek_stream_id(&bytes), Ok(frame.stream_id.as_str()));
        prop_assert_eq!(Frame::decode(bytes), Ok(frame));
    }

    #[test]
    fn arbitrary_bytes_decode_to_a_valid_frame_or_an_error(bytes in vec(any::<u8>(), 0..256)) {
        check_decode(&bytes.into());
    }

    #[test]
    fn mutated_frames_decode_to_a_valid_frame_or_an_error(
        frame in frames(),
        changes in vec((any::<sample::Index>(), any::<u8>()), 1..4),
        cut in option::weighted(0.2, any::<sample::Index>()),
    ) {
        let mut bytes = frame.encode().to_vec();
        for (at, byte) in changes {
            // Most of a long frame is its payload, which may be anything.
            let at = at.index(bytes.len().min(100));
            bytes[at] = byte;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        check_decode(&bytes.into());
    }
}

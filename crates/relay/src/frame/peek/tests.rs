//! Compares [`peek_stream_id`] with `prost`, with which both ends decode.

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use prost::Message as _;
use prost::bytes::Bytes;

use super::super::generated::relay_message_frame::Body;
use super::super::generated::{
    RelayAck, RelayData, RelayHandshake, RelayHeartbeat, RelayMessageFrame, RelayReset, RelayResume,
};
use super::*;

/// The part of the schema that the peek knows. `prost` skips all other fields of this type, too.
#[derive(Clone, PartialEq, prost::Message)]
struct StreamIdOnly {
    #[prost(string, tag = "2")]
    stream_id: String,
}

/// Checks that the peek agrees with `prost`, except that it also refuses groups. An end that
/// decodes the whole frame gets the same stream id.
fn assert_agrees_with_prost(bytes: &[u8]) {
    let peeked = peek_stream_id(bytes);
    if let Err(PeekError::Group { .. }) = peeked {
        return;
    }
    let expected = StreamIdOnly::decode(bytes);
    assert_eq!(peeked.ok(), expected.as_ref().ok().map(|found| &*found.stream_id));
    if let Ok(frame) = RelayMessageFrame::decode(bytes) {
        assert_eq!(peeked, Ok(&*frame.stream_id));
    }
}

fn bodies() -> impl Strategy<Value = Body> {
    let payload = || vec(any::<u8>(), 0..300).prop_map(Bytes::from);
    prop_oneof![
        (any::<(u32, u32, u32)>(), payload()).prop_map(|(numbers, payload)| {
            let (seq, segment_index, segment_count) = numbers;
            Body::Data(RelayData { seq, segment_index, segment_count, payload })
        }),
        Just(Body::AckFrame(RelayAck {})),
        any::<u32>().prop_map(|next_seq| Body::Resume(RelayResume { next_seq })),
        ".{0,300}".prop_map(|reason| Body::Reset(RelayReset { reason })),
        Just(Body::Heartbeat(RelayHeartbeat {})),
        payload().prop_map(|payload| Body::Handshake(RelayHandshake { payload })),
    ]
}

/// Generates everything that the schema can express, whether or not it is a valid frame of a relay.
fn frames() -> impl Strategy<Value = RelayMessageFrame> {
    let trace = || option::of(".{0,20}");
    (any::<(u32, u32, u32)>(), ".{0,200}", option::of(bodies()), trace(), trace()).prop_map(
        |((version, ack, ack_bits), stream_id, body, traceparent, tracestate)| RelayMessageFrame {
            version,
            stream_id,
            ack,
            ack_bits,
            traceparent,
            tracestate,
            body,
        },
    )
}

/// Encodes a varint. Trailing zeros make it longer and keep its value.
fn varint(mut value: u64, zeros: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value >= 0x80 {
        bytes.push(value.to_le_bytes()[0] | 0x80);
        value >>= 7;
    }
    bytes.push(value.to_le_bytes()[0]);
    for _ in 0..zeros {
        *bytes.last_mut().expect("it has a byte") |= 0x80;
        bytes.push(0);
    }
    bytes
}

/// Varints of any length, including some that are too long.
fn varints() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        (any::<u64>(), 0..64, 0..10_usize)
            .prop_map(|(value, shift, zeros)| { varint(value >> shift, zeros) }),
        (vec(0x80..=0xff_u8, 0..11), 0..4_u8)
            .prop_map(|(bytes, last)| [bytes, vec![last]].concat()),
    ]
}

/// Generates well-formed fields, known and unknown, mostly with short keys and lengths.
fn fields() -> impl Strategy<Value = Vec<u8>> {
    let zeros = || prop_oneof![3 => Just(0), 1 => 0..10_usize];
    let number = || prop_oneof![1..16_u64, Just(u64::from(u32::MAX >> 3))];
    let key =
        move |wire_type| (number(), zeros()).prop_map(move |(n, z)| varint(n << 3 | wire_type, z));
    let text = prop_oneof![
        4 => ".{0,8}".prop_map(String::into_bytes),
        1 => vec(any::<u8>(), 0..4),
    ];
    let value = (text, zeros()).prop_map(|(text, zeros)| {
        [varint(text.len().try_into().expect("it is short"), zeros), text].concat()
    });
    let stream_id = zeros().prop_map(|zeros| varint(2 << 3 | 2, zeros));
    let concat = |(key, value): (Vec<u8>, Vec<u8>)| [key, value].concat();
    prop_oneof![
        2 => (stream_id, value.clone()).prop_map(concat),
        1 => (key(2), value).prop_map(concat),
        1 => (key(0), varints()).prop_map(concat),
        1 => (key(1), vec(any::<u8>(), 8)).prop_map(concat),
        1 => (key(5), vec(any::<u8>(), 4)).prop_map(concat),
    ]
}

/// Generates a field with any key, followed by bytes that may not match it.
fn malformed_fields() -> impl Strategy<Value = Vec<u8>> {
    let key = prop_oneof![(0..0x80_u8).prop_map(|key| vec![key]), varints()];
    (key, vec(any::<u8>(), 0..9)).prop_map(|(key, value)| [key, value].concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn peek_and_prost_agree_on_valid_frames(frame in frames()) {
        let bytes = frame.encode_to_vec();
        prop_assert_eq!(peek_stream_id(&bytes), Ok(&*frame.stream_id));
    }

    #[test]
    fn peek_and_prost_agree_on_repeated_fields(first in frames(), second in frames()) {
        let bytes = [first.encode_to_vec(), second.encode_to_vec()].concat();
        let merged = RelayMessageFrame::decode(&*bytes).unwrap();
        prop_assert_eq!(peek_stream_id(&bytes), Ok(&*merged.stream_id));
    }

    #[test]
    fn peek_and_prost_agree_on_arbitrary_bytes(bytes in vec(any::<u8>(), 0..64)) {
        assert_agrees_with_prost(&bytes);
    }

    #[test]
    fn peek_and_prost_agree_on_arbitrary_fields(
        fields in vec(fields(), 0..5),
        last in option::weighted(0.2, malformed_fields()),
    ) {
        assert_agrees_with_prost(&[fields.concat(), last.unwrap_or_default()].concat());
    }

    #[test]
    fn peek_and_prost_agree_on_mutated_frames(
        frame in frames(),
        changes in vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        cut in option::weighted(0.3, any::<prop::sample::Index>()),
        inserted in option::weighted(0.3, (any::<prop::sample::Index>(), malformed_fields())),
    ) {
        let mut bytes = frame.encode_to_vec();
        if let Some((at, field)) = inserted {
            let at = at.index(bytes.len() + 1);
            bytes.splice(at..at, field);
        }
        for (at, byte) in changes {
            let at = at.index(bytes.len().max(1));
            bytes.get_mut(at).into_iter().for_each(|changed| *changed = byte);
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len() + 1));
        }
        assert_agrees_with_prost(&bytes);
    }
}

#[test]
fn the_last_stream_id_counts() {
    assert_eq!(peek_stream_id(b"\x12\x01a\x18\x07\x12\x02bc"), Ok("bc"));
    assert_eq!(peek_stream_id(b"\x12\x01a\x12\x00"), Ok(""));
}

#[test]
fn a_frame_without_a_stream_id_has_an_empty_one() {
    assert_eq!(peek_stream_id(b""), Ok(""));
    assert_eq!(peek_stream_id(b"\x08\x01"), Ok(""));
}

#[test]
fn a_stream_id_inside_another_field_does_not_count() {
    // Field 5, the data, contains its own field 2. Field 15 is unknown and contains a stream id
    // field.
    assert_eq!(peek_stream_id(b"\x12\x01a\x2a\x02\x10\x03\x7a\x03\x12\x01b"), Ok("a"));
}

#[test]
fn every_wire_type_is_skipped() {
    // Field 15 as 8 bytes, 4 bytes, a varint and a string. Each value looks like a stream id field.
    let bytes =
        b"\x79\x12\x01c\x12\x01c\x12\x01\x7d\x12\x01c\x12\x78\x92\x01\x7a\x02\x12\x01\x12\x01a";
    assert_eq!(peek_stream_id(bytes), Ok("a"));
    assert_eq!(RelayMessageFrame::decode(&bytes[..]).unwrap().stream_id, "a");
}

#[test]
fn malformed_messages_are_refused() {
    let max = u64::MAX;
    let cases: &[(&[u8], PeekError)] = &[
        (b"\x12", PeekError::Truncated),
        (b"\x12\x02a", PeekError::Truncated),
        (b"\x12\x80", PeekError::Truncated),
        (b"\x12\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01a", PeekError::Truncated),
        (b"\x7d\0\0\0", PeekError::Truncated),
        (b"\x79\0\0\0\0\0\0\0", PeekError::Truncated),
        (b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02", PeekError::VarintOverflow),
        (b"\x08\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x00", PeekError::VarintOverflow),
        (b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", PeekError::InvalidKey { key: max }),
        (b"\x82\x80\x80\x80\x10\0", PeekError::InvalidKey { key: (1 << 32) + 2 }),
        (b"\x00\x00", PeekError::InvalidKey { key: 0 }),
        (b"\x7e\x00", PeekError::InvalidKey { key: 0x7e }),
        (b"\x7f\x00", PeekError::InvalidKey { key: 0x7f }),
        (b"\x10\x01", PeekError::NotString { wire_type: 0 }),
        (b"\x13\x14", PeekError::NotString { wire_type: 3 }),
        (b"\x7b\x7c", PeekError::Group { field: 15 }),
        (b"\x7c", PeekError::Group { field: 15 }),
    ];
    for (bytes, error) in cases {
        assert_eq!(peek_stream_id(bytes), Err(*error), "{bytes:x?}");
        assert_agrees_with_prost(bytes);
    }
    assert!(matches!(peek_stream_id(b"\x12\x01\xff\x12\x01a"), Err(PeekError::NotUtf8(_))));
    assert_agrees_with_prost(b"\x12\x01\xff\x12\x01a");
}

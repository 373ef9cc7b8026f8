use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

/// `dig +noedns Example.ORG`.
const PLAIN: &[u8] = b"\x12\x34\x01\x00\0\x01\0\0\0\0\0\0\x07Example\x03ORG\0\0\x01\0\x01";

/// `dig AAAA example.org`: AD is set, and an OPT record carries a cookie.
const WITH_EDNS: &[u8] = b"\xab\xcd\x01\x20\0\x01\0\0\0\0\0\x01\x07example\x03org\0\0\x1c\0\x01\
    \0\0\x29\x04\xd0\0\0\0\0\0\x0c\0\x0a\0\x08\x01\x02\x03\x04\x05\x06\x07\x08";

fn question(labels: &[&[u8]], kind: u16, class: u16) -> Vec<u8> {
    let mut message = b"\0\x01\x01\0\0\x01\0\0\0\0\0\0".to_vec();
    for label in labels {
        message.push(u8::try_from(label.len()).unwrap());
        message.extend_from_slice(label);
    }
    message.push(0);
    message.extend_from_slice(&kind.to_be_bytes());
    message.extend_from_slice(&class.to_be_bytes());
    message
}

fn addresses(texts: &[&str]) -> Vec<IpAddr> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

#[test]
fn a_plain_query_is_answered() {
    let query = Query::parse(PLAIN).unwrap();
    assert_eq!(query.name(), Some("example.org"));
    assert_eq!(query.kind(), Kind::A);
    let response = query.answer(&addresses(&["198.18.0.1", "fd65::1"]), 60);
    let expected = b"\x12\x34\x81\x80\0\x01\0\x01\0\0\0\0\x07Example\x03ORG\0\0\x01\0\x01\
        \xc0\x0c\0\x01\0\x01\0\0\0\x3c\0\x04\xc6\x12\0\x01";
    assert_eq!(response, expected);
}

#[test]
fn an_edns_query_is_answered_with_an_opt_record() {
    let query = Query::parse(WITH_EDNS).unwrap();
    assert_eq!(query.name(), Some("example.org"));
    assert_eq!(query.kind(), Kind::Aaaa);
    let expected = b"\xab\xcd\x81\x80\0\x01\0\x01\0\0\0\x01\x07example\x03org\0\0\x1c\0\x01\
        \xc0\x0c\0\x1c\0\x01\0\0\0\0\0\x10\xfd\x65\x78\x65\x63\x73\0\0\0\0\0\0\0\0\0\x01\
        \0\0\x29\x04\xd0\0\0\0\0\0\0";
    assert_eq!(query.answer(&addresses(&["fd65:7865:6373::1"]), 0), expected);
}

#[test]
fn a_response_without_records_echoes_the_question() {
    let query = Query::parse(PLAIN).unwrap();
    let codes = [
        (ResponseCode::FormatError, 1),
        (ResponseCode::ServerFailure, 2),
        (ResponseCode::NoSuchName, 3),
        (ResponseCode::NotImplemented, 4),
    ];
    for (code, wire) in codes {
        let mut expected = PLAIN.to_vec();
        expected[2..4].copy_from_slice(&[0x81, 0x80 | wire]);
        assert_eq!(query.fails(code), expected);
    }
    let mut expected = PLAIN.to_vec();
    expected[2..4].copy_from_slice(&[0x81, 0x80]);
    assert_eq!(query.empty(), expected);
    assert_eq!(query.answer(&[], 60), expected);
}

#[test]
fn the_recursion_flag_of_a_response_is_that_of_its_query() {
    let mut message = PLAIN.to_vec();
    message[2] = 0;
    assert_eq!(Query::parse(&message).unwrap().empty()[2..4], [0x80, 0x80]);
}

#[test]
fn other_types_and_classes_have_no_addresses() {
    for (kind, class) in [(15, 1), (255, 1), (1, 3), (28, 255)] {
        let query = Query::parse(&question(&[b"example", b"org"], kind, class)).unwrap();
        assert_eq!(query.kind(), Kind::Other(kind));
        assert_eq!(query.answer(&addresses(&["198.18.0.1", "fd65::1"]), 60), query.empty());
    }
}

#[test]
fn an_invalid_host_name_is_not_returned() {
    let names: [&[&[u8]]; 8] = [
        &[],
        &[b"a.b", b"org"],
        &[b"a b", b"org"],
        &[b"*", b"org"],
        &[b"b\xc3\xbccher", b"org"],
        &[b"a\0", b"org"],
        &[b"127", b"0", b"0", b"1"],
        &[b"0x7f000001"],
    ];
    for labels in names {
        let query = Query::parse(&question(labels, 1, 1)).unwrap();
        assert_eq!(query.name(), None, "{labels:?}");
    }
    let service: [&[u8]; 3] = [b"_http", b"_TCP", b"example"];
    let query = Query::parse(&question(&service, 33, 1)).unwrap();
    assert_eq!(query.name(), Some("_http._tcp.example"));
}

#[test]
fn malformed_queries_are_format_errors() {
    let mut two_questions = PLAIN.to_vec();
    two_questions[5] = 2;
    let mut with_answer = PLAIN.to_vec();
    with_answer[7] = 1;
    let mut missing_additional = PLAIN.to_vec();
    missing_additional[11] = 1;
    let mut two_options = WITH_EDNS.to_vec();
    two_options[11] = 2;
    two_options.extend_from_slice(b"\0\0\x29\x04\xd0\0\0\0\0\0\0");
    let mut pointer = PLAIN.to_vec();
    pointer[12..14].copy_from_slice(&[0xc0, 0x0c]);
    let mut trailing = PLAIN.to_vec();
    trailing.push(0);
    let mut named_option = PLAIN.to_vec();
    named_option[11] = 1;
    named_option.extend_from_slice(b"\x01a\0\0\x29\x04\xd0\0\0\0\0\0\0");
    let label = [b'a'; 63];
    let too_long = question(&[&label, &label, &label, &label], 1, 1);
    let messages = [
        two_questions,
        with_answer,
        missing_additional,
        two_options,
        pointer,
        trailing,
        named_option,
        too_long,
        question(&[&[b'a'; 64]], 1, 1),
    ];
    for message in messages {
        let error = Query::parse(&message).unwrap_err();
        assert!(matches!(error, QueryError::Malformed { .. }), "{message:x?}");
        let response = error.response().unwrap();
        assert_eq!(response[..2], message[..2]);
        assert_eq!(response[2..], *b"\x80\x81\0\0\0\0\0\0\0\0");
    }
}

#[test]
fn other_opcodes_are_not_implemented() {
    let mut message = PLAIN.to_vec();
    message[2] = 4 << 3;
    let error = Query::parse(&message).unwrap_err();
    assert_eq!(error, QueryError::Opcode { id: 0x1234, opcode: 4 });
    assert_eq!(error.response().unwrap(), b"\x12\x34\xa0\x84\0\0\0\0\0\0\0\0");
}

#[test]
fn responses_and_fragments_get_no_response() {
    let mut response = PLAIN.to_vec();
    response[2] |= 0x80;
    for message in [&response[..], &PLAIN[..11], &[]] {
        assert_eq!(Query::parse(message).unwrap_err().response(), None);
    }
}

#[test]
fn the_largest_response_fits_into_512_bytes() {
    let label = [b'a'; 63];
    let mut message = question(&[&label, &label, &label, &label[..61]], TYPE_AAAA, 1);
    message[11] = 1;
    message.extend_from_slice(b"\0\0\x29\x04\xd0\0\0\0\0\0\0");
    let query = Query::parse(&message).unwrap();
    assert_eq!(query.name().map(str::len), Some(253));
    let response = query.answer(&vec!["fd65::1".parse().unwrap(); 100], 60);
    assert!(response.len() <= 512, "{}", response.len());
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(message in vec(any::<u8>(), 0..600)) {
        match Query::parse(&message) {
            Ok(query) => drop(query.empty()),
            Err(error) => drop(error.response()),
        }
    }

    #[test]
    fn damaged_queries_never_panic(
        len in 0..=WITH_EDNS.len(),
        at in 0..WITH_EDNS.len(),
        byte: u8,
    ) {
        prop_assert!(len == WITH_EDNS.len() || Query::parse(&WITH_EDNS[..len]).is_err());
        let mut message = WITH_EDNS.to_vec();
        message[at] = byte;
        if let Ok(query) = Query::parse(&message) {
            let response = query.answer(&addresses(&["198.18.0.1", "fd65::1"]), 1);
            prop_assert!(response.len() <= 512);
        }
    }

    #[test]
    fn a_question_is_echoed_and_its_name_has_one_spelling(
        labels in vec(vec(any::<u8>(), 1..=63), 0..4),
        kind: u16,
    ) {
        let labels: Vec<&[u8]> = labels.iter().map(Vec::as_slice).collect();
        let message = question(&labels, kind, CLASS_IN);
        let query = Query::parse(&message).unwrap();
        prop_assert_eq!(&query.empty()[HEADER_LEN..], &message[HEADER_LEN..]);
        if let Some(name) = query.name() {
            prop_assert_eq!(name.parse(), Ok(Host::Name(name.to_owned())));
        }
    }
}

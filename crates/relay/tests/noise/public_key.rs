//! The key object: its JSON form, and the keys that are refused.

use exec_server_relay::noise::{PublicKey, PublicKeyError, SUITE};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::fixture::*;

fn key() -> PublicKey {
    harness().public_key().clone()
}

fn base64(bytes: &[u8]) -> String {
    base64_simd::STANDARD.encode_to_string(bytes)
}

/// The object of [`key`], with one member replaced.
fn with(member: &str, value: impl Into<Value>) -> Value {
    let mut object = serde_json::to_value(key()).unwrap();
    object[member] = value.into();
    object
}

fn refusal(object: &Value) -> String {
    serde_json::from_str::<PublicKey>(&object.to_string()).unwrap_err().to_string()
}

fn hex(digits: &str) -> [u8; 32] {
    let bytes: Vec<u8> = (0..64)
        .step_by(2)
        .map(|index| u8::from_str_radix(&digits[index..index + 2], 16).unwrap())
        .collect();
    bytes.try_into().unwrap()
}

#[test]
fn the_json_form_is_pinned() {
    let text = serde_json::to_string(&key()).unwrap();
    let expected = format!(
        r#"{{"suite":"{SUITE}","x25519_public_key":"{}","mlkem768_public_key":"{}"}}"#,
        base64(key().x25519()),
        base64(key().mlkem768()),
    );
    assert_eq!(text, expected);
    assert_eq!(SUITE, "Noise_hybridIK_X25519+MLKEM768_AESGCM_SHA256");
    assert_eq!(serde_json::from_str::<PublicKey>(&text).unwrap(), key());
}

#[test]
fn unknown_missing_and_repeated_members_are_refused() {
    assert!(refusal(&with("comment", "x")).contains("unknown field `comment`"));
    for member in ["suite", "x25519_public_key", "mlkem768_public_key"] {
        let mut object = serde_json::to_value(key()).unwrap();
        object.as_object_mut().unwrap().remove(member);
        assert!(refusal(&object).contains(&format!("missing field `{member}`")));
    }
    let text = serde_json::to_string(&key()).unwrap();
    let repeated = format!(r#"{{"suite":"{SUITE}",{}"#, &text[1..]);
    let error = serde_json::from_str::<PublicKey>(&repeated).unwrap_err();
    assert!(error.to_string().contains("duplicate field"));
}

#[test]
fn other_suites_are_refused() {
    for suite in ["", "Noise_IK_25519_AESGCM_SHA256", "noise_hybrid_ik_v1"] {
        let expected = PublicKeyError::UnsupportedSuite { found: suite.to_owned() };
        assert_eq!(refusal(&with("suite", suite)), expected.to_string());
    }
}

#[test]
fn keys_of_other_lengths_are_refused() {
    for (member, expected) in [("x25519_public_key", 32), ("mlkem768_public_key", 1184)] {
        for len in [0, 31, 33, 1183, 1185, 1216] {
            let expected = PublicKeyError::WrongLength { member, len, expected };
            assert_eq!(refusal(&with(member, base64(&vec![9; len]))), expected.to_string());
        }
    }
}

/// A key has exactly one text, because registries compare keys as text.
#[test]
fn only_padded_standard_base64_is_accepted() {
    let text = base64(key().x25519());
    let last = text.as_bytes()[42];
    let trailing_bits = format!("{}{}=", &text[..42], char::from(last + 1));
    for other in [
        text.trim_end_matches('=').to_owned(),
        format!("{text}="),
        format!(" {text}"),
        format!("{text}\n"),
        base64_simd::URL_SAFE.encode_to_string([0xff; 32]),
        trailing_bits,
    ] {
        let expected = PublicKeyError::InvalidBase64 { member: "x25519_public_key" };
        assert_eq!(refusal(&with("x25519_public_key", other)), expected.to_string());
    }
    assert!(refusal(&with("x25519_public_key", json!([1, 2]))).contains("expected a string"));
}

/// All points of low order and all their encodings, with the top bit clear. The first five are
/// canonical.
const LOW_ORDER: [&str; 7] = [
    "0000000000000000000000000000000000000000000000000000000000000000",
    "0100000000000000000000000000000000000000000000000000000000000000",
    "e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800",
    "5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157",
    "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
];

#[test]
fn points_of_low_order_are_refused() {
    for digits in LOW_ORDER {
        let mut point = hex(digits);
        for _ in 0..2 {
            let object = with("x25519_public_key", base64(&point));
            assert_eq!(refusal(&object), PublicKeyError::LowOrderX25519.to_string(), "{digits}");
            point[31] |= 0x80;
        }
    }
}

#[test]
fn second_encodings_of_a_point_are_refused() {
    // 9 is the base point. 9 + p is the same point.
    let base_plus_p = "f6ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f";
    let top_bit = "0900000000000000000000000000000000000000000000000000000000000080";
    let all_ones = "ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff";
    for digits in [base_plus_p, top_bit, all_ones] {
        let object = with("x25519_public_key", base64(&hex(digits)));
        assert_eq!(refusal(&object), PublicKeyError::NonCanonicalX25519.to_string(), "{digits}");
    }
    // The largest numbers below p that are not of low order, and the base point itself.
    for digits in [
        "ebffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
        "fffeffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
        "0900000000000000000000000000000000000000000000000000000000000000",
    ] {
        let mlkem768 = Box::new(*key().mlkem768());
        PublicKey::new(hex(digits), mlkem768).unwrap();
    }
}

#[test]
fn unreduced_coefficients_are_refused_wherever_they_are() {
    for index in 0..768 {
        for value in [3329, 4095] {
            let object = with("mlkem768_public_key", base64(&with_coefficient(index, value)));
            let expected = PublicKeyError::MlKemCoefficient { index, value };
            assert_eq!(refusal(&object), expected.to_string());
        }
        let largest = Box::new(with_coefficient(index, 3328));
        PublicKey::new(*key().x25519(), largest).unwrap();
    }
}

/// The key with one of its 12-bit numbers replaced.
fn with_coefficient(index: usize, value: u16) -> [u8; 1184] {
    let mut bytes = *key().mlkem768();
    let [low, high] = value.to_le_bytes();
    let start = index / 2 * 3;
    if index.is_multiple_of(2) {
        bytes[start] = low;
        bytes[start + 1] = bytes[start + 1] & 0xf0 | high;
    } else {
        bytes[start + 1] = bytes[start + 1] & 0x0f | low << 4;
        bytes[start + 2] = low >> 4 | high << 4;
    }
    bytes
}

#[test]
fn the_seed_of_a_kem_key_is_arbitrary() {
    let mut bytes = *key().mlkem768();
    bytes[1152..].fill(0xff);
    PublicKey::new(*key().x25519(), Box::new(bytes)).unwrap();
}

#[test]
fn errors_name_the_value_and_what_was_expected() {
    let errors = [
        PublicKeyError::UnsupportedSuite { found: "a\u{1b}[2J".to_owned() },
        PublicKeyError::WrongLength { member: "x25519_public_key", len: 3, expected: 32 },
        PublicKeyError::MlKemCoefficient { index: 7, value: 4000 },
    ];
    assert_eq!(
        errors.map(|error| error.to_string()),
        [
            "unsupported key suite \"a\\u{1b}[2J\"; \
             expected \"Noise_hybridIK_X25519+MLKEM768_AESGCM_SHA256\"",
            "x25519_public_key has 3 bytes; expected 32",
            "coefficient 7 of the ML-KEM-768 key is 4000; expected less than 3329",
        ]
    );
}

proptest! {
    #[test]
    fn text_and_key_are_one_to_one(x25519: [u8; 32]) {
        let text = with("x25519_public_key", base64(&x25519)).to_string();
        if let Ok(parsed) = serde_json::from_str::<PublicKey>(&text) {
            prop_assert_eq!(parsed.x25519(), &x25519);
            let again: Value = serde_json::to_value(&parsed).unwrap();
            prop_assert_eq!(again, serde_json::from_str::<Value>(&text).unwrap());
        }
    }
}

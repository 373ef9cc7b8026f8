//! Interoperability with `clatter`, which has its own algorithms and transport: both write the same
//! bytes, and each end understands the other.

use bytes::{Bytes, BytesMut};
use clatter::traits::Handshaker;
use exec_server_relay::noise::{
    Channel, EnvironmentHandshake, HandshakeError, HarnessHandshake, Identity,
    MAX_AUTHORIZATION_LEN, MAX_RECORD_PLAINTEXT, OpenError, OsRng, PublicKey, TAG_LEN,
};

use crate::fixture::*;

fn clatter_harness() -> Clatter<HarnessRng> {
    Clatter::new(harness_params(&prologue_bytes())).unwrap()
}

fn clatter_environment() -> Clatter<EnvironmentRng> {
    Clatter::new(environment_params(&prologue_bytes())).unwrap()
}

/// Returns plaintexts of one byte, of the limit, and around AES and GHASH block boundaries.
fn plaintexts() -> Vec<Vec<u8>> {
    [1, 15, 16, 17, 255, 4096, MAX_RECORD_PLAINTEXT - 1, MAX_RECORD_PLAINTEXT]
        .map(|len| (0..len).map(|index| (index % 251) as u8).collect())
        .to_vec()
}

#[test]
fn both_implementations_write_the_same_bytes() {
    let (harness_handshake, message_1) = start();
    let mut clatter_harness = clatter_harness();
    assert_eq!(write(&mut clatter_harness, AUTHORIZATION.as_bytes()), message_1);

    let (message_2, mut environment) = read(&message_1).accept().unwrap();
    let mut clatter_environment = clatter_environment();
    let mut payload = [0; AUTHORIZATION.len()];
    clatter_environment.read_message(&message_1, &mut payload).unwrap();
    assert_eq!(payload, AUTHORIZATION.as_bytes());
    assert_eq!(write(&mut clatter_environment, &[]), message_2);

    clatter_harness.read_message(&message_2, &mut []).unwrap();
    let mut harness = harness_handshake.finish(&message_2).unwrap();
    let mut clatter_harness = clatter_harness.finalize().unwrap();
    let mut clatter_environment = clatter_environment.finalize().unwrap();
    for plaintext in plaintexts() {
        let record = harness.sender.seal(BytesMut::from(&plaintext[..])).unwrap();
        assert_eq!(record, clatter_harness.send_vec(&plaintext).unwrap());
        let record = environment.sender.seal(BytesMut::from(&plaintext[..])).unwrap();
        assert_eq!(record, clatter_environment.send_vec(&plaintext).unwrap());
    }
}

#[test]
fn an_environment_of_clatter_serves_this_harness() {
    let (harness_handshake, message_1) = start();
    let mut environment = clatter_environment();
    environment.read_message(&message_1, &mut [0; AUTHORIZATION.len()]).unwrap();
    let message_2 = write(&mut environment, &[]);
    let mut environment = environment.finalize().unwrap();
    let mut harness = harness_handshake.finish(&message_2).unwrap();

    for plaintext in plaintexts() {
        let record = harness.sender.seal(BytesMut::from(&plaintext[..])).unwrap();
        assert_eq!(environment.receive_vec(&record).unwrap(), plaintext);
        let record = Bytes::from(environment.send_vec(&plaintext).unwrap());
        assert_eq!(record.len(), plaintext.len() + TAG_LEN);
        assert_eq!(harness.receiver.open(record).unwrap(), plaintext);
    }
}

#[test]
fn a_harness_of_clatter_reaches_this_environment() {
    let mut harness = clatter_harness();
    let message_1 = write(&mut harness, AUTHORIZATION.as_bytes());
    let pending = read(&message_1);
    assert_eq!(pending.authorization(), AUTHORIZATION);
    let (message_2, mut environment) = pending.accept().unwrap();
    harness.read_message(&message_2, &mut []).unwrap();
    let mut harness = harness.finalize().unwrap();

    for plaintext in plaintexts() {
        let record = Bytes::from(harness.send_vec(&plaintext).unwrap());
        assert_eq!(environment.receiver.open(record).unwrap(), plaintext);
        let record = environment.sender.seal(BytesMut::from(&plaintext[..])).unwrap();
        assert_eq!(harness.receive_vec(&record).unwrap(), plaintext);
    }
}

/// The name that is hashed into the handshake is `clatter`'s. The suite in the key object has an
/// extra "X".
#[test]
fn the_name_of_the_protocol_is_pinned() {
    let name = clatter_harness().get_name();
    assert_eq!(&name, "Noise_hybridIK_25519+MLKEM768_AESGCM_SHA256");
}

#[test]
fn the_system_generator_makes_fresh_keys_for_every_handshake() {
    let start = || {
        let environment = environment();
        <HarnessHandshake>::start(harness(), environment.public_key(), &PROLOGUE, "a").unwrap().1
    };
    assert_ne!(start(), start());
    let identity = || Identity::generate(&mut OsRng);
    assert_ne!(identity().public_key(), identity().public_key());

    let (mut harness, mut environment) = fresh_channels();
    let record = seal(&mut harness.sender, "fresh");
    assert_opens(&mut environment.receiver, &record, "fresh");
}

#[test]
fn the_authorization_has_one_to_4096_bytes() {
    let start = |authorization: &str| {
        let environment = environment();
        HarnessHandshake::<HarnessRng>::start(
            harness(),
            environment.public_key(),
            &PROLOGUE,
            authorization,
        )
    };
    for len in [1, MAX_AUTHORIZATION_LEN] {
        let authorization = "a".repeat(len);
        let (_, message_1) = start(&authorization).unwrap();
        assert_eq!(read(&message_1).authorization(), authorization);
    }
    for len in [0, MAX_AUTHORIZATION_LEN + 1] {
        let error = start(&"a".repeat(len)).unwrap_err();
        assert_eq!(error, HandshakeError::AuthorizationLength { len });
    }
}

/// A peer that does not check its own authorization is refused.
#[test]
fn an_environment_refuses_an_invalid_authorization() {
    let read = |payload: &[u8]| {
        let message_1 = write(&mut clatter_harness(), payload);
        EnvironmentHandshake::<EnvironmentRng>::read(environment(), &PROLOGUE, &message_1)
            .unwrap_err()
    };
    for len in [0, MAX_AUTHORIZATION_LEN + 1] {
        let expected = HandshakeError::Message1Length { len: 3568 + len };
        assert_eq!(read(&vec![b'a'; len]), expected);
    }
    assert_eq!(read(b"\xff"), HandshakeError::AuthorizationNotUtf8);
}

#[test]
fn a_harness_refuses_a_payload_in_message_2() {
    let (harness_handshake, message_1) = start();
    let mut environment = clatter_environment();
    environment.read_message(&message_1, &mut [0; AUTHORIZATION.len()]).unwrap();
    let message_2 = write(&mut environment, b"x");
    let error = harness_handshake.finish(&message_2).unwrap_err();
    assert_eq!(error, HandshakeError::Message2Length { len: 3425 });
}

#[test]
fn errors_name_the_value_and_what_was_expected() {
    let errors = [
        HandshakeError::Message1Length { len: 3568 },
        HandshakeError::Message2Length { len: 3425 },
        HandshakeError::AuthorizationLength { len: 0 },
    ];
    assert_eq!(
        errors.map(|error| error.to_string()),
        [
            "message 1 has 3568 bytes; expected 3569 to 7664",
            "message 2 has 3425 bytes; expected 3424",
            "the authorization has 0 bytes; expected 1 to 4096",
        ]
    );
    assert_eq!(
        OpenError::Length { len: 16 }.to_string(),
        "the encrypted record has 16 bytes; expected 17 to 61456"
    );
}

/// A pending handshake waits for the registry in a task.
#[test]
fn handshakes_and_channels_move_between_threads() {
    fn assert_send<T: Send + 'static>() {}
    assert_send::<HarnessHandshake>();
    assert_send::<EnvironmentHandshake>();
    assert_send::<Channel>();
    fn assert_shared<T: Send + Sync + 'static>() {}
    assert_shared::<Identity>();
    assert_shared::<PublicKey>();
}

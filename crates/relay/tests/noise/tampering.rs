//! A hostile rendezvous: it alters, replays, reorders and splices messages, and nothing is
//! delivered.

use std::collections::BTreeSet;

use bytes::Bytes;
use exec_server_relay::noise::{
    EnvironmentHandshake, HandshakeError, HarnessHandshake, Identity, OpenError, Prologue,
};
use proptest::prelude::*;

use crate::fixture::*;

fn try_read(
    identity: &Identity,
    prologue: &Prologue<'_>,
    message: &[u8],
) -> Result<EnvironmentHandshake<EnvironmentRng>, HandshakeError> {
    EnvironmentHandshake::read(identity, prologue, message)
}

/// Where to flip a bit: every `stride`th byte, and the first and last byte of every field.
fn positions(len: usize, fields: &[usize], stride: usize) -> BTreeSet<usize> {
    assert_eq!(fields.iter().sum::<usize>(), len);
    let mut positions: BTreeSet<usize> = (0..len).step_by(stride).collect();
    let mut start = 0;
    for field in fields {
        positions.extend([start, start + field - 1]);
        start += field;
    }
    positions
}

fn flipped(message: &[u8], position: usize) -> Vec<u8> {
    let mut altered = message.to_vec();
    altered[position] ^= 1 << (position % 8);
    altered
}

/// The lengths of the fields of message 1: ciphertext to the static key; ephemeral keys; static
/// keys and payload, each with a tag.
const MESSAGE_1: [usize; 9] = [1088, 32, 1184, 32, 16, 1184, 16, AUTHORIZATION.len(), 16];
/// The lengths of the fields of message 2: ciphertexts to the ephemeral and to the static key, the
/// latter with a tag; ephemeral keys; the tag of the empty payload.
const MESSAGE_2: [usize; 6] = [1088, 1088, 16, 32, 1184, 16];

fn flip_message_1(stride: usize) {
    let (_, message_1) = start();
    for position in positions(message_1.len(), &MESSAGE_1, stride) {
        let error = try_read(environment(), &PROLOGUE, &flipped(&message_1, position)).unwrap_err();
        assert_eq!(error, HandshakeError::Refused, "byte {position}");
    }
    try_read(environment(), &PROLOGUE, &message_1).unwrap();
}

fn flip_message_2(stride: usize) {
    let start = || {
        let environment = environment().public_key();
        HarnessHandshake::<HarnessRng>::start(harness(), environment, &PROLOGUE, AUTHORIZATION)
            .unwrap()
    };
    let (message_2, _) = read(&start().1).accept().unwrap();
    for position in positions(message_2.len(), &MESSAGE_2, stride) {
        let error = start().0.finish(&flipped(&message_2, position)).unwrap_err();
        assert_eq!(error, HandshakeError::Refused, "byte {position}");
    }
    start().0.finish(&message_2).unwrap();
}

#[test]
fn a_flipped_bit_in_any_byte_of_message_1_is_refused() {
    flip_message_1(1);
}

#[test]
fn flipped_bits_in_message_2_are_refused() {
    flip_message_2(17);
}

#[test]
#[ignore = "soak: thousands of handshakes, run by `just soak-counts`"]
fn soak_a_flipped_bit_in_any_byte_of_message_2_is_refused() {
    flip_message_2(1);
}

#[test]
fn truncated_and_extended_messages_are_refused() {
    let (harness_handshake, message_1) = start();
    let (message_2, _) = read(&message_1).accept().unwrap();
    let resized = |message: &[u8], len| {
        let mut message = message.to_vec();
        message.resize(len, 0);
        message
    };

    for len in [0, 1, 16, 3568, 7665, 65_535, 65_536, 1 << 20] {
        let error = try_read(environment(), &PROLOGUE, &resized(&message_1, len)).unwrap_err();
        assert_eq!(error, HandshakeError::Message1Length { len });
    }
    for len in [3569, message_1.len() - 1, message_1.len() + 1, 7664] {
        let error = try_read(environment(), &PROLOGUE, &resized(&message_1, len)).unwrap_err();
        assert_eq!(error, HandshakeError::Refused);
    }

    for len in [0, 1, 16, 3423, 3425, 65_535, 65_536, 1 << 20] {
        let error = start().0.finish(&resized(&message_2, len)).unwrap_err();
        assert_eq!(error, HandshakeError::Message2Length { len });
    }
    harness_handshake.finish(&message_2).unwrap();
}

#[test]
fn each_part_of_the_prologue_binds_message_1() {
    let (_, message_1) = start();
    for other in [
        Prologue { environment_id: "env-2", ..PROLOGUE },
        Prologue { registration_id: "reg-2", ..PROLOGUE },
        Prologue { stream_id: "3f1c8a52-7f0e-4b0b-9d7a-1e5c2a9b4d11", ..PROLOGUE },
        // The same text, cut elsewhere.
        Prologue { environment_id: "env-", registration_id: "1reg-1", ..PROLOGUE },
    ] {
        let error = try_read(environment(), &other, &message_1).unwrap_err();
        assert_eq!(error, HandshakeError::Refused, "{other:?}");
    }
    let mut other_domain = prologue_bytes();
    let version = 8 + "codex-exec-server-relay-noise/v".len();
    assert_eq!(other_domain[version], b'1');
    other_domain[version] = b'2';
    let mut harness = Clatter::<HarnessRng>::new(harness_params(&other_domain)).unwrap();
    let message_1 = write(&mut harness, AUTHORIZATION.as_bytes());
    let error = try_read(environment(), &PROLOGUE, &message_1).unwrap_err();
    assert_eq!(error, HandshakeError::Refused);
}

#[test]
fn only_the_environment_that_the_harness_names_reads_message_1() {
    let (_, message_1) = start();
    let impostor = Identity::generate(&mut FixedRng::<9>::default());
    let error = try_read(&impostor, &PROLOGUE, &message_1).unwrap_err();
    assert_eq!(error, HandshakeError::Refused);
}

/// Neither of the environment's two private keys is enough without the other.
#[test]
fn an_environment_with_one_right_half_cannot_read_message_1() {
    use clatter::traits::Handshaker;
    let (_, message_1) = start();
    let (other_dh, other_kem) = keys::<FixedRng<9>>();
    let prologue = prologue_bytes();
    // Each has one foreign private key, but both public keys that the harness expects.
    let (dh, kem) = keys::<EnvironmentIdentityRng>();
    let half_dh = clatter::KeyPair::new(dh.public, other_dh.secret.clone());
    let half_kem = clatter::KeyPair::new(kem.public.clone(), other_kem.secret.clone());
    for params in [
        environment_params(&prologue).with_s(half_dh),
        environment_params(&prologue).with_s_kem(half_kem),
    ] {
        let mut environment = Clatter::<EnvironmentRng>::new(params).unwrap();
        environment.read_message(&message_1, &mut [0; AUTHORIZATION.len()]).unwrap_err();
    }
}

#[test]
fn message_2_of_another_handshake_is_refused() {
    let (harness_handshake, message_1) = start();
    let (_, other_message_1) = HarnessHandshake::<FixedRng<9>>::start(
        harness(),
        environment().public_key(),
        &PROLOGUE,
        AUTHORIZATION,
    )
    .unwrap();
    assert_ne!(message_1, other_message_1);
    let (other_message_2, _) = read(&other_message_1).accept().unwrap();
    let error = harness_handshake.finish(&other_message_2).unwrap_err();
    assert_eq!(error, HandshakeError::Refused);
}

#[test]
fn a_reflected_message_1_is_not_accepted_as_message_2() {
    let (harness_handshake, message_1) = start();
    let error = harness_handshake.finish(&message_1[..3424]).unwrap_err();
    assert_eq!(error, HandshakeError::Refused);
}

/// The environment cannot detect a replay; the registry does, since an authorization is valid once.
/// The attacker has no key for message 2.
#[test]
fn a_replayed_message_1_yields_a_channel_that_the_attacker_cannot_use() {
    let (harness_handshake, message_1) = start();
    let (message_2, _) = read(&message_1).accept().unwrap();
    let mut harness = harness_handshake.finish(&message_2).unwrap();
    let record = seal(&mut harness.sender, "rm -rf /");

    let replayed = <EnvironmentHandshake>::read(environment(), &PROLOGUE, &message_1).unwrap();
    let (_, mut environment) = replayed.accept().unwrap();
    assert_eq!(environment.receiver.open(record), Err(OpenError::Forged { number: 0 }));
}

#[test]
fn a_replayed_record_kills_the_stream() {
    let (mut harness, mut environment) = fresh_channels();
    let first = seal(&mut harness.sender, "first");
    let second = seal(&mut harness.sender, "second");
    assert_opens(&mut environment.receiver, &first, "first");
    assert_eq!(environment.receiver.open(first), Err(OpenError::Forged { number: 1 }));
    assert_eq!(environment.receiver.open(second), Err(OpenError::Failed));
}

#[test]
fn reordered_and_dropped_records_kill_the_stream() {
    let (mut harness, mut environment) = fresh_channels();
    let first = seal(&mut harness.sender, "first");
    let second = seal(&mut harness.sender, "second");
    assert_eq!(environment.receiver.open(second), Err(OpenError::Forged { number: 0 }));
    assert_eq!(environment.receiver.open(first), Err(OpenError::Failed));
}

/// Both streams have the same identities and prologue: only the ephemeral keys differ.
#[test]
fn a_record_of_another_stream_is_refused() {
    let (mut harness, _) = fresh_channels();
    let (_, mut other_environment) = fresh_channels();
    let record = seal(&mut harness.sender, "text");
    assert_eq!(other_environment.receiver.open(record), Err(OpenError::Forged { number: 0 }));
}

#[test]
fn a_reflected_record_is_refused() {
    let (mut harness, _) = fresh_channels();
    let record = seal(&mut harness.sender, "text");
    assert_eq!(harness.receiver.open(record), Err(OpenError::Forged { number: 0 }));
}

/// The directions are independent: an end whose receiver has failed can still send.
#[test]
fn a_dead_receiver_leaves_the_sender_alive() {
    let (mut harness, mut environment) = fresh_channels();
    environment.receiver.open(Bytes::from_static(&[0; 40])).unwrap_err();
    let record = seal(&mut environment.sender, "goodbye");
    assert_opens(&mut harness.receiver, &record, "goodbye");
}

#[test]
fn debug_output_has_no_secret() {
    let (harness_handshake, message_1) = start();
    let pending = read(&message_1);
    assert_eq!(format!("{harness_handshake:?}"), "HarnessHandshake { .. }");
    assert_eq!(
        format!("{pending:?}"),
        "EnvironmentHandshake { harness: PublicKey(sha256:96496af6c3d04c87…), .. }"
    );
    assert_eq!(
        format!("{:?}", harness()),
        "Identity { public: PublicKey(sha256:96496af6c3d04c87…), .. }"
    );
    let (_, channel) = pending.accept().unwrap();
    assert_eq!(
        format!("{channel:?}"),
        "Channel { sender: RecordSealer { next: 0, .. }, \
         receiver: RecordOpener { next: Some(0), .. } }"
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn random_bytes_are_refused(
        bytes in prop::collection::vec(any::<u8>(), 0..8192),
        exact in prop::collection::vec(any::<u8>(), 3424),
    ) {
        prop_assert!(try_read(environment(), &PROLOGUE, &bytes).is_err());
        prop_assert!(start().0.finish(&exact).is_err());
    }
}

//! Peers that send keys which contribute nothing to the exchange, or are malformed.
//!
//! Every attack first succeeds against plain `clatter`, so the check under test is what stops it.

use clatter::KeyPair;
use clatter::bytearray::{ByteArray, SensitiveByteArray};
use clatter::crypto::dh::X25519;
use clatter::crypto::kem::rust_crypto_ml_kem::MlKem768;
use clatter::error::DhResult;
use clatter::traits::{CryptoComponent, Dh, Handshaker, Kem, Rng};
use exec_server_relay::noise::{EnvironmentHandshake, HandshakeError, PublicKeyError};

use crate::fixture::*;

/// The attacker's X25519: a private key of zeros stands for a point of low order, with which every
/// shared secret is zero.
#[derive(Clone)]
struct HostileX25519;

const LOW_ORDER: [u8; 32] = {
    let mut one = [0; 32];
    one[0] = 1;
    one
};

fn hostile_pair() -> DhPair {
    KeyPair::new(LOW_ORDER, SensitiveByteArray::new([0; 32]))
}

impl CryptoComponent for HostileX25519 {
    fn name() -> &'static str {
        X25519::name()
    }
}

impl Dh for HostileX25519 {
    type PrivateKey = <X25519 as Dh>::PrivateKey;
    type PubKey = [u8; 32];
    type Output = <X25519 as Dh>::Output;

    fn genkey_rng<R: Rng>(rng: &mut R) -> DhResult<DhPair> {
        X25519::genkey_rng(rng)
    }

    fn pubkey(private: &Self::PrivateKey) -> [u8; 32] {
        X25519::pubkey(private)
    }

    fn dh(private: &Self::PrivateKey, public: &[u8; 32]) -> DhResult<Self::Output> {
        if private.as_slice() == [0; 32] {
            return Ok(SensitiveByteArray::new([0; 32]));
        }
        X25519::dh(private, public)
    }
}

/// A key whose first coefficient is not reduced.
fn malformed_kem_pair(pair: &KemPair) -> KemPair {
    let mut public = pair.public.clone();
    let first = public.as_mut();
    first[0] = 0xff;
    first[1] |= 0x0f;
    KeyPair::new(public, pair.secret.clone())
}

/// Returns this environment's error for the attacker's message 1, after plain `clatter` has
/// accepted it.
fn refusal(params: Params<'_, HostileX25519>) -> HandshakeError {
    let mut attacker = Clatter::<HarnessRng, HostileX25519>::new(params).unwrap();
    let message_1 = write(&mut attacker, AUTHORIZATION.as_bytes());

    let prologue = prologue_bytes();
    let mut plain = Clatter::<EnvironmentRng>::new(environment_params(&prologue)).unwrap();
    plain.read_message(&message_1, &mut [0; AUTHORIZATION.len()]).unwrap();
    write(&mut plain, &[]);

    EnvironmentHandshake::<EnvironmentRng>::read(environment(), &PROLOGUE, &message_1).unwrap_err()
}

#[test]
fn a_harness_with_an_ephemeral_key_of_low_order_is_refused() {
    let prologue = prologue_bytes();
    let params = harness_params(&prologue).with_e(hostile_pair());
    assert_eq!(refusal(params), HandshakeError::Refused);
}

#[test]
fn a_harness_with_a_static_key_of_low_order_is_refused() {
    let prologue = prologue_bytes();
    let params = harness_params(&prologue).with_s(hostile_pair());
    assert_eq!(refusal(params), HandshakeError::Refused);
}

#[test]
fn a_harness_with_a_malformed_ephemeral_kem_key_is_refused() {
    let prologue = prologue_bytes();
    let pair = MlKem768::genkey_rng(&mut FixedRng::<9>::default()).unwrap();
    let params = harness_params(&prologue).with_e_kem(malformed_kem_pair(&pair));
    let expected = PublicKeyError::MlKemCoefficient { index: 0, value: 4095 };
    assert_eq!(refusal(params), HandshakeError::EphemeralKey(expected));
}

#[test]
fn a_harness_with_a_malformed_static_kem_key_is_refused() {
    let prologue = prologue_bytes();
    let pair = keys::<HarnessIdentityRng>().1;
    let params = harness_params(&prologue).with_s_kem(malformed_kem_pair(&pair));
    let expected = PublicKeyError::MlKemCoefficient { index: 0, value: 4095 };
    assert_eq!(refusal(params), HandshakeError::HarnessKey(expected));
}

/// X25519 ignores the top bit, so one private key has two public keys.
#[test]
fn a_harness_with_a_second_encoding_of_its_key_is_refused() {
    let prologue = prologue_bytes();
    let dh = keys::<HarnessIdentityRng>().0;
    let mut public = dh.public;
    public[31] |= 0x80;
    let params = harness_params(&prologue).with_s(KeyPair::new(public, dh.secret.clone()));
    let expected = PublicKeyError::NonCanonicalX25519;
    assert_eq!(refusal(params), HandshakeError::HarnessKey(expected));
}

#[test]
fn an_environment_with_an_ephemeral_key_of_low_order_is_refused() {
    let (harness_handshake, message_1) = start();
    let prologue = prologue_bytes();
    let params = environment_params(&prologue).with_e(hostile_pair());
    let mut attacker = Clatter::<EnvironmentRng, HostileX25519>::new(params).unwrap();
    attacker.read_message(&message_1, &mut [0; AUTHORIZATION.len()]).unwrap();
    let message_2 = write(&mut attacker, &[]);

    let mut plain = Clatter::<HarnessRng>::new(harness_params(&prologue)).unwrap();
    assert_eq!(write(&mut plain, AUTHORIZATION.as_bytes()), message_1);
    plain.read_message(&message_2, &mut []).unwrap();

    let error = harness_handshake.finish(&message_2).unwrap_err();
    assert_eq!(error, HandshakeError::Refused);
}

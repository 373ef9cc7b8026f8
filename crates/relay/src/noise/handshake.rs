//! The two messages that open a stream.
//!
//! Each state has its own type, and each step consumes the state, so a failed handshake cannot be
//! used again.

use std::fmt;

use bytes::Bytes;
use clatter::bytearray::ByteArray;
use clatter::constants::MAX_MESSAGE_LEN;
use clatter::crypto::hash::Sha256;
use clatter::crypto::kem::rust_crypto_ml_kem::MlKem768;
use clatter::handshakepattern::noise_hybrid_ik;
use clatter::traits::{Handshaker, Rng};
use clatter::{HybridHandshakeCore, HybridHandshakeParams};
use rand_core::OsRng;

use super::identity::Identity;
use super::primitives::{ContributoryX25519, RingAesGcm};
use super::prologue::Prologue;
use super::public_key::{MLKEM768_LEN, PublicKey, PublicKeyError, check_mlkem768};
use super::record::Channel;

/// The length of message 1 without its payload, the authorization.
pub const MESSAGE_1_OVERHEAD: usize = 3568;
/// The length of message 2. Its payload is empty.
pub const MESSAGE_2_LEN: usize = 3424;
/// The longest `harness_key_authorization`. The shortest is one byte.
pub const MAX_AUTHORIZATION_LEN: usize = 4096;

const MESSAGE_1_MAX: usize = MESSAGE_1_OVERHEAD + MAX_AUTHORIZATION_LEN;

// The limit of Noise: `clatter` panics on a longer message.
const _: () = assert!(MESSAGE_1_MAX <= MAX_MESSAGE_LEN);
const _: () = assert!(MESSAGE_2_LEN <= MAX_MESSAGE_LEN);

type Noise<R> = HybridHandshakeCore<ContributoryX25519, MlKem768, MlKem768, RingAesGcm, Sha256, R>;
type NoiseParams<'a> = HybridHandshakeParams<'a, ContributoryX25519, MlKem768, MlKem768>;

/// The harness's handshake, after message 1 and before message 2.
///
/// The random number generator is a type parameter because `clatter` creates it. Call
/// `<HarnessHandshake>::start` to use [`OsRng`]; tests name a deterministic type.
pub struct HarnessHandshake<R: Rng = OsRng> {
    noise: Noise<R>,
}

impl<R: Rng> HarnessHandshake<R> {
    /// Writes message 1, which only the owner of `environment` can read.
    pub fn start(
        identity: &Identity,
        environment: &PublicKey,
        prologue: &Prologue<'_>,
        authorization: &str,
    ) -> Result<(Self, Bytes), HandshakeError> {
        check_authorization_len(authorization.len())?;
        let prologue = prologue.encode();
        let params = params(identity, &prologue, true)
            .with_rs(*environment.x25519())
            .with_rs_kem(environment.kem());
        let mut noise = Noise::new(params).map_err(|_| HandshakeError::Write)?;
        let len = MESSAGE_1_OVERHEAD + authorization.len();
        let message = write_message(&mut noise, authorization.as_bytes(), len)?;
        Ok((Self { noise }, message))
    }

    /// Reads message 2. Success proves that the environment holds its private keys and accepted
    /// this very message 1.
    pub fn finish(mut self, message: &[u8]) -> Result<Channel, HandshakeError> {
        let len = message.len();
        if len != MESSAGE_2_LEN {
            return Err(HandshakeError::Message2Length { len });
        }
        self.noise.read_message(message, &mut []).map_err(|_| HandshakeError::Refused)?;
        let transport = self.noise.finalize().map_err(|_| HandshakeError::Refused)?;
        Ok(Channel::of_harness(transport.take()))
    }
}

impl<R: Rng> fmt::Debug for HarnessHandshake<R> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("HarnessHandshake").finish_non_exhaustive()
    }
}

/// The environment's handshake, after message 1 and before message 2.
///
/// The caller validates [`harness`](Self::harness) and [`authorization`](Self::authorization) with
/// the registry. If they are invalid, it drops the handshake, and so never sends message 2.
///
/// Call `<EnvironmentHandshake>::read` to use [`OsRng`]; see [`HarnessHandshake`].
pub struct EnvironmentHandshake<R: Rng = OsRng> {
    noise: Noise<R>,
    harness: PublicKey,
    authorization: String,
}

impl<R: Rng> EnvironmentHandshake<R> {
    /// Reads message 1. Success proves that the writer holds the private keys of
    /// [`harness`](Self::harness), not that it wrote the message just now: it may be a replay.
    pub fn read(
        identity: &Identity,
        prologue: &Prologue<'_>,
        message: &[u8],
    ) -> Result<Self, HandshakeError> {
        let len = message.len();
        if !(MESSAGE_1_OVERHEAD + 1..=MESSAGE_1_MAX).contains(&len) {
            return Err(HandshakeError::Message1Length { len });
        }
        let prologue = prologue.encode();
        let params = params(identity, &prologue, false);
        let mut noise = Noise::<R>::new(params).map_err(|_| HandshakeError::Refused)?;
        let mut authorization = vec![0; len - MESSAGE_1_OVERHEAD];
        noise.read_message(message, &mut authorization).map_err(|_| HandshakeError::Refused)?;

        let harness = noise.get_remote_static().ok_or(HandshakeError::Refused)?;
        let harness = PublicKey::new(*harness.dh(), kem_key(harness.kem())?)
            .map_err(HandshakeError::HarnessKey)?;
        // `accept` encapsulates to the ML-KEM half of this key. `read_message` has already checked
        // the X25519 half by using it.
        let ephemeral = noise.get_remote_ephemeral().ok_or(HandshakeError::Refused)?;
        check_mlkem768(&*kem_key(ephemeral.kem())?).map_err(HandshakeError::EphemeralKey)?;

        let authorization =
            String::from_utf8(authorization).map_err(|_| HandshakeError::AuthorizationNotUtf8)?;
        Ok(Self { noise, harness, authorization })
    }

    pub fn harness(&self) -> &PublicKey {
        &self.harness
    }

    /// Returns the `harness_key_authorization`. It is a credential: it goes to the registry only.
    pub fn authorization(&self) -> &str {
        &self.authorization
    }

    /// Writes message 2. The harness is known to be alive once its first record opens.
    pub fn accept(mut self) -> Result<(Bytes, Channel), HandshakeError> {
        let message = write_message(&mut self.noise, &[], MESSAGE_2_LEN)?;
        let transport = self.noise.finalize().map_err(|_| HandshakeError::Write)?;
        Ok((message, Channel::of_environment(transport.take())))
    }
}

impl<R: Rng> fmt::Debug for EnvironmentHandshake<R> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("EnvironmentHandshake")
            .field("harness", &self.harness)
            .finish_non_exhaustive()
    }
}

/// Each of these errors ends the stream.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HandshakeError {
    #[error("message 1 has {len} bytes; expected {} to {MESSAGE_1_MAX}", MESSAGE_1_OVERHEAD + 1)]
    Message1Length { len: usize },
    #[error("message 2 has {len} bytes; expected {MESSAGE_2_LEN}")]
    Message2Length { len: usize },
    /// Without detail: the failed step would help only an attacker.
    #[error("the handshake message was altered, or made for other keys or another stream")]
    Refused,
    #[error("the harness has an invalid static key")]
    HarnessKey(#[source] PublicKeyError),
    #[error("the harness sent an invalid ephemeral key")]
    EphemeralKey(#[source] PublicKeyError),
    #[error("the authorization has {len} bytes; expected 1 to {MAX_AUTHORIZATION_LEN}")]
    AuthorizationLength { len: usize },
    #[error("the authorization is not UTF-8")]
    AuthorizationNotUtf8,
    #[error("cannot write the handshake message")]
    Write,
}

fn params<'a>(identity: &Identity, prologue: &'a [u8], initiator: bool) -> NoiseParams<'a> {
    NoiseParams::new(noise_hybrid_ik(), initiator)
        .with_prologue(prologue)
        .with_s(identity.dh.clone())
        .with_s_kem(identity.kem.clone())
}

fn write_message<R: Rng>(
    noise: &mut Noise<R>,
    payload: &[u8],
    len: usize,
) -> Result<Bytes, HandshakeError> {
    let mut message = vec![0; len];
    match noise.write_message(payload, &mut message) {
        Ok(written) if written == len => Ok(message.into()),
        _ => Err(HandshakeError::Write),
    }
}

fn check_authorization_len(len: usize) -> Result<(), HandshakeError> {
    if (1..=MAX_AUTHORIZATION_LEN).contains(&len) {
        Ok(())
    } else {
        Err(HandshakeError::AuthorizationLength { len })
    }
}

fn kem_key(key: &impl ByteArray) -> Result<Box<[u8; MLKEM768_LEN]>, HandshakeError> {
    key.as_slice().to_vec().into_boxed_slice().try_into().map_err(|_| HandshakeError::Refused)
}

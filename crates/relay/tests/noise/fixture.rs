//! Two identities, a stream between them, and the same stream built with `clatter` alone.

use std::sync::LazyLock;

use bytes::{Bytes, BytesMut};
use clatter::crypto::cipher::AesGcm;
use clatter::crypto::dh::X25519;
use clatter::crypto::hash::Sha256;
use clatter::crypto::kem::rust_crypto_ml_kem::MlKem768;
use clatter::handshakepattern::noise_hybrid_ik;
use clatter::traits::{Cipher, Dh, Kem};
use clatter::{HybridHandshakeCore, HybridHandshakeParams, KeyPair};
use exec_server_relay::noise::{
    Channel, EnvironmentHandshake, HarnessHandshake, Identity, Prologue, RecordOpener, RecordSealer,
};
use rand_core::{CryptoRng, RngCore};

/// A reproducible generator (SplitMix64). It claims to be cryptographically secure because the
/// handshake requires that.
#[derive(Clone)]
pub(crate) struct FixedRng<const SEED: u64>(u64);

impl<const SEED: u64> Default for FixedRng<SEED> {
    fn default() -> Self {
        Self(SEED)
    }
}

impl<const SEED: u64> RngCore for FixedRng<SEED> {
    fn next_u32(&mut self) -> u32 {
        (self.next_u64() >> 32) as u32
    }

    fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn fill_bytes(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            chunk.copy_from_slice(&self.next_u64().to_le_bytes()[..chunk.len()]);
        }
    }

    fn try_fill_bytes(&mut self, bytes: &mut [u8]) -> Result<(), rand_core::Error> {
        self.fill_bytes(bytes);
        Ok(())
    }
}

impl<const SEED: u64> CryptoRng for FixedRng<SEED> {}

pub(crate) type HarnessIdentityRng = FixedRng<1>;
pub(crate) type EnvironmentIdentityRng = FixedRng<2>;
pub(crate) type HarnessRng = FixedRng<3>;
pub(crate) type EnvironmentRng = FixedRng<4>;

pub(crate) const PROLOGUE: Prologue<'static> = Prologue {
    environment_id: "env-1",
    registration_id: "reg-1",
    stream_id: "3f1c8a52-7f0e-4b0b-9d7a-1e5c2a9b4d10",
};
pub(crate) const AUTHORIZATION: &str = "authorization-of-the-harness";

pub(crate) fn harness() -> &'static Identity {
    static HARNESS: LazyLock<Identity> =
        LazyLock::new(|| Identity::generate(&mut HarnessIdentityRng::default()));
    &HARNESS
}

pub(crate) fn environment() -> &'static Identity {
    static ENVIRONMENT: LazyLock<Identity> =
        LazyLock::new(|| Identity::generate(&mut EnvironmentIdentityRng::default()));
    &ENVIRONMENT
}

/// Returns the harness's state and message 1 of the fixed handshake.
pub(crate) fn start() -> (HarnessHandshake<HarnessRng>, Bytes) {
    HarnessHandshake::start(harness(), environment().public_key(), &PROLOGUE, AUTHORIZATION)
        .unwrap()
}

pub(crate) fn read(message: &[u8]) -> EnvironmentHandshake<EnvironmentRng> {
    EnvironmentHandshake::read(environment(), &PROLOGUE, message).unwrap()
}

/// Returns an established stream with fresh keys: the channel of the harness, then of the
/// environment.
pub(crate) fn fresh_channels() -> (Channel, Channel) {
    let (harness_handshake, message_1) =
        <HarnessHandshake>::start(harness(), environment().public_key(), &PROLOGUE, AUTHORIZATION)
            .unwrap();
    let pending = <EnvironmentHandshake>::read(environment(), &PROLOGUE, &message_1).unwrap();
    let (message_2, environment_channel) = pending.accept().unwrap();
    (harness_handshake.finish(&message_2).unwrap(), environment_channel)
}

pub(crate) fn seal(sealer: &mut RecordSealer, text: &str) -> Bytes {
    sealer.seal(BytesMut::from(text)).unwrap()
}

pub(crate) fn assert_opens(opener: &mut RecordOpener, record: &Bytes, text: &str) {
    assert_eq!(opener.open(record.clone()).unwrap(), text);
}

/// The handshake of `clatter` with its own algorithms, or with those of an attacker.
pub(crate) type Clatter<R, D = X25519, C = AesGcm> =
    HybridHandshakeCore<D, MlKem768, MlKem768, C, Sha256, R>;

pub(crate) type Params<'a, D = X25519> = HybridHandshakeParams<'a, D, MlKem768, MlKem768>;
pub(crate) type DhPair = KeyPair<[u8; 32], <X25519 as Dh>::PrivateKey>;
pub(crate) type KemPair = KeyPair<<MlKem768 as Kem>::PubKey, <MlKem768 as Kem>::SecretKey>;

/// The private keys that [`Identity::generate`] makes from the same generator.
pub(crate) fn keys<R: clatter::traits::Rng>() -> (DhPair, KemPair) {
    let mut rng = R::default();
    (X25519::genkey_rng(&mut rng).unwrap(), MlKem768::genkey_rng(&mut rng).unwrap())
}

pub(crate) fn harness_params<D>(prologue: &[u8]) -> Params<'_, D>
where
    D: Dh<PubKey = [u8; 32], PrivateKey = <X25519 as Dh>::PrivateKey>,
{
    let (dh, kem) = keys::<HarnessIdentityRng>();
    let (environment_dh, environment_kem) = keys::<EnvironmentIdentityRng>();
    Params::new(noise_hybrid_ik(), true)
        .with_prologue(prologue)
        .with_s(dh)
        .with_s_kem(kem)
        .with_rs(environment_dh.public)
        .with_rs_kem(environment_kem.public.clone())
}

pub(crate) fn environment_params<D>(prologue: &[u8]) -> Params<'_, D>
where
    D: Dh<PubKey = [u8; 32], PrivateKey = <X25519 as Dh>::PrivateKey>,
{
    let (dh, kem) = keys::<EnvironmentIdentityRng>();
    Params::new(noise_hybrid_ik(), false).with_prologue(prologue).with_s(dh).with_s_kem(kem)
}

/// The encoding of [`PROLOGUE`], written out independently.
pub(crate) fn prologue_bytes() -> Vec<u8> {
    let mut bytes = Vec::new();
    for part in [
        "codex-exec-server-relay-noise/v1",
        PROLOGUE.environment_id,
        PROLOGUE.registration_id,
        PROLOGUE.stream_id,
    ] {
        bytes.extend([0, 0, 0, 0, 0, 0, 0, u8::try_from(part.len()).unwrap()]);
        bytes.extend(part.bytes());
    }
    bytes
}

pub(crate) fn write<R, D, C>(noise: &mut Clatter<R, D, C>, payload: &[u8]) -> Vec<u8>
where
    R: clatter::traits::Rng,
    D: Dh,
    C: Cipher,
{
    use clatter::traits::Handshaker;
    let mut message = vec![0; 16 * 1024];
    let len = noise.write_message(payload, &mut message).unwrap();
    message.truncate(len);
    message
}

//! The long-lived key pairs of one end.

use std::fmt;

use clatter::KeyPair;
use clatter::bytearray::ByteArray;
use clatter::crypto::kem::rust_crypto_ml_kem::MlKem768;
use clatter::traits::{Dh, Kem, Rng};

use super::primitives::ContributoryX25519;
use super::public_key::{MLKEM768_LEN, PublicKey};

pub(super) type DhKeyPair = KeyPair<<ContributoryX25519 as Dh>::PubKey, DhPrivateKey>;
type DhPrivateKey = <ContributoryX25519 as Dh>::PrivateKey;
pub(super) type KemKeyPair = KeyPair<<MlKem768 as Kem>::PubKey, <MlKem768 as Kem>::SecretKey>;

/// The private keys of a harness or an environment, and their public half.
///
/// They live in memory only, and are erased when dropped.
pub struct Identity {
    pub(super) dh: DhKeyPair,
    pub(super) kem: KemKeyPair,
    public: PublicKey,
}

impl Identity {
    /// Generates an identity. Outside tests, `rng` is [`OsRng`](super::OsRng).
    ///
    /// # Panics
    ///
    /// If the random number generator fails: no secret can be made without it.
    pub fn generate<R: Rng>(rng: &mut R) -> Self {
        let dh = ContributoryX25519::genkey_rng(rng).expect("X25519 takes every private key");
        let kem = MlKem768::genkey_rng(rng).expect("ML-KEM takes every seed");
        let mlkem768: Box<[u8; MLKEM768_LEN]> = kem
            .public
            .as_slice()
            .to_vec()
            .into_boxed_slice()
            .try_into()
            .expect("ML-KEM-768 keys have one length");
        let public = PublicKey::new(dh.public, mlkem768).expect("generated keys are valid");
        Self { dh, kem, public }
    }

    pub fn public_key(&self) -> &PublicKey {
        &self.public
    }
}

/// Shows the public key's fingerprint only.
impl fmt::Debug for Identity {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Identity").field("public", &self.public).finish_non_exhaustive()
    }
}

//! The public half of an identity, and its JSON form.

use std::fmt;

use clatter::bytearray::ByteArray;
use clatter::crypto::kem::rust_crypto_ml_kem::MlKem768;
use clatter::traits::Kem;
use serde::{Deserialize, Serialize};

use super::primitives::is_low_order;

/// The only supported set of algorithms.
pub const SUITE: &str = "Noise_hybridIK_X25519+MLKEM768_AESGCM_SHA256";

pub const X25519_LEN: usize = 32;
pub const MLKEM768_LEN: usize = 1184;

/// The public keys of a harness or an environment, in the JSON form
/// `{suite, x25519_public_key, mlkem768_public_key}`.
///
/// Invariant: both keys are usable. Equal keys have equal bytes and equal text.
#[derive(Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "KeyObject", into = "KeyObject")]
pub struct PublicKey {
    x25519: [u8; X25519_LEN],
    mlkem768: Box<[u8; MLKEM768_LEN]>,
}

impl PublicKey {
    /// Refuses keys that would make a handshake weaker than its suite promises.
    pub fn new(
        x25519: [u8; X25519_LEN],
        mlkem768: Box<[u8; MLKEM768_LEN]>,
    ) -> Result<Self, PublicKeyError> {
        if is_low_order(&x25519) {
            return Err(PublicKeyError::LowOrderX25519);
        }
        if !is_canonical(&x25519) {
            return Err(PublicKeyError::NonCanonicalX25519);
        }
        check_mlkem768(&mlkem768)?;
        Ok(Self { x25519, mlkem768 })
    }

    pub fn x25519(&self) -> &[u8; X25519_LEN] {
        &self.x25519
    }

    pub fn mlkem768(&self) -> &[u8; MLKEM768_LEN] {
        &self.mlkem768
    }

    pub(super) fn kem(&self) -> <MlKem768 as Kem>::PubKey {
        ByteArray::from_slice(self.mlkem768.as_slice())
    }
}

/// Shows a short fingerprint: enough to tell keys apart in a log.
impl fmt::Debug for PublicKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut digest = ring::digest::Context::new(&ring::digest::SHA256);
        digest.update(&self.x25519);
        digest.update(self.mlkem768.as_slice());
        formatter.write_str("PublicKey(sha256:")?;
        for byte in &digest.finish().as_ref()[..8] {
            write!(formatter, "{byte:02x}")?;
        }
        formatter.write_str("…)")
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PublicKeyError {
    #[error("unsupported key suite {found:?}; expected {SUITE:?}")]
    UnsupportedSuite { found: String },
    #[error("{member} is not padded standard base64")]
    InvalidBase64 { member: &'static str },
    #[error("{member} has {len} bytes; expected {expected}")]
    WrongLength { member: &'static str, len: usize, expected: usize },
    #[error("the X25519 key is a point of low order")]
    LowOrderX25519,
    #[error("the X25519 key is not in its canonical encoding")]
    NonCanonicalX25519,
    #[error("coefficient {index} of the ML-KEM-768 key is {value}; expected less than {MODULUS}")]
    MlKemCoefficient { index: usize, value: u16 },
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct KeyObject {
    suite: String,
    x25519_public_key: String,
    mlkem768_public_key: String,
}

impl From<PublicKey> for KeyObject {
    fn from(key: PublicKey) -> Self {
        Self {
            suite: SUITE.to_owned(),
            x25519_public_key: base64_simd::STANDARD.encode_to_string(key.x25519),
            mlkem768_public_key: base64_simd::STANDARD.encode_to_string(key.mlkem768.as_slice()),
        }
    }
}

impl TryFrom<KeyObject> for PublicKey {
    type Error = PublicKeyError;

    fn try_from(object: KeyObject) -> Result<Self, PublicKeyError> {
        if object.suite != SUITE {
            return Err(PublicKeyError::UnsupportedSuite { found: object.suite });
        }
        let x25519 = decode("x25519_public_key", &object.x25519_public_key)?;
        let mlkem768 = decode("mlkem768_public_key", &object.mlkem768_public_key)?;
        Self::new(*x25519, mlkem768)
    }
}

fn decode<const LEN: usize>(
    member: &'static str,
    text: &str,
) -> Result<Box<[u8; LEN]>, PublicKeyError> {
    let bytes = base64_simd::STANDARD
        .decode_to_vec(text)
        .map_err(|_| PublicKeyError::InvalidBase64 { member })?;
    let len = bytes.len();
    bytes.into_boxed_slice().try_into().map_err(|_| PublicKeyError::WrongLength {
        member,
        len,
        expected: LEN,
    })
}

/// Returns whether the key, read as a number, is below 2^255 - 19. X25519 reduces larger numbers
/// and ignores the top bit, so one point may have more than one encoding.
fn is_canonical(x25519: &[u8; X25519_LEN]) -> bool {
    let [lowest, middle @ .., highest] = x25519;
    *highest < 0x7f
        || *highest == 0x7f && (*lowest < 0xed || middle.iter().any(|byte| *byte != 0xff))
}

const MODULUS: u16 = 3329;

/// The encapsulation key check of FIPS 203, section 7.2. A key is 768 coefficients of 12 bits, then
/// a seed of 32 bytes.
pub(super) fn check_mlkem768(key: &[u8; MLKEM768_LEN]) -> Result<(), PublicKeyError> {
    let (coefficients, _seed) = key.split_at(MLKEM768_LEN - 32);
    let values = coefficients.as_chunks::<3>().0.iter().flat_map(|&[low, middle, high]| {
        let [low, middle, high] = [low, middle, high].map(u16::from);
        [low | (middle & 0xf) << 8, middle >> 4 | high << 4]
    });
    match values.enumerate().find(|(_, value)| *value >= MODULUS) {
        Some((index, value)) => Err(PublicKeyError::MlKemCoefficient { index, value }),
        None => Ok(()),
    }
}

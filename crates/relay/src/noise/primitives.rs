//! Two algorithms of the suite that replace `clatter`'s own: X25519 that refuses results of zero,
//! and AES-GCM from `ring`. They keep `clatter`'s names, which are hashed into the handshake.

use clatter::KeyPair;
use clatter::bytearray::{ByteArray, SensitiveByteArray};
use clatter::crypto::dh::X25519;
use clatter::error::{CipherError, CipherResult, DhError, DhResult};
use clatter::traits::{Cipher, CryptoComponent, Dh, Rng};
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};

/// The length of the tag at the end of every ciphertext.
pub const TAG_LEN: usize = 16;

/// X25519 that refuses peers whose key contributes nothing to the shared secret.
#[derive(Clone)]
pub(super) struct ContributoryX25519;

impl CryptoComponent for ContributoryX25519 {
    fn name() -> &'static str {
        X25519::name()
    }
}

impl Dh for ContributoryX25519 {
    type PrivateKey = <X25519 as Dh>::PrivateKey;
    type PubKey = <X25519 as Dh>::PubKey;
    type Output = <X25519 as Dh>::Output;

    fn genkey_rng<R: Rng>(rng: &mut R) -> DhResult<KeyPair<Self::PubKey, Self::PrivateKey>> {
        X25519::genkey_rng(rng)
    }

    fn pubkey(private: &Self::PrivateKey) -> Self::PubKey {
        X25519::pubkey(private)
    }

    fn dh(private: &Self::PrivateKey, public: &Self::PubKey) -> DhResult<Self::Output> {
        let shared = X25519::dh(private, public)?;
        // No early exit: the time must not depend on the secret.
        let bits = shared.as_slice().iter().fold(0, |bits, byte| bits | byte);
        // `clatter` has no other error for a Diffie-Hellman operation.
        if bits == 0 { Err(DhError::KeyGeneration) } else { Ok(shared) }
    }
}

/// Returns whether a key is a point of low order. Its product with every X25519 private key is
/// zero, since private keys are multiples of the cofactor.
pub(super) fn is_low_order(public: &[u8; 32]) -> bool {
    let private = SensitiveByteArray::new([0x55; 32]);
    ContributoryX25519::dh(&private, public).is_err()
}

/// AES-256-GCM by `ring`, for handshake messages.
#[derive(Clone)]
pub(super) struct RingAesGcm;

impl CryptoComponent for RingAesGcm {
    fn name() -> &'static str {
        "AESGCM"
    }
}

impl Cipher for RingAesGcm {
    type Key = SensitiveByteArray<[u8; 32]>;

    fn tag_len() -> usize {
        TAG_LEN
    }

    fn encrypt(
        key: &Self::Key,
        nonce: u64,
        ad: &[u8],
        plaintext: &[u8],
        out: &mut [u8],
    ) -> CipherResult<()> {
        out[..plaintext.len()].copy_from_slice(plaintext);
        Self::encrypt_in_place(key, nonce, ad, out, plaintext.len())?;
        Ok(())
    }

    fn encrypt_in_place(
        key: &Self::Key,
        nonce: u64,
        ad: &[u8],
        in_out: &mut [u8],
        plaintext_len: usize,
    ) -> CipherResult<usize> {
        let (text, rest) = in_out.split_at_mut(plaintext_len);
        let tag = ring_key(key)
            .seal_in_place_separate_tag(ring_nonce(nonce), Aad::from(ad), text)
            .map_err(|_| CipherError::Encrypt)?;
        rest[..TAG_LEN].copy_from_slice(tag.as_ref());
        Ok(plaintext_len + TAG_LEN)
    }

    fn decrypt(
        key: &Self::Key,
        nonce: u64,
        ad: &[u8],
        ciphertext: &[u8],
        out: &mut [u8],
    ) -> CipherResult<()> {
        let (text, tag) = ciphertext.split_last_chunk().ok_or(CipherError::Decrypt)?;
        out.copy_from_slice(text);
        let tag: &[u8; TAG_LEN] = tag;
        ring_key(key)
            .open_in_place_separate_tag(ring_nonce(nonce), Aad::from(ad), (*tag).into(), out, 0..)
            .map_err(|_| CipherError::Decrypt)?;
        Ok(())
    }

    fn decrypt_in_place(
        key: &Self::Key,
        nonce: u64,
        ad: &[u8],
        in_out: &mut [u8],
        ciphertext_len: usize,
    ) -> CipherResult<usize> {
        let text = ring_key(key)
            .open_in_place(ring_nonce(nonce), Aad::from(ad), &mut in_out[..ciphertext_len])
            .map_err(|_| CipherError::Decrypt)?;
        Ok(text.len())
    }
}

pub(super) fn ring_key(key: &[u8; 32]) -> LessSafeKey {
    LessSafeKey::new(UnboundKey::new(&AES_256_GCM, key).expect("AES-256 takes a key of 32 bytes"))
}

/// Returns the nonce of Noise for AES-GCM: four zero bytes, then the counter, big-endian.
pub(super) fn ring_nonce(counter: u64) -> Nonce {
    let mut nonce = [0; NONCE_LEN];
    nonce[4..].copy_from_slice(&counter.to_be_bytes());
    Nonce::assume_unique_for_key(nonce)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clatter::crypto::cipher::AesGcm;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn ring_and_clatter_agree(
            key: [u8; 32],
            counter: u64,
            ad in prop::collection::vec(any::<u8>(), 0..64),
            plaintext in prop::collection::vec(any::<u8>(), 0..300),
        ) {
            let key = SensitiveByteArray::new(key);
            let len = plaintext.len() + TAG_LEN;
            let mut theirs = vec![0; len];
            AesGcm::encrypt(&key, counter, &ad, &plaintext, &mut theirs).unwrap();

            let mut ours = vec![0; len];
            RingAesGcm::encrypt(&key, counter, &ad, &plaintext, &mut ours).unwrap();
            prop_assert_eq!(&ours, &theirs);

            let mut opened = vec![0; plaintext.len()];
            RingAesGcm::decrypt(&key, counter, &ad, &theirs, &mut opened).unwrap();
            prop_assert_eq!(&opened, &plaintext);

            // In place, in a buffer with room to spare.
            let mut buffer = plaintext.clone();
            buffer.resize(len + 7, 0xaa);
            let sealed =
                RingAesGcm::encrypt_in_place(&key, counter, &ad, &mut buffer, plaintext.len());
            prop_assert_eq!(sealed.unwrap(), len);
            prop_assert_eq!(&buffer[..len], &theirs);
            prop_assert_eq!(&buffer[len..], &[0xaa; 7]);
            let opened = RingAesGcm::decrypt_in_place(&key, counter, &ad, &mut buffer, len);
            prop_assert_eq!(opened.unwrap(), plaintext.len());
            prop_assert_eq!(&buffer[..plaintext.len()], &plaintext);
        }
    }

    #[test]
    fn a_wrong_key_counter_or_ad_fails_and_leaves_no_plaintext() {
        let key = SensitiveByteArray::new([1; 32]);
        let mut sealed = [0; 5 + TAG_LEN];
        RingAesGcm::encrypt(&key, 7, b"ad", b"hello", &mut sealed).unwrap();
        let other = SensitiveByteArray::new([2; 32]);
        for (key, counter, ad) in [(&other, 7, "ad"), (&key, 8, "ad"), (&key, 7, "da")] {
            let mut out = [0xaa; 5];
            RingAesGcm::decrypt(key, counter, ad.as_bytes(), &sealed, &mut out).unwrap_err();
            assert_eq!(out, [0; 5]);
        }
    }

    #[test]
    fn a_ciphertext_shorter_than_a_tag_fails() {
        let key = SensitiveByteArray::new([1; 32]);
        RingAesGcm::decrypt(&key, 0, b"", &[0; TAG_LEN - 1], &mut []).unwrap_err();
    }

    #[test]
    fn names_are_those_of_clatter() {
        assert_eq!(RingAesGcm::name(), AesGcm::name());
        assert_eq!(ContributoryX25519::name(), "25519");
    }
}

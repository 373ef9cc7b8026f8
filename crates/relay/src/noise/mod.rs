//! The encrypted channel between a harness and an environment, through a rendezvous that neither
//! trusts.
//!
//! Bytes in, bytes out: this module knows no frames, no sequence numbers, no registry and no
//! sockets. Its caller validates keys with the registry, orders records and retransmits them.
//!
//! 1. Each end has an [`Identity`], and publishes its [`PublicKey`] through the registry.
//! 2. The harness calls [`HarnessHandshake::start`] and sends message 1, with its authorization.
//! 3. The environment calls [`EnvironmentHandshake::read`] and asks the registry about the
//!    harness key and the authorization. Only then does it call [`EnvironmentHandshake::accept`]
//!    and send message 2.
//! 4. The harness calls [`HarnessHandshake::finish`]. Both ends now have a [`Channel`].
//!
//! # Each choice, and the attack that it stops
//!
//! * **Pattern IK.** The harness knows the environment's key before it sends a byte. A hostile
//!   rendezvous cannot pose as the environment. It cannot read the authorization or the harness
//!   key either, because message 1 is encrypted to the environment. The registry that names the
//!   key is trusted; the rendezvous is not.
//! * **Static keys at both ends.** The harness proves that it holds the private keys that the
//!   registry has authorized. A stolen authorization is useless without them.
//! * **Hybrid key exchange, X25519 and ML-KEM-768.** Traffic recorded today stays secret if a
//!   quantum computer breaks X25519 later. If ML-KEM turns out to be weak, X25519 still protects
//!   it. An attacker has to break both.
//! * **Ephemeral keys at both ends.** The keys of a stream cannot be recomputed from identities
//!   stolen later. Message 1 is the exception: the environment's identity opens it, so its payload
//!   is only a single-use authorization.
//! * **The prologue** binds environment, registration and stream. A rendezvous cannot splice a
//!   handshake into another stream, or replay one after the environment has registered again.
//! * **Validation before message 2.** A recorded message 1 can be replayed, and any peer can write
//!   one. The registry takes an authorization once, so a replay ends there. An unauthorized harness
//!   gets no message 2 and no key. The types help: there is no [`Channel`] before
//!   [`EnvironmentHandshake::accept`], which consumes the handshake.
//! * **Contributory keys only.** A Diffie-Hellman result of zero ends the handshake. Otherwise a
//!   peer could void the X25519 half of the exchange with a point of low order. Malformed ML-KEM
//!   keys are refused, as FIPS 203 requires. Static X25519 keys have to be canonical, so that one
//!   key cannot pass for two.
//! * **AES-256-GCM with a counter as its nonce.** A repeated nonce would reveal the XOR of two
//!   plaintexts and the authentication key. So a record is encrypted once and retransmitted as the
//!   same bytes. The counter belongs to the [`RecordSealer`], cannot be set, and ends after 2^32
//!   records instead of wrapping. At that limit the advantage of an attacker against GCM is still
//!   below 2^-40.
//! * **Implicit nonces.** A record opens in its own position only. Replayed, reordered and foreign
//!   records fail, and so does the record after a missing one. Each direction has its own key, so
//!   reflected records fail, too.
//! * **The first failure kills a [`RecordOpener`].** A forger has one guess for each stream, and a
//!   stream never continues past a gap.
//! * **Length limits before any cryptography.** Oversized input costs a comparison.
//!
//! # Implementation
//!
//! `clatter` runs the handshake, with AES-GCM from `ring`. It would rebuild the AES key schedule
//! for every record, so its keys are taken out after the handshake, and each direction keeps one
//! `ring` key. The encrypted bytes are the same as with `clatter`. Its version is pinned, because
//! releases differ in these bytes.
//!
//! Private keys and handshake secrets are erased when dropped. `ring` does not erase the keys of
//! the record layer.

mod handshake;
mod identity;
mod primitives;
mod prologue;
mod public_key;
mod record;

pub use clatter::traits::Rng;
pub use handshake::{
    EnvironmentHandshake, HandshakeError, HarnessHandshake, MAX_AUTHORIZATION_LEN,
    MESSAGE_1_OVERHEAD, MESSAGE_2_LEN,
};
pub use identity::Identity;
pub use prologue::{DOMAIN, Prologue};
pub use public_key::{MLKEM768_LEN, PublicKey, PublicKeyError, SUITE, X25519_LEN};
pub use rand_core::OsRng;
pub use record::{
    Channel, MAX_RECORD_PLAINTEXT, OpenError, RecordOpener, RecordSealer, SealError, TAG_LEN,
};

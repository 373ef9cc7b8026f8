//! The encrypted channel: its bytes, its peers and its attackers.
#![cfg(feature = "noise")]
#![expect(clippy::unwrap_used, reason = "a failed step fails its test")]

mod fixture;
mod golden;
mod interop;
mod public_key;
mod tampering;
mod weak_keys;

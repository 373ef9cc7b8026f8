//! Both ends of a relay, with a rendezvous and a registry that the test controls.

#![cfg(feature = "noise")]
#![expect(clippy::unwrap_used, reason = "a failed step fails its test")]

mod fixture;
mod hostile;
mod peers;
mod registry;
mod rendezvous;
mod streams;

//! The relay of remote mode: two ends that talk to each other through a rendezvous that they do not
//! trust.
//!
//! [`frame`] defines the messages on the wire. [`reliable`] turns frames that may be lost, repeated
//! and reordered into a stream of records, each once and in order. `noise` encrypts the records
//! from end to end. `environment` serves streams, and `harness` opens them; they find each other
//! through the [`registry`]. A rendezvous is built without the feature `noise`, so it has no code
//! to decrypt records.

pub mod backoff;
#[cfg(feature = "noise")]
mod counters;
#[cfg(feature = "noise")]
pub use counters::RelayCounters;
#[cfg(feature = "noise")]
pub mod environment;
pub mod frame;
#[cfg(feature = "noise")]
pub mod harness;
#[cfg(feature = "noise")]
pub mod noise;
pub mod registry;
pub mod reliable;
#[cfg(feature = "noise")]
mod socket;
#[cfg(feature = "noise")]
pub use socket::SocketError;
#[cfg(feature = "noise")]
mod stream;

/// Formats an error and its causes on one line, for a log.
#[must_use]
pub fn with_sources(error: &dyn std::error::Error) -> String {
    let sources = std::iter::successors(error.source(), |error| error.source());
    sources.fold(error.to_string(), |text, source| format!("{text}: {source}"))
}

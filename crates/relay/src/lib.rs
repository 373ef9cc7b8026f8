//! The relay of remote mode, without its sockets: what the two ends of a stream say to each other
//! through a rendezvous that they do not trust.
//!
//! [`frame`] has the messages on the wire. [`reliable`] turns frames that may be lost, repeated and
//! reordered into a stream of records, each once and in order. [`noise`] encrypts the records from end
//! to end. A rendezvous knows the first only.

pub mod frame;
#[cfg(feature = "noise")]
pub mod noise;
pub mod reliable;

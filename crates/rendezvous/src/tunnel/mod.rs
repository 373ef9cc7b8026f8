//! Carries the sockets of harnesses to the nodes that hold their environments, over NATS subjects.
//!
//! A tunnel carries one socket. At the node of the environment it ends in an in-memory connection,
//! which the router serves like any other harness: the router does not know about tunnels.
//!
//! Delivery is at most once. The two ends of a stream retransmit lost frames, so a tunnel may drop
//! frames, and survives a NATS server that restarts within the silence limit.

mod bus;
mod message;
mod open;
mod pump;
mod serve;

pub use bus::{Bus, BusError, TunnelTimes};
pub(crate) use bus::{Moved, NodeInbox};

//! Carries the sockets of harnesses to the nodes that hold their environments, over subjects of NATS.
//!
//! A tunnel carries one socket. At the node of the environment it ends in a connection in memory, which
//! the router serves as any other harness: the router knows nothing of tunnels.
//!
//! Delivery is at most once. The two ends of a stream send lost frames again, so a tunnel drops a frame
//! rather than wait, and survives a NATS server that restarts within the silence limit.

mod bus;
mod message;
mod open;
mod pump;
mod serve;

pub use bus::{Bus, BusError, TunnelTimes};
pub(crate) use bus::{Moved, NodeInbox};

//! Fixtures and clients for the tests of several crates. Depends on the crate `transport` and, with
//! the feature `server`, on the crates needed to create a server.

#![expect(clippy::unwrap_used, reason = "a failed step fails its test")]

mod as_nobody;
mod certificates;
mod fault_proxy;
mod gate;
mod nats_server;
mod rpc_client;
mod scratch;
mod scripted_server;
mod skipped;
mod temporary_mode;
#[cfg(feature = "server")]
mod test_server;
mod text;
mod wire_schema;

pub use as_nobody::{NOBODY, as_nobody, become_nobody};
pub use certificates::{Issued, TestAuthority, Validity};
pub use fault_proxy::{Cut, FaultProxy, PlannedCut, Way};
pub use gate::Gate;
pub use nats_server::{NatsServers, NatsVersion};
pub use rpc_client::{BlockingWire, RpcClient, Served};
pub use scratch::Scratch;
pub use scripted_server::ScriptedServer;
pub use skipped::skipped;
pub use temporary_mode::TemporaryMode;
#[cfg(feature = "server")]
pub use test_server::TestServer;
pub use text::{decoded, encoded, uri};

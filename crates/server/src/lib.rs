//! Sessions, dispatch and the connection writer.
//!
//! [`Server::serve`] serves a connection over any transport, and [`Server::connect_in_process`] a
//! client in the same program. Both pass their calls to `dispatch`. `connection` reads, schedules
//! and writes; `feed` delivers the events of processes to clients; `sessions` tracks which session
//! owns which process; `adapter` translates between the wire and the machine. Notifications of
//! output are never queued here: see `connection::outbox`.

mod active_requests;
mod adapter;
mod blocking;
mod config;
mod connection;
mod connections;
mod dispatch;
mod feed;
mod in_process;
mod sandboxed_peers;
mod server;
mod sessions;
mod telemetry;

pub use config::ServerConfig;
pub use exec_server_protocol::{LimitValues, SandboxCeiling, SandboxLevel};
pub use server::{SandboxUnavailable, Server};
pub use telemetry::{Audit, Telemetry};

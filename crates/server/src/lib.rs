//! Sessions, dispatch and the connection writer.
//!
//! [`Server::serve`] is the only entrance for a connection, whatever the transport, and
//! [`Server::open_session`] the one for this program itself. Below them, `connection` reads, schedules and
//! writes; `sessions` knows who owns which process; `local` translates between the wire and the machine. Output is never queued here: see `connection::outbox`.

mod config;
mod connection;
mod connections;
mod guests;
mod in_flight;
mod local;
mod server;
mod sessions;

pub use config::{SandboxCeiling, SandboxLevel, ServerConfig};
pub use local::{
    Followed, FollowedEvent, Follower, LocalBody, LocalChanges, LocalFile, LocalFileSystem,
    LocalHttp, LocalNewFile, LocalProcess, LocalSearch, LocalWatch,
};
pub use server::{SandboxUnavailable, Server};
pub use sessions::LocalSession;

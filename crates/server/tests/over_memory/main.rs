//! The whole server over the memory transport: no sockets, real processes.
#![expect(clippy::unwrap_used, reason = "a failed step fails its test")]

mod confined_files;
mod dispatch;
mod files;
mod http;
mod large_answers;
mod limits;
mod memory;
mod other_processes;
mod ownership;
mod session_model;
mod sessions;
mod watches;

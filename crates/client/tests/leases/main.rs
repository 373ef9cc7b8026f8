//! Tests against a scripted server: leases (watches, searches, bodies and file handles), server
//! requests, and responses that lack optional members.

#![expect(clippy::unwrap_used, reason = "a failed step fails its test")]

mod bodies;
mod files;
mod peer;
mod plain_server;
mod searches;
mod server_requests;
mod watches;

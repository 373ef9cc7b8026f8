//! Tests of leases (watches, searches, bodies and file handles) and of server requests, against a
//! scripted server; and of members that a server may leave out.

#![expect(clippy::unwrap_used, reason = "a step that fails fails its test")]

mod bodies;
mod files;
mod peer;
mod plain_server;
mod searches;
mod server_requests;
mod watches;

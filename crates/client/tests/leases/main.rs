//! What lasts as long as a connection, against a server that says what the test wants: watches, searches, bodies and
//! file handles, and the server's own requests. And what a server may leave unsaid.

#![expect(clippy::unwrap_used, reason = "a step that fails fails its test")]

mod bodies;
mod files;
mod peer;
mod plain_server;
mod searches;
mod server_requests;
mod watches;

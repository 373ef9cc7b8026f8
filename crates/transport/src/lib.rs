//! Bytes to messages and back.
//!
//! A [`Connection`] carries whole messages, whatever it came by: a WebSocket over TCP or over a Unix
//! socket, newline-delimited stdio, or memory. Framing, size limits, keep-alive, the listener's
//! admission rules and the client's handshake live here. What a message *says* is not known here: not even that it is JSON.

mod budget;
mod connection;
mod dial;
mod lines;
mod listen;
mod memory;
mod socket;
mod stdio;
mod websocket;
mod write_buffer;

pub use budget::{Holding, MemoryBudget, MemoryShare};
pub use connection::{
    Connection, Incoming, MalformedMessage, Outgoing, Peer, Prober, Received, TransportKind,
};
pub use dial::{DialError, DialOptions, DialUrl, DialUrlParseError, NotWebSocket, dial};
pub use exec_server_protocol::MAX_MESSAGE_BYTES;
pub use lines::lines;
pub use listen::{
    BindError, DEFAULT_LISTEN_URL, ExecServerListenUrlParseError, ListenUrl, Listener,
    ListenerOptions, Readiness,
};
pub use memory::memory;
pub use stdio::stdio;
pub use tungstenite::protocol::frame::coding::CloseCode;
pub use websocket::{KeepAlive, MAX_FRAME_BYTES, SignOfLife};

/// For the targets in `fuzz/`; no other build has it.
#[cfg(fuzzing)]
pub mod fuzzing {
    pub use crate::websocket::fuzzing::decode_in_pieces;
}

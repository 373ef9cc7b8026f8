//! Bytes to messages and back.
//!
//! A [`Connection`] carries whole messages over any transport: a WebSocket over TCP or a Unix
//! socket, newline-delimited stdio, a byte stream of another crate, or memory. Framing, size
//! limits, keep-alive, the listener's admission rules and the client's handshake live here. The
//! content of messages is opaque to this crate, which does not even know that it is JSON.

mod auth;
mod budget;
mod connection;
mod dial;
mod length_prefixed;
mod lines;
mod listen;
mod memory;
mod socket;
mod stdio;
mod subject_limits;
mod tls;
mod websocket;
mod write_buffer;
mod yield_budget;

pub use auth::{
    AuthError, AuthOptions, Authenticator, CapabilityToken, Claims, MIN_SECRET_BYTES, SandboxClaim,
    SigningSecret, TokenError, TokenRules, inspect, new_token, read_token_file, sha256,
};
pub use budget::{Holding, MemoryBudget, MemoryShare};
pub use connection::{
    Connection, Incoming, MalformedMessage, Outgoing, Peer, Prober, Received, TransportKind,
};
pub use dial::{DialError, DialOptions, DialUrl, DialUrlParseError, NotWebSocket, dial};
pub use exec_server_protocol::MAX_MESSAGE_BYTES;
pub use length_prefixed::{StreamPeer, length_prefixed};
pub use lines::lines;
pub use listen::{
    BindError, ClientAddress, DEFAULT_LISTEN_URL, ExecServerListenUrlParseError, HttpHandler,
    HttpListener, HttpListenerOptions, HttpReply, ListenUrl, Listener, ListenerMonitor,
    ListenerOptions, Readiness, Refusal, RefusalReason,
};
pub use memory::{memory, memory_with_capacity};
pub use stdio::stdio;
pub use subject_limits::{Full, SubjectLimits, SubjectPermit};
pub use tls::{
    ClientIdentity, Fingerprint, FingerprintParseError, SelfSigned, ServerTrust, TlsError,
    TlsFiles, TlsOptions, TlsServer, client_config, parse_sha256, self_signed,
};
pub use tungstenite::protocol::frame::coding::CloseCode;
pub use websocket::{KeepAlive, MAX_FRAME_BYTES, SignOfLife};
pub use yield_budget::YieldBudget;

/// For the targets in `fuzz/` only.
#[cfg(fuzzing)]
pub mod fuzzing {
    pub use crate::websocket::fuzzing::decode_in_pieces;
}

//! WebSocket connections (RFC 6455), after the handshake.
//!
//! The two directions never wait for each other: the reader only reads, and leaves frames to send
//! (pong, close, pings) in a small [`Control`] that the writer serves between messages. So a peer
//! that does not read is still heard, and can for example terminate the process that floods it.
//!
//! Frames are decoded here rather than by tungstenite's message layer, which allocates for a frame
//! before it has checked the header, never shrinks its buffer, and cannot continue after bad UTF-8.
//! Header layout, opcodes and close codes come from tungstenite.

mod control;
mod counted_sink;
mod decoder;
mod frame;
#[cfg(fuzzing)]
pub(crate) mod fuzzing;
mod liveness;
mod reader;
#[cfg(test)]
mod tests;
mod writer;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use crate::connection::Connection;
use crate::socket::Socket;
use control::Control;
pub(crate) use control::WebSocketProber;
use counted_sink::CountedSink;
pub(crate) use reader::WebSocketReader;
pub(crate) use writer::WebSocketWriter;

/// Some deployed clients refuse larger frames, so larger messages are sent in fragments.
pub const MAX_FRAME_BYTES: usize = 16 << 20;

/// When to ping the peer, and when to give up on a silent one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeepAlive {
    pub ping_interval: Duration,
    /// The connection ends after this time without a sign of life.
    pub silence_limit: Duration,
    /// Like `silence_limit`, for a peer that may not have received the pings: it accepts no data,
    /// or a lot of data is still in flight. It may be alive and busy, or stopped in a debugger.
    pub stall_limit: Duration,
    pub sign_of_life: SignOfLife,
    /// Time limit for a closing handshake.
    pub close_timeout: Duration,
}

impl KeepAlive {
    /// Returns the settings of a client. It detects within seconds that its server is gone, since
    /// the client is the side that reconnects. The stall limit is longer than the 15 s between a
    /// server's pings: a live server is heard by then, whatever is in flight.
    pub fn for_client() -> Self {
        Self {
            ping_interval: Duration::from_secs(3),
            silence_limit: Duration::from_secs(10),
            stall_limit: Duration::from_secs(20),
            sign_of_life: SignOfLife::Answers,
            close_timeout: Duration::from_secs(2),
        }
    }
}

/// The evidence that a connection works.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SignOfLife {
    /// Any received bytes.
    Bytes,
    /// Pongs. A link may be dead in one direction: the peer is heard, but hears nothing.
    Answers,
}

/// The settings of a server. It can wait longer than a client, since it keeps the session of an
/// absent client anyway.
impl Default for KeepAlive {
    fn default() -> Self {
        Self {
            ping_interval: Duration::from_secs(15),
            silence_limit: Duration::from_secs(60),
            stall_limit: Duration::from_secs(300),
            sign_of_life: SignOfLife::Bytes,
            close_timeout: Duration::from_secs(2),
        }
    }
}

/// The local side of the handshake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// Receives masked frames, sends unmasked ones.
    Server,
    /// Receives unmasked frames, sends masked ones.
    Client,
}

/// Creates a connection over a socket after its handshake. `early` was read along with the
/// handshake.
pub(crate) fn connection<S: Socket>(
    socket: S,
    role: Role,
    early: &[u8],
    keep_alive: KeepAlive,
) -> Connection {
    let (source, sink) = socket.into_halves(role);
    let control = Arc::new(Control::default());
    let (answered, answers) = watch::channel(0);
    let prober = WebSocketProber::new(Arc::clone(&control), answers.clone());
    let close_timeout = keep_alive.close_timeout;
    let sink = Box::new(CountedSink::new(sink, Arc::clone(&control)));
    let writer = WebSocketWriter::new(sink, role, Arc::clone(&control), answers, close_timeout);
    let reader = WebSocketReader::new(source, role, early, control, answered, keep_alive);
    Connection::from_websocket(S::KIND, reader, writer, prober)
}

//! WebSocket connections (RFC 6455), from the moment the handshake is done.
//!
//! The two directions never wait for each other: the reader only reads, and leaves what must be
//! answered (pong, close, our own pings) in a small [`Control`] that the writer serves between
//! messages. So a peer that does not read can still be heard, and terminated by its own request.
//!
//! Frames are decoded here rather than by tungstenite's message layer, which allocates for a frame
//! before it has judged it, keeps its largest buffer, and cannot go on after bad UTF-8. Header
//! layout, opcodes and close codes are tungstenite's.

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

/// Clients in the field refuse a larger frame, so larger messages are sent in fragments.
pub const MAX_FRAME_BYTES: usize = 16 << 20;

/// When to ask a silent peer, and when to stop believing in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeepAlive {
    pub ping_interval: Duration,
    /// No sign of life for this long: the connection is over.
    pub silence_limit: Duration,
    /// The same for a peer that may not have seen our pings: it takes nothing of what we write, or
    /// much of that is still under way. It may be alive and busy, or stopped in a debugger.
    pub stall_limit: Duration,
    pub sign_of_life: SignOfLife,
    /// How long a closing handshake may take.
    pub close_timeout: Duration,
}

impl KeepAlive {
    /// What suits a client: it notices within seconds that its server is gone, since it is the one who
    /// reconnects. The stall limit is longer than the 15 s between the pings of a server: one that
    /// lives is heard by then, whatever is under way.
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

/// What proves that a connection works.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SignOfLife {
    /// Whatever is received.
    Bytes,
    /// Answers to our pings. A link may be dead in one direction: the peer is heard, and hears nothing.
    Answers,
}

/// What suits a server: it keeps the session of a client that is away anyway.
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

/// Which side of the handshake we were.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// Takes masked frames, sends plain ones.
    Server,
    /// Takes plain frames, sends masked ones.
    Client,
}

/// A connection over a socket whose handshake is done; `early` was read along with it.
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

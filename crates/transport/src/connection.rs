//! One client, whatever it came by: the two directions of a connection and a way to ask whether the
//! peer is still there. The transports behind it are in modules of their own.

use std::fmt;
use std::future;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use exec_server_protocol::Principal;
use tokio::sync::watch;
use tungstenite::protocol::frame::coding::CloseCode;

use crate::budget::MemoryShare;
use crate::length_prefixed::{LengthPrefixedReader, LengthPrefixedWriter, StreamPeer};
use crate::lines::{LineReader, LineWriter};
use crate::memory::{MemoryProber, MemoryReader, MemoryWriter};
use crate::stdio::Reader;
use crate::subject_limits::SubjectPermit;
use crate::websocket::{WebSocketProber, WebSocketReader, WebSocketWriter};

/// One client. The parts are independent, so that a reader task and a writer task own one each.
#[derive(Debug)]
pub struct Connection {
    pub incoming: Incoming,
    pub outgoing: Outgoing,
    pub prober: Prober,
    pub kind: TransportKind,
    /// Whoever has connected to our listener; `None` of other transports, of our own calls, and of a socket that has been reset.
    pub peer: Option<Peer>,
    /// Who the client is. Transports without a listener have the server's own user at the other end.
    pub principal: Principal,
    /// Its place among the connections of the listeners.
    pub permit: Option<SubjectPermit>,
}

/// What leads to whoever is at the other end of a socket.
#[derive(Debug)]
pub enum Peer {
    Tcp {
        /// Its address.
        remote: SocketAddr,
        /// The address that it connected to.
        local: SocketAddr,
    },
    /// The kernel knows which process connected, and tells whoever has our end. While this lives the connection is not closed.
    Unix { socket: OwnedFd },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TransportKind {
    Stdio,
    /// A WebSocket over TCP.
    WebSocket,
    /// A WebSocket over a Unix socket.
    Unix,
    Memory,
    /// A byte stream of another crate: one stream of a relay.
    Stream,
}

/// What the peer sent.
#[derive(Debug, PartialEq, Eq)]
pub enum Received {
    /// One message, at most [`MAX_MESSAGE_BYTES`](crate::MAX_MESSAGE_BYTES) long. Neither JSON nor
    /// UTF-8 was checked.
    Message(Bytes),
    /// Input that was skipped because it is no message. The connection goes on.
    Malformed(MalformedMessage),
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum MalformedMessage {
    #[error("line of {len} bytes exceeds the limit of {max}")]
    LineTooLong { len: u64, max: usize },
    /// Only where [binary messages](Incoming::expect_binary) are expected.
    #[error("text message where binary ones are expected")]
    Text,
}

/// The messages of the peer.
pub struct Incoming(IncomingTransport);

enum IncomingTransport {
    Lines(LineReader),
    WebSocket(Box<WebSocketReader>),
    Memory(MemoryReader),
    LengthPrefixed(LengthPrefixedReader),
}

impl Incoming {
    /// The next thing the peer sent; `None` means that the connection is over. Cancel-safe.
    ///
    /// Pings are answered, pongs noticed and the peer's silence measured only while this is polled.
    pub async fn recv(&mut self) -> Option<Received> {
        match &mut self.0 {
            IncomingTransport::Lines(reader) => reader.recv().await,
            IncomingTransport::WebSocket(reader) => reader.recv().await,
            IncomingTransport::Memory(reader) => reader.recv().await.map(Received::Message),
            IncomingTransport::LengthPrefixed(reader) => reader.recv().await.map(Received::Message),
        }
    }
}

impl Incoming {
    /// The code of the close frame that the peer has sent, on transports that have them.
    #[must_use]
    pub fn peer_close(&self) -> Option<CloseCode> {
        match &self.0 {
            IncomingTransport::WebSocket(reader) => reader.peer_close(),
            IncomingTransport::Memory(reader) => reader.peer_close().map(|(code, _)| code),
            IncomingTransport::Lines(_) | IncomingTransport::LengthPrefixed(_) => None,
        }
    }

    /// The reason that came with it. Only connections in memory keep it.
    #[must_use]
    pub fn peer_close_reason(&self) -> &str {
        match &self.0 {
            IncomingTransport::Memory(reader) => {
                reader.peer_close().map_or("", |(_, reason)| reason)
            }
            IncomingTransport::WebSocket(_)
            | IncomingTransport::Lines(_)
            | IncomingTransport::LengthPrefixed(_) => "",
        }
    }
}

/// What the server decides about its peer.
impl Incoming {
    /// From here on, text messages are malformed, on transports that tell them from binary ones.
    pub fn expect_binary(&mut self) {
        if let IncomingTransport::WebSocket(reader) = &mut self.0 {
            reader.expect_binary();
        }
    }

    /// Messages may be so long from here on, also the one that has begun. Whole messages in memory have
    /// no limit.
    pub fn limit_messages(&mut self, max: usize) {
        match &mut self.0 {
            IncomingTransport::Lines(reader) => reader.limit_messages(max),
            IncomingTransport::WebSocket(reader) => reader.limit_messages(max),
            IncomingTransport::LengthPrefixed(reader) => reader.limit_messages(max),
            IncomingTransport::Memory(_) => {}
        }
    }

    /// An unfinished message counts as memory of this share.
    pub fn charge_to(&mut self, share: &MemoryShare) {
        match &mut self.0 {
            IncomingTransport::Lines(reader) => reader.held = share.hold(),
            IncomingTransport::WebSocket(reader) => reader.held = share.hold(),
            IncomingTransport::LengthPrefixed(reader) => reader.held = share.hold(),
            IncomingTransport::Memory(_) => {}
        }
    }

    /// Drops what was received and asks for a close. [`recv`](Self::recv) then returns `None` when the
    /// peer has gone, or its time to go is over.
    pub fn close(&mut self, code: CloseCode, reason: &str) {
        match &mut self.0 {
            IncomingTransport::Lines(reader) => reader.close(),
            IncomingTransport::WebSocket(reader) => reader.close(code, reason),
            IncomingTransport::Memory(reader) => reader.close(),
            IncomingTransport::LengthPrefixed(reader) => reader.close(),
        }
    }
}

/// Messages to the peer: framed into a buffer by `push`, written by `flush`.
///
/// The buffer has no limit of its own: its owner looks at [`buffered`](Self::buffered) and flushes.
pub struct Outgoing(OutgoingTransport);

enum OutgoingTransport {
    Lines(LineWriter),
    WebSocket(WebSocketWriter),
    Memory(MemoryWriter),
    LengthPrefixed(LengthPrefixedWriter),
}

impl Outgoing {
    /// Messages are binary from here on, on transports that tell them from text.
    pub fn send_binary(&mut self) {
        if let OutgoingTransport::WebSocket(writer) = &mut self.0 {
            writer.send_binary();
        }
    }

    /// Frames one message into the buffer.
    pub fn push(&mut self, message: &[u8]) {
        match &mut self.0 {
            OutgoingTransport::Lines(writer) => writer.push(message),
            OutgoingTransport::WebSocket(writer) => writer.push(message),
            OutgoingTransport::Memory(writer) => writer.push(Bytes::copy_from_slice(message)),
            OutgoingTransport::LengthPrefixed(writer) => writer.push(message),
        }
    }

    /// The same for a message that the caller does not need any more.
    pub fn push_owned(&mut self, message: Bytes) {
        match &mut self.0 {
            OutgoingTransport::Lines(writer) => writer.push(&message),
            OutgoingTransport::WebSocket(writer) => writer.push_owned(message),
            OutgoingTransport::Memory(writer) => writer.push(message),
            OutgoingTransport::LengthPrefixed(writer) => writer.push(&message),
        }
    }

    /// Frames one message that `fill` appends straight to the buffer.
    ///
    /// # Panics
    /// When `fill` does not append exactly `len` bytes: the header with the length is already there.
    pub fn push_with(&mut self, len: usize, fill: impl FnOnce(&mut Vec<u8>)) {
        match &mut self.0 {
            OutgoingTransport::Lines(writer) => writer.push_with(len, fill),
            OutgoingTransport::WebSocket(writer) => writer.push_with(len, fill),
            OutgoingTransport::Memory(writer) => writer.push(filled(len, fill).into()),
            OutgoingTransport::LengthPrefixed(writer) => writer.push_with(len, fill),
        }
    }

    /// Asks the peer to confirm that it has read everything pushed so far, and returns the number of
    /// the question. `None` on transports that cannot ask.
    pub fn request_receipt(&mut self) -> Option<u64> {
        match &mut self.0 {
            OutgoingTransport::WebSocket(writer) => Some(writer.push_receipt_request()),
            OutgoingTransport::LengthPrefixed(writer) => writer.request_receipt(),
            OutgoingTransport::Lines(_) | OutgoingTransport::Memory(_) => None,
        }
    }

    /// The highest question answered so far; an answer covers all questions before it.
    pub fn receipts(&self) -> Option<watch::Receiver<u64>> {
        match &self.0 {
            OutgoingTransport::WebSocket(writer) => Some(writer.receipts()),
            OutgoingTransport::LengthPrefixed(writer) => writer.receipts(),
            OutgoingTransport::Lines(_) | OutgoingTransport::Memory(_) => None,
        }
    }

    /// Bytes that wait for `flush`.
    pub fn buffered(&self) -> usize {
        match &self.0 {
            OutgoingTransport::Lines(writer) => writer.buffered(),
            OutgoingTransport::WebSocket(writer) => writer.buffered(),
            OutgoingTransport::Memory(writer) => writer.buffered(),
            OutgoingTransport::LengthPrefixed(writer) => writer.buffered(),
        }
    }

    /// Writes everything that waits, control frames first. Cancel-safe: what a dropped call did not
    /// write, the next call writes.
    pub async fn flush(&mut self) -> io::Result<()> {
        match &mut self.0 {
            OutgoingTransport::Lines(writer) => writer.flush().await,
            OutgoingTransport::WebSocket(writer) => writer.flush().await,
            OutgoingTransport::Memory(writer) => writer.flush().await,
            OutgoingTransport::LengthPrefixed(writer) => writer.flush().await,
        }
    }

    /// Resolves when control frames (ping, pong, close) wait for a `flush`; never on transports that
    /// have none.
    pub async fn control_pending(&self) {
        match &self.0 {
            OutgoingTransport::WebSocket(writer) => writer.control_pending().await,
            OutgoingTransport::Lines(_)
            | OutgoingTransport::Memory(_)
            | OutgoingTransport::LengthPrefixed(_) => future::pending().await,
        }
    }

    /// Resolves when the peer is known to read no more; never on transports where a write or the other
    /// direction tells.
    pub async fn reader_gone(&self) {
        match &self.0 {
            OutgoingTransport::Lines(writer) => writer.reader_gone().await,
            OutgoingTransport::WebSocket(_)
            | OutgoingTransport::Memory(_)
            | OutgoingTransport::LengthPrefixed(_) => {
                future::pending::<()>().await;
            }
        }
    }

    /// Writes what waits and ends this direction, within the transport's time for closing.
    /// The peer's end shows as `None` from [`Incoming::recv`].
    pub async fn close(&mut self, code: CloseCode, reason: &str) {
        match &mut self.0 {
            OutgoingTransport::Lines(writer) => writer.close().await,
            OutgoingTransport::WebSocket(writer) => writer.close(code, reason).await,
            OutgoingTransport::Memory(writer) => writer.close(code, reason).await,
            OutgoingTransport::LengthPrefixed(writer) => writer.close().await,
        }
    }
}

/// Runs `fill` on a buffer of its own, for transports and messages that cannot be filled in place.
pub(crate) fn filled(len: usize, fill: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut message = Vec::with_capacity(len);
    fill(&mut message);
    assert_eq!(message.len(), len, "the message has the announced length");
    message
}

/// Asks whether the peer of a connection is still there.
#[derive(Debug, Clone)]
pub struct Prober(ProberTransport);

#[derive(Debug, Clone)]
enum ProberTransport {
    /// Nobody can take the place of the one client on stdio.
    Stdio,
    WebSocket(WebSocketProber),
    Memory(MemoryProber),
    Stream(Arc<dyn StreamPeer>),
}

impl Prober {
    /// Whether the transport itself can ask. A peer that cannot be asked that way may still answer
    /// messages.
    #[must_use]
    pub fn can_ask(&self) -> bool {
        match &self.0 {
            ProberTransport::Stdio | ProberTransport::WebSocket(_) | ProberTransport::Memory(_) => {
                true
            }
            ProberTransport::Stream(peer) => peer.bytes_read().is_some(),
        }
    }

    /// Whether the peer answered within `timeout`. Needs the connection's reader and writer at work.
    pub async fn probe(&self, timeout: Duration) -> bool {
        match &self.0 {
            ProberTransport::Stdio => true,
            ProberTransport::WebSocket(prober) => prober.probe(timeout).await,
            ProberTransport::Memory(prober) => prober.probe(),
            ProberTransport::Stream(peer) => peer.probe(timeout).await,
        }
    }
}

impl Connection {
    pub(crate) fn from_lines(reader: LineReader, writer: LineWriter) -> Self {
        Self {
            incoming: Incoming(IncomingTransport::Lines(reader)),
            outgoing: Outgoing(OutgoingTransport::Lines(writer)),
            prober: Prober(ProberTransport::Stdio),
            kind: TransportKind::Stdio,
            peer: None,
            principal: Principal::local(),
            permit: None,
        }
    }

    pub(crate) fn with_reader_of_stdout(mut self, reader: Option<Reader>) -> Self {
        if let OutgoingTransport::Lines(writer) = &mut self.outgoing.0 {
            writer.reader = reader;
        }
        self
    }

    pub(crate) fn from_websocket(
        kind: TransportKind,
        reader: WebSocketReader,
        writer: WebSocketWriter,
        prober: WebSocketProber,
    ) -> Self {
        Self {
            incoming: Incoming(IncomingTransport::WebSocket(Box::new(reader))),
            outgoing: Outgoing(OutgoingTransport::WebSocket(writer)),
            prober: Prober(ProberTransport::WebSocket(prober)),
            kind,
            peer: None,
            principal: Principal::local(),
            permit: None,
        }
    }

    pub(crate) fn from_memory(
        reader: MemoryReader,
        writer: MemoryWriter,
        prober: MemoryProber,
    ) -> Self {
        Self {
            incoming: Incoming(IncomingTransport::Memory(reader)),
            outgoing: Outgoing(OutgoingTransport::Memory(writer)),
            prober: Prober(ProberTransport::Memory(prober)),
            kind: TransportKind::Memory,
            peer: None,
            principal: Principal::local(),
            permit: None,
        }
    }

    pub(crate) fn from_length_prefixed(
        reader: LengthPrefixedReader,
        writer: LengthPrefixedWriter,
        peer: Arc<dyn StreamPeer>,
    ) -> Self {
        Self {
            incoming: Incoming(IncomingTransport::LengthPrefixed(reader)),
            outgoing: Outgoing(OutgoingTransport::LengthPrefixed(writer)),
            prober: Prober(ProberTransport::Stream(peer)),
            kind: TransportKind::Stream,
            peer: None,
            principal: Principal::local(),
            permit: None,
        }
    }
}

impl fmt::Debug for Incoming {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Incoming").finish_non_exhaustive()
    }
}

impl fmt::Debug for Outgoing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outgoing").field("buffered", &self.buffered()).finish_non_exhaustive()
    }
}

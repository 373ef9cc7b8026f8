//! A connection to one peer, independent of its transport: the two directions, and a way to probe
//! whether the peer is still there. Each transport has its own module.

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

/// The parts are independent, so that a reader task and a writer task can own one each.
#[derive(Debug)]
pub struct Connection {
    pub incoming: Incoming,
    pub outgoing: Outgoing,
    pub prober: Prober,
    pub kind: TransportKind,
    /// The peer of an accepted socket. `None` for other transports, for dialled connections, and if
    /// the socket was already reset.
    pub peer: Option<Peer>,
    /// The identity of a client of a [`Listener`](crate::Listener). On other connections, the local
    /// user, unless their creator sets another identity.
    pub principal: Principal,
    /// The slot of a [`Listener`](crate::Listener)'s client in the connection limits. `None` on
    /// other connections.
    pub permit: Option<SubjectPermit>,
}

#[derive(Debug)]
pub enum Peer {
    Tcp {
        remote: SocketAddr,
        local: SocketAddr,
    },
    /// The server's end of the socket, through which the server can ask the kernel for the
    /// connecting process. The connection stays open as long as this descriptor does.
    Unix {
        socket: OwnedFd,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TransportKind {
    Stdio,
    /// A WebSocket over TCP.
    WebSocket,
    /// A WebSocket over a Unix socket.
    Unix,
    Memory,
    /// A byte stream from another crate, such as one stream of a relay.
    Stream,
}

#[derive(Debug, PartialEq, Eq)]
pub enum Received {
    /// One message, within the limit of [`limit_messages`](Incoming::limit_messages). Not checked
    /// for UTF-8 or JSON.
    Message(Bytes),
    /// Skipped input that is not a message. The connection stays open.
    Malformed(MalformedMessage),
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum MalformedMessage {
    #[error("line of {len} bytes exceeds the limit of {max}")]
    LineTooLong { len: u64, max: usize },
    /// Only where [binary messages](Incoming::expect_binary) are expected.
    #[error("expected a binary message, received text")]
    Text,
}

/// The messages from the peer.
pub struct Incoming(IncomingTransport);

enum IncomingTransport {
    Lines(LineReader),
    WebSocket(Box<WebSocketReader>),
    Memory(MemoryReader),
    LengthPrefixed(LengthPrefixedReader),
}

impl Incoming {
    /// Returns the peer's next input, or `None` when the connection has ended. Cancel-safe.
    ///
    /// Pings are answered, pongs processed and the peer's silence measured only while this is
    /// polled.
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
    /// Returns the code of the peer's close frame, on transports with close frames.
    #[must_use]
    pub fn peer_close(&self) -> Option<CloseCode> {
        match &self.0 {
            IncomingTransport::WebSocket(reader) => reader.peer_close(),
            IncomingTransport::Memory(reader) => reader.peer_close().map(|(code, _)| code),
            IncomingTransport::Lines(_) | IncomingTransport::LengthPrefixed(_) => None,
        }
    }

    /// Returns the reason of the close frame. Only in-memory connections keep it.
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

impl Incoming {
    /// From now on, treats text messages as malformed, on transports that distinguish them from
    /// binary ones.
    pub fn expect_binary(&mut self) {
        if let IncomingTransport::WebSocket(reader) = &mut self.0 {
            reader.expect_binary();
        }
    }

    /// Sets the maximum message length, even for a message already begun, but not for a WebSocket
    /// frame whose header was read before. The default is
    /// [`MAX_MESSAGE_BYTES`](crate::MAX_MESSAGE_BYTES). In-memory connections have no limit.
    pub fn limit_messages(&mut self, max: usize) {
        match &mut self.0 {
            IncomingTransport::Lines(reader) => reader.limit_messages(max),
            IncomingTransport::WebSocket(reader) => reader.limit_messages(max),
            IncomingTransport::LengthPrefixed(reader) => reader.limit_messages(max),
            IncomingTransport::Memory(_) => {}
        }
    }

    /// Charges unfinished messages to this share.
    pub fn charge_to(&mut self, share: &MemoryShare) {
        match &mut self.0 {
            IncomingTransport::Lines(reader) => reader.held = share.hold(),
            IncomingTransport::WebSocket(reader) => reader.held = share.hold(),
            IncomingTransport::LengthPrefixed(reader) => reader.held = share.hold(),
            IncomingTransport::Memory(_) => {}
        }
    }

    /// Discards received data and asks for a close. [`recv`](Self::recv) then returns `None`: on a
    /// WebSocket once the peer has closed or the close timeout has passed, otherwise at once.
    pub fn close(&mut self, code: CloseCode, reason: &str) {
        match &mut self.0 {
            IncomingTransport::Lines(reader) => reader.close(),
            IncomingTransport::WebSocket(reader) => reader.close(code, reason),
            IncomingTransport::Memory(reader) => reader.close(),
            IncomingTransport::LengthPrefixed(reader) => reader.close(),
        }
    }
}

/// Messages to the peer: `push` frames them into a buffer, `flush` writes it.
///
/// The buffer is unbounded: its owner checks [`buffered`](Self::buffered) and flushes.
pub struct Outgoing(OutgoingTransport);

enum OutgoingTransport {
    Lines(LineWriter),
    WebSocket(WebSocketWriter),
    Memory(MemoryWriter),
    LengthPrefixed(LengthPrefixedWriter),
}

impl Outgoing {
    /// From now on, sends messages as binary, on transports that distinguish them from text.
    pub fn send_binary(&mut self) {
        if let OutgoingTransport::WebSocket(writer) = &mut self.0 {
            writer.send_binary();
        }
    }

    pub fn push(&mut self, message: &[u8]) {
        match &mut self.0 {
            OutgoingTransport::Lines(writer) => writer.push(message),
            OutgoingTransport::WebSocket(writer) => writer.push(message),
            OutgoingTransport::Memory(writer) => writer.push(Bytes::copy_from_slice(message)),
            OutgoingTransport::LengthPrefixed(writer) => writer.push(message),
        }
    }

    /// Like [`push`](Self::push), for a message that the caller no longer needs.
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
    /// If `fill` does not append exactly `len` bytes: the header with the length is already
    /// written.
    pub fn push_with(&mut self, len: usize, fill: impl FnOnce(&mut Vec<u8>)) {
        match &mut self.0 {
            OutgoingTransport::Lines(writer) => writer.push_with(len, fill),
            OutgoingTransport::WebSocket(writer) => writer.push_with(len, fill),
            OutgoingTransport::Memory(writer) => writer.push(filled(len, fill).into()),
            OutgoingTransport::LengthPrefixed(writer) => writer.push_with(len, fill),
        }
    }

    /// Asks the peer to confirm that it has read everything pushed so far. Returns the number of
    /// this request, or `None` on transports without receipts.
    pub fn request_receipt(&mut self) -> Option<u64> {
        match &mut self.0 {
            OutgoingTransport::WebSocket(writer) => Some(writer.push_receipt_request()),
            OutgoingTransport::LengthPrefixed(writer) => writer.request_receipt(),
            OutgoingTransport::Lines(_) | OutgoingTransport::Memory(_) => None,
        }
    }

    /// Returns a number that grows: a receipt request is confirmed once its number is reached.
    /// `None` on transports without receipts.
    pub fn receipts(&self) -> Option<watch::Receiver<u64>> {
        match &self.0 {
            OutgoingTransport::WebSocket(writer) => Some(writer.receipts()),
            OutgoingTransport::LengthPrefixed(writer) => writer.receipts(),
            OutgoingTransport::Lines(_) | OutgoingTransport::Memory(_) => None,
        }
    }

    /// The number of unflushed bytes.
    pub fn buffered(&self) -> usize {
        match &self.0 {
            OutgoingTransport::Lines(writer) => writer.buffered(),
            OutgoingTransport::WebSocket(writer) => writer.buffered(),
            OutgoingTransport::Memory(writer) => writer.buffered(),
            OutgoingTransport::LengthPrefixed(writer) => writer.buffered(),
        }
    }

    /// Writes everything buffered, control frames first. Cancel-safe: the next call writes what a
    /// dropped call did not.
    pub async fn flush(&mut self) -> io::Result<()> {
        match &mut self.0 {
            OutgoingTransport::Lines(writer) => writer.flush().await,
            OutgoingTransport::WebSocket(writer) => writer.flush().await,
            OutgoingTransport::Memory(writer) => writer.flush().await,
            OutgoingTransport::LengthPrefixed(writer) => writer.flush().await,
        }
    }

    /// Resolves when control frames (ping, pong, close) need a `flush`; never on transports without
    /// them.
    pub async fn control_pending(&self) {
        match &self.0 {
            OutgoingTransport::WebSocket(writer) => writer.control_pending().await,
            OutgoingTransport::Lines(_)
            | OutgoingTransport::Memory(_)
            | OutgoingTransport::LengthPrefixed(_) => future::pending().await,
        }
    }

    /// Resolves when the peer is known to have stopped reading; never on transports where a write
    /// or the other direction reveals that.
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

    /// Writes everything buffered and ends this direction, within the close timeout of the
    /// transport; in-memory connections have none. When the peer has ended its direction,
    /// [`Incoming::recv`] returns `None`.
    pub async fn close(&mut self, code: CloseCode, reason: &str) {
        match &mut self.0 {
            OutgoingTransport::Lines(writer) => writer.close().await,
            OutgoingTransport::WebSocket(writer) => writer.close(code, reason).await,
            OutgoingTransport::Memory(writer) => writer.close(code, reason).await,
            OutgoingTransport::LengthPrefixed(writer) => writer.close().await,
        }
    }
}

/// Runs `fill` on a separate buffer, for transports and messages that cannot be filled in place.
pub(crate) fn filled(len: usize, fill: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut message = Vec::with_capacity(len);
    fill(&mut message);
    assert_eq!(message.len(), len, "the message has the announced length");
    message
}

/// Probes whether the peer of a connection is still there.
#[derive(Debug, Clone)]
pub struct Prober(ProberTransport);

#[derive(Debug, Clone)]
enum ProberTransport {
    /// The one client on stdio cannot be replaced, so it always counts as present.
    Stdio,
    WebSocket(WebSocketProber),
    Memory(MemoryProber),
    Stream(Arc<dyn StreamPeer>),
}

impl Prober {
    /// Whether [`probe`](Self::probe) can be relied on. It cannot be for a stream whose peer does
    /// not report what it has read; that peer may still respond to messages.
    #[must_use]
    pub fn can_ask(&self) -> bool {
        match &self.0 {
            ProberTransport::Stdio | ProberTransport::WebSocket(_) | ProberTransport::Memory(_) => {
                true
            }
            ProberTransport::Stream(peer) => peer.bytes_read().is_some(),
        }
    }

    /// Whether the peer responds within `timeout`; always true on stdio. Requires that the
    /// connection's reader and writer are being polled.
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

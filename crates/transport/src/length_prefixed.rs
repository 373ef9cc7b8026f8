//! Messages in a byte stream, each prefixed with its length as a big-endian `u32`.
//!
//! Another crate provides the stream and more facts about its peer: see [`StreamPeer`].

use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf as _, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::sync::watch;
use tokio::time::timeout;

use crate::MAX_MESSAGE_BYTES;
use crate::budget::Holding;
use crate::connection::Connection;
use crate::socket::ByteSource;
use crate::write_buffer::{ByteSink, WriteBuffer};

const PREFIX: usize = size_of::<u32>();

/// Most space to read into for a message that has just begun: slightly more than the largest record
/// of a relay.
const READ_CHUNK: usize = 64 << 10;
/// Space to read into for an idle connection.
const IDLE_KEPT: usize = 4 << 10;

const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// The peer at the other end of a byte stream.
pub trait StreamPeer: fmt::Debug + Send + Sync {
    /// The number of bytes that the peer has read, or `None` if it does not report that.
    fn bytes_read(&self) -> Option<watch::Receiver<u64>>;

    /// Whether the peer gives a sign of life within `timeout`.
    fn probe(&self, timeout: Duration) -> Pin<Box<dyn Future<Output = bool> + Send + '_>>;
}

/// Creates a connection over a byte stream.
///
/// A length of zero or over the limit ends the connection, because the next message cannot be
/// located.
pub fn length_prefixed(
    read: impl AsyncRead + Send + Sync + Unpin + 'static,
    write: impl AsyncWrite + Send + Sync + Unpin + 'static,
    peer: Arc<dyn StreamPeer>,
) -> Connection {
    let reader = LengthPrefixedReader {
        source: Box::new(read),
        buffer: BytesMut::new(),
        max_message: MAX_MESSAGE_BYTES,
        held: Holding::default(),
        at_end: false,
    };
    let writer = LengthPrefixedWriter {
        sink: Box::new(write),
        buffer: WriteBuffer::default(),
        pushed: 0,
        bytes_read: peer.bytes_read(),
    };
    Connection::from_length_prefixed(reader, writer, peer)
}

pub(crate) struct LengthPrefixedReader {
    source: ByteSource,
    buffer: BytesMut,
    max_message: usize,
    /// Memory of the incomplete message.
    pub(crate) held: Holding,
    at_end: bool,
}

impl LengthPrefixedReader {
    pub(crate) async fn recv(&mut self) -> Option<Bytes> {
        while !self.at_end {
            match self.next_message() {
                Ok(Some(message)) => {
                    self.held.set(self.buffer.len());
                    return Some(message);
                }
                Ok(None) => {}
                Err(InvalidLength { len }) => {
                    tracing::debug!(
                        len,
                        max = self.max_message,
                        "closing a connection: invalid message length"
                    );
                    self.close();
                    return None;
                }
            }
            self.held.grow_to(self.buffer.len()).await;
            self.make_room();
            let count = self.source.read_buf(&mut self.buffer).await.unwrap_or(0);
            self.at_end = count == 0;
        }
        None
    }

    fn next_message(&mut self) -> Result<Option<Bytes>, InvalidLength> {
        let Some(prefix) = self.buffer.first_chunk::<PREFIX>() else { return Ok(None) };
        let len = u32::from_be_bytes(*prefix);
        let size = usize::try_from(len).map_err(|_| InvalidLength { len })?;
        if size == 0 || size > self.max_message {
            return Err(InvalidLength { len });
        }
        if self.buffer.len() < PREFIX + size {
            return Ok(None);
        }
        self.buffer.advance(PREFIX);
        let message = self.buffer.split_to(size).freeze();
        if self.buffer.is_empty() {
            // The message takes the allocation with it, so an idle connection keeps none.
            self.buffer = BytesMut::new();
        }
        Ok(Some(message))
    }

    /// Reserves space to read into: little for an idle peer, otherwise the rest of its message.
    fn make_room(&mut self) {
        let wanted = match self.buffer.first_chunk::<PREFIX>() {
            None => IDLE_KEPT,
            Some(prefix) => {
                let size = usize::try_from(u32::from_be_bytes(*prefix)).unwrap_or(usize::MAX);
                // A peer that only announces a large message gets one chunk.
                let missing = size.saturating_add(PREFIX).saturating_sub(self.buffer.len());
                missing.clamp(IDLE_KEPT, READ_CHUNK.max(self.buffer.len()))
            }
        };
        self.buffer.reserve(wanted);
    }

    pub(crate) fn limit_messages(&mut self, max: usize) {
        self.max_message = max;
    }

    pub(crate) fn close(&mut self) {
        self.buffer = BytesMut::new();
        self.held.set(0);
        self.at_end = true;
    }
}

struct InvalidLength {
    len: u32,
}

pub(crate) struct LengthPrefixedWriter {
    sink: ByteSink,
    buffer: WriteBuffer,
    /// The number of bytes pushed so far, including unflushed ones.
    pushed: u64,
    bytes_read: Option<watch::Receiver<u64>>,
}

impl LengthPrefixedWriter {
    pub(crate) fn push(&mut self, message: &[u8]) {
        self.push_with(message.len(), |buffer| buffer.extend_from_slice(message));
    }

    pub(crate) fn push_with(&mut self, len: usize, fill: impl FnOnce(&mut Vec<u8>)) {
        let end = self.buffer.end();
        end.reserve(PREFIX + len);
        let prefix = u32::try_from(len).expect("no message is that long");
        end.extend_from_slice(&prefix.to_be_bytes());
        let start = end.len();
        fill(end);
        assert_eq!(end.len() - start, len, "the message has the announced length");
        self.pushed += (PREFIX + len) as u64;
    }

    /// The position in the stream identifies the request and its receipt.
    pub(crate) fn request_receipt(&self) -> Option<u64> {
        self.bytes_read.as_ref().map(|_| self.pushed)
    }

    pub(crate) fn receipts(&self) -> Option<watch::Receiver<u64>> {
        self.bytes_read.clone()
    }

    pub(crate) fn buffered(&self) -> usize {
        self.buffer.len()
    }

    pub(crate) async fn flush(&mut self) -> io::Result<()> {
        self.buffer.write_to(&mut self.sink).await?;
        self.buffer.release_idle();
        self.sink.flush().await
    }

    pub(crate) async fn close(&mut self) {
        let closing = async {
            self.flush().await?;
            self.sink.shutdown().await
        };
        // After a timeout or an error, nothing more can be done for a peer that does not read.
        let _ = timeout(CLOSE_TIMEOUT, closing).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connection::Received;

    #[derive(Debug)]
    struct Silent;

    impl StreamPeer for Silent {
        fn bytes_read(&self) -> Option<watch::Receiver<u64>> {
            None
        }

        fn probe(&self, _: Duration) -> Pin<Box<dyn Future<Output = bool> + Send + '_>> {
            Box::pin(std::future::ready(true))
        }
    }

    fn over(stream: tokio::io::DuplexStream) -> Connection {
        let (read, write) = tokio::io::split(stream);
        length_prefixed(read, write, Arc::new(Silent))
    }

    async fn received(input: &[u8], piece: usize, max: usize) -> Vec<Bytes> {
        let (mut far, near) = tokio::io::duplex(piece);
        let mut connection = over(near);
        connection.incoming.limit_messages(max);
        let input = input.to_vec();
        let feed = tokio::spawn(async move { far.write_all(&input).await });
        let mut all = Vec::new();
        while let Some(Received::Message(message)) = connection.incoming.recv().await {
            all.push(message);
        }
        drop(connection);
        // The write fails if the reader has stopped reading.
        let _ = feed.await.unwrap();
        all
    }

    #[tokio::test]
    async fn each_message_arrives_once_for_every_piece_size() {
        for piece in [1, 2, 3, 5, 1000] {
            let all = received(b"\0\0\0\x03one\0\0\0\x05three\0\0\0\x09cut sh", piece, 9).await;
            assert_eq!(all, ["one", "three"], "pieces of {piece}");
        }
    }

    #[tokio::test]
    async fn an_invalid_length_ends_the_connection() {
        for input in [&b"\0\0\0\x01a\0\0\0\0\0\0\0\x01b"[..], b"\0\0\0\x01a\0\0\0\x0bhello worldb"]
        {
            assert_eq!(received(input, 1000, 10).await, ["a"]);
        }
    }

    #[test]
    fn an_announced_length_alone_reserves_little_memory() {
        let mut reader = LengthPrefixedReader {
            source: Box::new(tokio::io::empty()),
            buffer: BytesMut::from(&(60_u32 << 20).to_be_bytes()[..]),
            max_message: MAX_MESSAGE_BYTES,
            held: Holding::default(),
            at_end: false,
        };
        reader.make_room();
        assert!(reader.buffer.capacity() <= 2 * READ_CHUNK);
    }

    #[tokio::test]
    async fn messages_pass_both_ways_until_one_side_closes() {
        let (left, right) = tokio::io::duplex(100);
        let (mut left, mut right) = (over(left), over(right));
        left.outgoing.push(b"one");
        left.outgoing.push_with(3, |buffer| buffer.extend_from_slice(b"two"));
        assert_eq!(left.outgoing.buffered(), 14);
        left.outgoing.flush().await.unwrap();
        for expected in ["one", "two"] {
            let message = Received::Message(Bytes::from(expected));
            assert_eq!(right.incoming.recv().await, Some(message));
        }
        left.outgoing.close(crate::CloseCode::Normal, "").await;
        assert_eq!(right.incoming.recv().await, None);
    }
}

//! One message per line.
//!
//! A line ends with LF or CRLF; the last line needs neither. Blank lines are ignored. A line over
//! the limit is skipped to its end and reported, without being stored.

use std::future;
use std::io;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

use crate::MAX_MESSAGE_BYTES;
use crate::budget::Holding;
use crate::connection::{Connection, MalformedMessage, Received};
use crate::socket::ByteSource;
use crate::stdio::Reader;
use crate::write_buffer::{ByteSink, WriteBuffer};

const READ_CHUNK: usize = 4 << 10;

/// The allocation of a line above this size is not reused for later lines.
const LARGE_LINE: usize = 64 << 10;

const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// Creates a connection over any pair of byte streams, such as the stdout and stdin of a child
/// server.
///
/// Lines have no pings: a peer that stops responding keeps the connection open, and a
/// [`Prober`](crate::Prober) always considers it present. Only the end of `read` ends the
/// connection.
pub fn lines(
    read: impl AsyncRead + Send + Sync + Unpin + 'static,
    write: impl AsyncWrite + Send + Sync + Unpin + 'static,
) -> Connection {
    connection(Box::new(read), Box::new(write), MAX_MESSAGE_BYTES)
}

/// Like [`lines`], for boxed streams, with messages of at most `max_line` bytes.
pub(crate) fn connection(source: ByteSource, sink: ByteSink, max_line: usize) -> Connection {
    let (splitter, held) = (LineSplitter::new(max_line), Holding::default());
    let reader = LineReader { source, splitter, held, at_end: false };
    let writer = LineWriter { sink, buffer: WriteBuffer::default(), reader: None };
    Connection::from_lines(reader, writer)
}

pub(crate) struct LineReader {
    source: ByteSource,
    splitter: LineSplitter,
    /// Memory of the incomplete line.
    pub(crate) held: Holding,
    at_end: bool,
}

impl LineReader {
    pub(crate) async fn recv(&mut self) -> Option<Received> {
        loop {
            if let Some(received) = self.splitter.next_line() {
                self.held.set(self.splitter.buffer.len());
                return Some(received);
            }
            if self.at_end {
                return self.splitter.last_line();
            }
            self.held.grow_to(self.splitter.buffer.len()).await;
            // An error counts as the end of the file: nothing more will arrive.
            let count = self.source.read_buf(self.splitter.space()).await.unwrap_or(0);
            self.at_end = count == 0;
        }
    }

    pub(crate) fn limit_messages(&mut self, max: usize) {
        self.splitter.max_line = max;
    }

    pub(crate) fn close(&mut self) {
        self.splitter = LineSplitter::new(self.splitter.max_line);
        self.held.set(0);
        self.at_end = true;
    }
}

/// Splits a byte stream into lines; does no I/O.
struct LineSplitter {
    buffer: BytesMut,
    max_line: usize,
    progress: Progress,
}

enum Progress {
    /// The first `scanned` bytes of the buffer contain no newline.
    Collecting { scanned: usize },
    /// `skipped` bytes of an oversized line were discarded.
    Skipping { skipped: u64 },
}

impl Progress {
    const START: Self = Self::Collecting { scanned: 0 };
}

impl LineSplitter {
    fn new(max_line: usize) -> Self {
        Self { buffer: BytesMut::new(), max_line, progress: Progress::START }
    }

    fn space(&mut self) -> &mut BytesMut {
        if self.buffer.capacity() - self.buffer.len() < READ_CHUNK / 2 {
            self.buffer.reserve(READ_CHUNK);
        }
        &mut self.buffer
    }

    fn next_line(&mut self) -> Option<Received> {
        loop {
            let from = match self.progress {
                Progress::Collecting { scanned } => scanned,
                Progress::Skipping { .. } => 0,
            };
            let Some(offset) = memchr::memchr(b'\n', &self.buffer[from..]) else {
                self.keep_incomplete();
                return None;
            };
            let line = self.take(from + offset + 1);
            if let Some(received) = self.complete(&line) {
                return Some(received);
            }
        }
    }

    /// Returns the remainder at the end of the stream.
    fn last_line(&mut self) -> Option<Received> {
        let line = self.buffer.split().freeze();
        self.complete(&line)
    }

    /// Records that the whole buffer belongs to one line, or discards an oversized line.
    fn keep_incomplete(&mut self) {
        let len = self.buffer.len();
        match &mut self.progress {
            Progress::Skipping { skipped } => {
                *skipped += len as u64;
                self.buffer.clear();
            }
            // One byte over the limit may still be the CR of a CRLF.
            Progress::Collecting { .. } if len > self.max_line + 1 => {
                self.progress = Progress::Skipping { skipped: len as u64 };
                self.buffer = BytesMut::new();
            }
            Progress::Collecting { scanned } => *scanned = len,
        }
    }

    fn take(&mut self, len: usize) -> Bytes {
        let line = self.buffer.split_to(len).freeze();
        if len > LARGE_LINE {
            self.buffer = BytesMut::from(&self.buffer[..]);
        }
        line
    }

    fn complete(&mut self, line: &Bytes) -> Option<Received> {
        let skipped = match std::mem::replace(&mut self.progress, Progress::START) {
            Progress::Collecting { .. } => 0,
            Progress::Skipping { skipped } => skipped,
        };
        let content = line.strip_suffix(b"\n").unwrap_or(line);
        let content = content.strip_suffix(b"\r").unwrap_or(content);
        let len = skipped + content.len() as u64;
        if len > self.max_line as u64 {
            let max = self.max_line;
            return Some(Received::Malformed(MalformedMessage::LineTooLong { len, max }));
        }
        let is_blank = content.trim_ascii().is_empty();
        (!is_blank).then(|| Received::Message(line.slice(..content.len())))
    }
}

pub(crate) struct LineWriter {
    sink: ByteSink,
    buffer: WriteBuffer,
    /// The program at the other end, if its exit can be detected.
    pub(crate) reader: Option<Reader>,
}

impl LineWriter {
    pub(crate) fn push(&mut self, message: &[u8]) {
        self.push_with(message.len(), |buffer| buffer.extend_from_slice(message));
    }

    pub(crate) fn push_with(&mut self, len: usize, fill: impl FnOnce(&mut Vec<u8>)) {
        let end = self.buffer.end();
        end.reserve(len + 1);
        let start = end.len();
        fill(end);
        assert_eq!(end.len() - start, len, "the message has the announced length");
        debug_assert!(!end[start..].contains(&b'\n'), "a message is one line");
        end.push(b'\n');
    }

    pub(crate) fn buffered(&self) -> usize {
        self.buffer.len()
    }

    pub(crate) async fn flush(&mut self) -> io::Result<()> {
        self.buffer.write_to(&mut self.sink).await?;
        self.sink.flush().await
    }

    pub(crate) async fn reader_gone(&self) {
        match &self.reader {
            Some(reader) => reader.gone().await,
            None => future::pending().await,
        }
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
    use tokio::io::AsyncWriteExt;

    use super::*;

    const MAX: usize = 10;

    async fn received(input: &[u8], piece: usize) -> Vec<Received> {
        let (mut far, near) = tokio::io::duplex(piece);
        let sink: ByteSink = Box::new(tokio::io::sink());
        let mut connection = connection(Box::new(near), sink, MAX);
        let input = input.to_vec();
        let feed = tokio::spawn(async move { far.write_all(&input).await });
        let mut all = Vec::new();
        while let Some(received) = connection.incoming.recv().await {
            all.push(received);
        }
        feed.await.unwrap().unwrap();
        all
    }

    fn message(text: &str) -> Received {
        Received::Message(Bytes::copy_from_slice(text.as_bytes()))
    }

    fn too_long(len: u64) -> Received {
        Received::Malformed(MalformedMessage::LineTooLong { len, max: MAX })
    }

    #[tokio::test]
    async fn each_message_arrives_once_for_every_piece_size() {
        for piece in [1, 2, 3, 5, 1000] {
            let all = received(b"one\r\ntwo\n\n  \r\nthree\n\nlast", piece).await;
            let expected = ["one", "two", "three", "last"].map(message);
            assert_eq!(all, expected, "pieces of {piece}");
        }
    }

    #[tokio::test]
    async fn long_lines_are_skipped_and_reported() {
        for piece in [1, 7, 1000] {
            let all =
                received(b"0123456789\r\n0123456789A\nnext\nAAAAAAAAAAAAAAAAAAAAA\nB\n", piece)
                    .await;
            let expected =
                [message("0123456789"), too_long(11), message("next"), too_long(21), message("B")];
            assert_eq!(all, expected, "pieces of {piece}");
            assert_eq!(received(b"0123456789ABC", piece).await, [too_long(13)]);
        }
    }

    #[test]
    fn a_long_line_is_not_stored() {
        let mut splitter = LineSplitter::new(MAX);
        for _ in 0..1000 {
            splitter.space().extend_from_slice(&[b'x'; 1000]);
            assert_eq!(splitter.next_line(), None);
            assert!(splitter.buffer.capacity() <= 2 * READ_CHUNK);
        }
        splitter.space().extend_from_slice(b"\n");
        assert_eq!(splitter.next_line(), Some(too_long(1_000_000)));
    }

    #[tokio::test]
    async fn each_message_is_written_as_one_line() {
        let (near, mut far) = tokio::io::duplex(1000);
        let mut connection = connection(Box::new(tokio::io::empty()), Box::new(near), MAX);
        connection.outgoing.push(b"one");
        connection.outgoing.push_with(3, |buffer| buffer.extend_from_slice(b"two"));
        assert_eq!(connection.outgoing.buffered(), 8);
        connection
            .outgoing
            .close(tungstenite::protocol::frame::coding::CloseCode::Normal, "")
            .await;
        let mut written = String::new();
        far.read_to_string(&mut written).await.unwrap();
        assert_eq!(written, "one\ntwo\n");
    }

    #[tokio::test]
    async fn any_pair_of_streams_works() {
        let (near, far) = tokio::io::duplex(1000);
        let ends = [near, far].map(|end| {
            let (read, write) = tokio::io::split(end);
            lines(read, write)
        });
        let [mut near, mut far] = ends;
        near.outgoing.push(b"question");
        near.outgoing.flush().await.unwrap();
        assert_eq!(far.incoming.recv().await, Some(message("question")));
        far.outgoing.push(b"answer");
        far.outgoing.close(tungstenite::protocol::frame::coding::CloseCode::Normal, "").await;
        assert_eq!(near.incoming.recv().await, Some(message("answer")));
        assert_eq!(near.incoming.recv().await, None);
    }
}

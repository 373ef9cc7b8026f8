//! Moves a child's output into its log: large reads for bulk output, no delay for the echo of a
//! keystroke.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::time::Instant;

use super::launch::{OutputPipe, PtyMaster};
use super::log::{Log, Stream};

const MAX_CHUNK: usize = 256 << 10;
const MIN_READ: usize = 8 << 10;
const SMALL_CHUNK: usize = 2 << 10;
/// A burst of this size counts as a flood. The pipe is grown only then: all processes of an
/// unprivileged user share a small quota of pipe memory.
const FLOOD_BYTES: usize = 128 << 10;
const GROWN_PIPE: usize = 1 << 20;
/// A longer pause ends a burst.
const BURST_PAUSE: Duration = Duration::from_millis(2);
/// In a flood of small writes, the server waits this long between reads, so that the grown pipe
/// fills: one large chunk costs a fraction of many small ones, and a flood is not interactive.
const FLOOD_PACE: Duration = Duration::from_millis(1);

#[derive(Debug)]
pub(super) enum Source {
    Pipe(OutputPipe),
    Pty(Arc<PtyMaster>),
}

#[derive(Debug)]
pub(super) struct Output {
    stream: Stream,
    source: Source,
    buffer: BytesMut,
    read_size: usize,
    burst: Burst,
    ended: bool,
}

/// Output that arrived without a pause.
#[derive(Debug)]
struct Burst {
    bytes: usize,
    latest: Instant,
    /// Whether the pipe was grown; `None` if not tried yet.
    grown: Option<bool>,
    next_read: Option<Instant>,
}

impl Output {
    pub(super) fn new(stream: Stream, source: Source) -> Self {
        Self {
            stream,
            source,
            buffer: BytesMut::new(),
            read_size: MIN_READ,
            burst: Burst { bytes: 0, latest: Instant::now(), grown: None, next_read: None },
            ended: false,
        }
    }

    pub(super) fn ended(&self) -> bool {
        self.ended
    }

    /// Waits until the stream is readable and the log has room. Never returns once the stream has
    /// ended.
    pub(super) async fn ready(&self, log: &Log) {
        if self.ended {
            std::future::pending::<()>().await;
        }
        log.wait_for_room().await;
        if let Some(at) = self.burst.next_read {
            tokio::time::sleep_until(at).await;
        }
        let readable = match &self.source {
            Source::Pipe(pipe) => pipe.readable().await,
            Source::Pty(pty) => pty.readable().await,
        };
        if let Err(error) = readable {
            tracing::debug!(%error, stream = ?self.stream, "cannot wait for output");
        }
    }

    /// Moves available output into the log: at most one chunk.
    pub(super) async fn transfer(&mut self, log: &Log) {
        if let Some(chunk) = self.gather() {
            log.append_output(self.stream, chunk);
            log.settle().await;
        }
    }

    /// Moves the bytes that are in the kernel's buffer now into the log, while the log has room.
    /// Stops then, even if surviving descendants keep writing.
    pub(super) async fn drain_pending(&mut self, log: &Log) {
        let mut pending = match &self.source {
            Source::Pipe(pipe) => pipe.pending(),
            Source::Pty(pty) => pty.pending(),
        };
        while pending > 0 && log.has_room() {
            let Some(chunk) = self.gather() else { return };
            pending = pending.saturating_sub(chunk.len());
            log.append_output(self.stream, chunk);
            log.settle().await;
        }
    }

    /// Moves the rest of the output after the tree has ended. Does not wait for more, even if a
    /// process outside the tree still holds the other end.
    pub(super) async fn finish(&mut self, log: &Log) {
        while !self.ended {
            log.wait_for_room().await;
            match self.gather() {
                Some(chunk) => {
                    log.append_output(self.stream, chunk);
                    log.settle().await;
                }
                None => self.ended = true,
            }
        }
    }

    /// Reads until the source is empty, the stream ends or a chunk is full.
    fn gather(&mut self) -> Option<Bytes> {
        while !self.ended && self.buffer.len() < MAX_CHUNK {
            self.buffer.reserve(self.read_size.min(MAX_CHUNK - self.buffer.len()));
            let read = match &self.source {
                Source::Pipe(pipe) => pipe.try_read(&mut self.buffer),
                Source::Pty(pty) => pty.try_read(&mut self.buffer),
            };
            match read {
                Ok(0) => self.ended = true,
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    let stream = self.stream;
                    tracing::warn!(%error, ?stream, "cannot read output; treating it as ended");
                    self.ended = true;
                }
            }
        }
        self.adapt(self.buffer.len());
        match self.buffer.len() {
            0 => None,
            // Copied, so that a few bytes in the log do not pin a whole read buffer.
            1..SMALL_CHUNK => {
                let chunk = Bytes::copy_from_slice(&self.buffer);
                self.buffer.clear();
                Some(chunk)
            }
            len => Some(self.buffer.split_to(len.min(MAX_CHUNK)).freeze()),
        }
    }

    /// Adjusts the size and the time of the next read to the number of bytes just gathered.
    fn adapt(&mut self, got: usize) {
        if got >= self.read_size {
            self.read_size = (self.read_size * 2).min(MAX_CHUNK);
        } else if got < self.read_size / 4 {
            self.read_size = (self.read_size / 2).max(MIN_READ);
        }
        self.pace(got);
    }

    fn pace(&mut self, got: usize) {
        let Source::Pipe(pipe) = &self.source else { return };
        let now = Instant::now();
        let burst = &mut self.burst;
        burst.bytes = if now - burst.latest > BURST_PAUSE { got } else { burst.bytes + got };
        burst.latest = now;
        burst.next_read = None;
        if burst.bytes >= FLOOD_BYTES {
            let grown = *burst.grown.get_or_insert_with(|| pipe.grow(GROWN_PIPE));
            // A full chunk comes from large writes, which need no delay.
            if grown && got < MAX_CHUNK {
                burst.next_read = Some(now + FLOOD_PACE);
            }
        }
    }
}

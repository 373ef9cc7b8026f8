//! From a child's output to its log: large reads for a flood, and no delay for a keystroke.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::time::Instant;

use super::launch::{OutputPipe, PtyMaster};
use super::log::{Log, Stream};

/// The largest chunk that the log takes.
const MAX_CHUNK: usize = 256 << 10;
const MIN_READ: usize = 8 << 10;
const SMALL_CHUNK: usize = 2 << 10;
/// A burst of this size is a flood. Its pipe is grown, and not before: unprivileged users have a small
/// common allowance for large pipes.
const FLOOD_BYTES: usize = 128 << 10;
const GROWN_PIPE: usize = 1 << 20;
/// What is this far apart is not one burst.
const BURST_PAUSE: Duration = Duration::from_millis(2);
/// A writer of small pieces would wake us for each of them. In a flood it gets this long to put more
/// of them into its grown pipe: large chunks cost a fraction, and nobody reads a flood as it comes.
const FLOOD_PACE: Duration = Duration::from_millis(1);

#[derive(Debug)]
pub(super) enum Source {
    Pipe(OutputPipe),
    Pty(Arc<PtyMaster>),
}

/// One of a child's output streams, until it ends.
#[derive(Debug)]
pub(super) struct Output {
    stream: Stream,
    source: Source,
    buffer: BytesMut,
    read_size: usize,
    burst: Burst,
    ended: bool,
}

/// What came without a pause.
#[derive(Debug)]
struct Burst {
    bytes: usize,
    latest: Instant,
    /// Whether the pipe was grown; `None`: not tried.
    grown: Option<bool>,
    /// Not to be read before.
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

    /// Waits until there is something to read and room to keep it; for ever once the stream has ended.
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
            tracing::debug!(%error, "cannot wait for output");
        }
    }

    /// Moves what there is now into the log, as one chunk where it fits.
    pub(super) async fn transfer(&mut self, log: &Log) {
        if let Some(chunk) = self.gather() {
            log.append_output(self.stream, chunk);
            log.settle().await;
        }
    }

    /// Moves what is in the kernel's buffer at this moment, while there is room for it. What a
    /// surviving grandchild writes meanwhile is left for later.
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

    /// Nobody of the tree is left: what is not in the buffer now will not come, whoever else may hold
    /// the other end.
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

    /// Reads until nothing is left, the stream ends or a chunk is full.
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
                    tracing::warn!(%error, "output ended by an error");
                    self.ended = true;
                }
            }
        }
        self.adapt(self.buffer.len());
        match self.buffer.len() {
            0 => None,
            // Copied, so that a few bytes in the log do not hold a whole read buffer.
            1..SMALL_CHUNK => {
                let chunk = Bytes::copy_from_slice(&self.buffer);
                self.buffer.clear();
                Some(chunk)
            }
            len => Some(self.buffer.split_to(len.min(MAX_CHUNK)).freeze()),
        }
    }

    /// The next read asks for about as much as this one got.
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
            // A full chunk came from a writer of large pieces, which need not wait.
            if grown && got < MAX_CHUNK {
                burst.next_read = Some(now + FLOOD_PACE);
            }
        }
    }
}

//! The output of a process as one piece: the pinned head of each stream and the tail still in
//! memory.

use bytes::{Bytes, BytesMut};

use super::{Event, Log, Stream};
use crate::process::launch::ExitRecord;

#[derive(Debug, Clone)]
pub struct Snapshot {
    pub stdout: Bytes,
    pub stderr: Bytes,
    pub terminal: Bytes,
    /// Whether output between a head and its tail is missing.
    pub truncated: bool,
    pub exit: Option<ExitRecord>,
}

const MAX_HEAD_BYTES: usize = 64 << 10;

/// The first bytes of each stream, which a bounded log would lose first.
#[derive(Debug)]
pub(super) struct Heads {
    limit: usize,
    streams: [Head; 3],
}

#[derive(Debug, Default)]
struct Head {
    bytes: Vec<u8>,
    total: u64,
}

impl Heads {
    pub(super) fn new(memory_bytes: usize) -> Self {
        Self { limit: MAX_HEAD_BYTES.min(memory_bytes / 4), streams: Default::default() }
    }

    pub(super) fn extend(&mut self, stream: Stream, bytes: &[u8]) {
        let head = &mut self.streams[stream as usize];
        head.total += bytes.len() as u64;
        let room = self.limit - head.bytes.len();
        head.bytes.extend_from_slice(&bytes[..bytes.len().min(room)]);
    }
}

impl Log {
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        let state = self.lock();
        let mut truncated = false;
        let mut whole = |stream: Stream| {
            let head = &state.heads.streams[stream as usize];
            let mut tail = BytesMut::new();
            for entry in &state.memory {
                match &entry.event {
                    Event::Output { stream: from, bytes } if *from == stream => {
                        tail.extend_from_slice(bytes);
                    }
                    _ => {}
                }
            }
            let tail_start = head.total - tail.len() as u64;
            let from_head = head.bytes.len().min(usize::try_from(tail_start).unwrap_or(usize::MAX));
            truncated |= tail_start > from_head as u64;
            let mut whole = BytesMut::with_capacity(from_head + tail.len());
            whole.extend_from_slice(&head.bytes[..from_head]);
            whole.extend_from_slice(&tail);
            whole.freeze()
        };
        let (stdout, stderr) = (whole(Stream::Stdout), whole(Stream::Stderr));
        let terminal = whole(Stream::Pty);
        Snapshot { stdout, stderr, terminal, truncated, exit: state.progress.exit }
    }
}

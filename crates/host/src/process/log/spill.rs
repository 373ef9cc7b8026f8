//! Unconfirmed output beyond the memory bound, in an unlinked temporary file.
//!
//! The file is a queue of blocks. A block is one batch of entries, written at once. Blocks are also
//! the unit of reading, releasing and dropping, so many small chunks do not enlarge the index in
//! memory.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;

use bytes::{Buf as _, Bytes};
use rustix::fs::FallocateFlags;
use tokio::time::Instant;

use super::{Entry, Event, Stream};
use crate::process::launch::ExitRecord;

/// Target size of one write to the file.
pub(super) const BATCH_BYTES: usize = 256 << 10;
/// Released space is returned to the filesystem once it reaches this size.
const PUNCH_BYTES: u64 = 4 << 20;

pub(super) struct Batch {
    pub(super) file: Option<Arc<File>>,
    pub(super) at: u64,
    pub(super) entries: Vec<Entry>,
}

#[derive(Debug)]
pub(super) struct Spill {
    file: Arc<File>,
    blocks: VecDeque<Block>,
    end: u64,
    /// Everything before this offset has been returned to the filesystem.
    punched: u64,
}

/// The place of a run of entries in the file.
#[derive(Debug, Clone)]
pub(super) struct Block {
    first_seq: u64,
    entries: u64,
    first_offset: u64,
    /// When the first entry was appended.
    since: Instant,
    at: u64,
    len: u64,
}

impl Block {
    pub(super) fn contains(&self, seq: u64) -> bool {
        (self.first_seq..=self.last_seq()).contains(&seq)
    }

    pub(super) fn last_seq(&self) -> u64 {
        self.first_seq + self.entries - 1
    }
}

impl Spill {
    /// Creates an empty queue whose next block is at `end` in the file.
    pub(super) fn ending_at(file: Arc<File>, end: u64) -> Self {
        Self { file, blocks: VecDeque::new(), end, punched: 0 }
    }

    pub(super) fn file(&self) -> Arc<File> {
        Arc::clone(&self.file)
    }

    pub(super) fn end(&self) -> u64 {
        self.end
    }

    pub(super) fn len(&self) -> u64 {
        self.end - self.blocks.front().map_or(self.end, |block| block.at)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// Returns the number and the offset of the first entry.
    pub(super) fn first(&self) -> Option<(u64, u64)> {
        self.blocks.front().map(|block| (block.first_seq, block.first_offset))
    }

    /// Returns the number of the last entry of the first block.
    pub(super) fn first_block_end(&self) -> Option<u64> {
        self.blocks.front().map(Block::last_seq)
    }

    pub(super) fn push(&mut self, entries: &[Entry], len: u64) {
        let Some(first) = entries.first() else { return };
        self.blocks.push_back(Block {
            first_seq: first.seq,
            entries: entries.len() as u64,
            first_offset: first.offset,
            since: first.at,
            at: self.end,
            len,
        });
        self.end += len;
    }

    pub(super) fn block_of(&self, seq: u64) -> Option<&Block> {
        let index = self.blocks.partition_point(|block| block.last_seq() < seq);
        self.blocks.get(index).filter(|block| block.contains(seq))
    }

    /// Returns a lower bound on the output bytes before `seq`.
    pub(super) fn offset_before(&self, seq: u64) -> Option<u64> {
        self.block_of(seq).map(|block| block.first_offset)
    }

    /// Returns the number of the first entry in the last block that began before `at`, because that
    /// block may have entries on both sides of `at`. If no block began before `at`, returns the
    /// number of the first entry in the file; without blocks, `None`.
    pub(super) fn first_since(&self, at: Instant) -> Option<u64> {
        let later = self.blocks.partition_point(|block| block.since < at);
        self.blocks.get(later.saturating_sub(1)).map(|block| block.first_seq)
    }

    /// Releases the blocks that end at `seq` or before.
    pub(super) fn release_through(&mut self, seq: u64) {
        while self.blocks.front().is_some_and(|block| block.last_seq() <= seq) {
            self.drop_first();
        }
    }

    fn drop_first(&mut self) {
        self.blocks.pop_front();
        let start = self.blocks.front().map_or(self.end, |block| block.at);
        if start - self.punched >= PUNCH_BYTES && !self.blocks.is_empty() {
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            // Best effort: a filesystem without holes keeps the space until the file is closed.
            let _ = rustix::fs::fallocate(&self.file, flags, self.punched, start - self.punched);
            self.punched = start;
        }
    }
}

const STDOUT: u8 = 0;
const STDERR: u8 = 1;
const PTY: u8 = 2;
const EXITED: u8 = 3;
const CLOSED: u8 = 4;
const RECORD_HEADER: usize = 5;

/// Encodes each entry as `kind: u8, len: u32, bytes`. Numbers and offsets follow from the block.
pub(super) fn encode(entries: &[Entry]) -> Vec<u8> {
    let bytes: usize = entries.iter().map(|entry| entry.event.output_len() + RECORD_HEADER).sum();
    let mut encoded = Vec::with_capacity(bytes);
    for entry in entries {
        let (kind, bytes) = match &entry.event {
            Event::Output { stream: Stream::Stdout, bytes } => (STDOUT, &bytes[..]),
            Event::Output { stream: Stream::Stderr, bytes } => (STDERR, &bytes[..]),
            Event::Output { stream: Stream::Pty, bytes } => (PTY, &bytes[..]),
            Event::Exited(_) => (EXITED, &[][..]),
            Event::Closed => (CLOSED, &[][..]),
        };
        encoded.push(kind);
        encoded.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
        encoded.extend_from_slice(bytes);
    }
    encoded
}

/// Writes a batch, to a new file if there is none.
pub(super) fn write(file: Option<Arc<File>>, at: u64, encoded: &[u8]) -> io::Result<Arc<File>> {
    let file = match file {
        Some(file) => file,
        None => Arc::new(tempfile::tempfile()?),
    };
    file.write_all_at(encoded, at)?;
    Ok(file)
}

/// The bytes are valid only if the block is still retained afterwards.
pub(super) fn read(file: &File, block: &Block) -> io::Result<Bytes> {
    let mut bytes = vec![0; block.len as usize];
    file.read_exact_at(&mut bytes, block.at)?;
    Ok(bytes.into())
}

/// The exit record is in the log's progress, not in the file.
pub(super) fn decode(block: &Block, mut bytes: Bytes, exit: Option<ExitRecord>) -> VecDeque<Entry> {
    let mut offset = block.first_offset;
    let mut entries = VecDeque::with_capacity(block.entries as usize);
    for seq in block.first_seq..block.first_seq + block.entries {
        let kind = bytes.get_u8();
        let len = bytes.get_u32_le() as usize;
        let output = |stream, bytes| Event::Output { stream, bytes };
        let event = match kind {
            STDOUT => output(Stream::Stdout, bytes.split_to(len)),
            STDERR => output(Stream::Stderr, bytes.split_to(len)),
            PTY => output(Stream::Pty, bytes.split_to(len)),
            EXITED => Event::Exited(Box::new(
                exit.expect("a spilled exit is recorded in the log's progress"),
            )),
            _ => Event::Closed,
        };
        let entry = Entry { seq, offset, at: block.since, event };
        offset = entry.end_offset();
        entries.push_back(entry);
    }
    entries
}

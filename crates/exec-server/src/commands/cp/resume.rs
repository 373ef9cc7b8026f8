//! Resumes an interrupted copy.
//!
//! The partial file is found by a key derived from the source: another source, or a changed one,
//! has another key. A partial file cannot be read before it is committed, so it cannot be compared
//! with the source; instead, samples of the source are part of the key. Blocks are written
//! concurrently, so the end of a partial file may have holes; that part is written again.

use std::fmt::Write as _;

use exec_server_client::{ExecServerError, OpenFile};
use exec_server_protocol::{FsMetadata, MAX_BLOCK_BYTES, PathUri};
use futures_util::future::try_join_all;
use sha2::{Digest as _, Sha256};

use super::retry_budget::CompletedCount;

/// The number of concurrent blocks per file. A block starts only when the block `WINDOW` places
/// before it has been written.
pub(super) const WINDOW: usize = 8;
pub(super) const BLOCK: u64 = MAX_BLOCK_BYTES as u64;
const KEY_BYTES: usize = 8;
/// Once a partial file has vanished more than this many times, copying its source again no longer
/// counts as progress. It vanishes, for example, if it is committed but the response is lost.
const MAX_VANISHED: usize = 5;
/// The size of the samples from the beginning, middle and end of the content.
const SAMPLE: u64 = 16 << 10;

pub(super) async fn key_of(
    endpoint: &str,
    path: &PathUri,
    file: &OpenFile,
) -> Result<String, ExecServerError> {
    let found = file.metadata();
    let read = |offset| file.read_block(offset, SAMPLE as usize);
    let samples = try_join_all(sample_offsets(found.size).map(read)).await?;
    Ok(key(endpoint, path, found, samples.iter().map(|sample| &sample.chunk[..])))
}

fn sample_offsets(size: u64) -> [u64; 3] {
    [0, size / 2, size.saturating_sub(SAMPLE)]
}

fn key<'a>(
    endpoint: &str,
    path: &PathUri,
    found: &FsMetadata,
    samples: impl Iterator<Item = &'a [u8]>,
) -> String {
    let mut digest = digest_of(endpoint, &[path]);
    digest.update(found.size.to_le_bytes());
    digest.update(found.modified_at_ms.to_le_bytes());
    digest.update(found.created_at_ms.to_le_bytes());
    for sample in samples {
        digest.update((sample.len() as u64).to_le_bytes());
        digest.update(sample);
    }
    word(digest)
}

/// Returns a short hexadecimal hash of the endpoint and the paths, for use in a file name.
pub(super) fn hash_of(endpoint: &str, paths: &[&PathUri]) -> String {
    word(digest_of(endpoint, paths))
}

/// Hashes the endpoint and the paths, each terminated by NUL, which none of them can contain.
fn digest_of(endpoint: &str, paths: &[&PathUri]) -> Sha256 {
    use std::os::unix::ffi::OsStrExt as _;
    let mut digest = Sha256::new();
    digest.update(endpoint.as_bytes());
    digest.update([0]);
    for path in paths {
        digest.update(path.as_path().as_os_str().as_bytes());
        digest.update([0]);
    }
    digest
}

fn word(digest: Sha256) -> String {
    let mut word = String::with_capacity(2 * KEY_BYTES);
    for byte in digest.finalize().iter().take(KEY_BYTES) {
        let _ = write!(word, "{byte:02x}");
    }
    word
}

/// Returns the resume offset for a partial file of `written` bytes. Invariant: everything before
/// that offset was written.
pub(super) fn start(written: u64) -> u64 {
    let begun = written.div_ceil(BLOCK);
    begun.saturating_sub(WINDOW as u64) * BLOCK
}

#[derive(Debug)]
pub(super) struct CopiedBlock {
    /// The offset after the block.
    pub(super) end: u64,
    /// Whether the block has its full length, so the source does not end within it.
    pub(super) is_whole: bool,
    /// The offset after the last byte written, or 0 if none was; the rest of the block is a hole.
    pub(super) written: u64,
}

/// The state of a partial file, kept across attempts.
#[derive(Debug, Default)]
pub(super) struct PartialFile {
    pub(super) key: Option<String>,
    /// Invariant: everything before this offset is confirmed as written, or a hole.
    certain: u64,
    /// The partial file has at least this length; a shorter file is a different one.
    len: u64,
    furthest: u64,
    vanished: usize,
}

impl PartialFile {
    pub(super) fn of_key(key: Option<String>) -> Self {
        Self { key, ..Self::default() }
    }

    /// Returns the resume offset if the partial file has `found` bytes.
    pub(super) fn start(&mut self, found: u64) -> u64 {
        if found < self.len {
            self.begin_anew();
            self.vanished += 1;
            if self.vanished <= MAX_VANISHED {
                self.furthest = 0;
            }
        }
        self.len = found;
        self.certain = self.certain.max(start(found));
        self.certain
    }

    pub(super) fn begin_anew(&mut self) {
        (self.certain, self.len) = (0, 0);
    }

    pub(super) fn reached(&mut self, copied: &CopiedBlock, completed: &CompletedCount) {
        self.certain = copied.end;
        self.len = self.len.max(copied.written);
        if copied.end > self.furthest {
            self.furthest = copied.end;
            completed.increment();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::file;
    use super::*;

    #[test]
    fn different_sources_have_different_keys() {
        let key = |endpoint: &str, path: &str, found: FsMetadata, samples: &[&[u8]]| {
            super::key(endpoint, &path.parse().unwrap(), &found, samples.iter().copied())
        };
        let found = file(1, 2, 3);
        let one = key("", "/a", found, &[b"x", b"y"]);
        assert_eq!(one.len(), 16);
        assert_eq!(one, key("", "/a", found, &[b"x", b"y"]));
        for other in [
            key("ws://box:1", "/a", found, &[b"x", b"y"]),
            key("", "/b", found, &[b"x", b"y"]),
            key("", "/a", file(2, 2, 3), &[b"x", b"y"]),
            key("", "/a", file(1, 3, 3), &[b"x", b"y"]),
            key("", "/a", file(1, 2, 4), &[b"x", b"y"]),
            key("", "/a", found, &[b"x", b"z"]),
            key("", "/a", found, &[b"xy", b""]),
        ] {
            assert_ne!(one, other);
        }
    }

    #[test]
    fn a_partial_file_resumes_where_it_was_confirmed() {
        let completed = CompletedCount::default();
        let mut partial = PartialFile::default();
        assert_eq!(partial.start(20 * BLOCK), 12 * BLOCK, "the end may have holes");
        let copied =
            |block: u64, written| CopiedBlock { end: block * BLOCK, is_whole: true, written };
        partial.reached(&copied(13, 13 * BLOCK), &completed);
        assert_eq!(partial.start(20 * BLOCK), 13 * BLOCK);
        // A hole at the end does not lengthen the file, so 20 blocks are not too few.
        partial.reached(&copied(30, 0), &completed);
        assert_eq!(partial.start(20 * BLOCK), 30 * BLOCK);
        assert_eq!(partial.start(12 * BLOCK), 4 * BLOCK, "it is another file");
        assert_eq!(partial.start(0), 0, "and so is this");
    }

    #[test]
    fn the_part_that_may_have_holes_is_written_again() {
        assert_eq!(start(0), 0);
        assert_eq!(start(8 * BLOCK), 0);
        assert_eq!(start(8 * BLOCK + 1), BLOCK);
        assert_eq!(start(100 * BLOCK), 92 * BLOCK);
        // The worst case: of the blocks started, only the last was written.
        let last = 100 * BLOCK + 7;
        assert!(start(last) <= (last.div_ceil(BLOCK) - WINDOW as u64) * BLOCK);
    }
}

//! Going on where an interrupted copy has stopped.
//!
//! What was written is found by a key that is made of what was read: another file, or the same one changed, has another
//! key. Nobody can read what was written before it has its name, so it cannot be compared with the source; pieces of
//! the source are part of the key instead. Blocks are written several at once, so the last of what was found may have
//! holes; that much is written again.

use std::fmt::Write as _;

use exec_server_client::{ExecServerError, OpenFile};
use exec_server_protocol::{FsMetadata, MAX_BLOCK_BYTES, PathUri};
use futures_util::future::try_join_all;
use sha2::{Digest as _, Sha256};

use super::retry_budget::CompletedCount;

/// Blocks of one file that are under way at once. A block is begun only when the one this many before it is written.
pub(super) const WINDOW: usize = 8;
pub(super) const BLOCK: u64 = MAX_BLOCK_BYTES as u64;
const KEY_BYTES: usize = 8;
/// How often what was written may vanish: a lost answer to the last call of all leaves nothing to go on with.
const MAX_VANISHED: usize = 5;
/// Of the content: at the beginning, in the middle, and at the end.
const SAMPLE: u64 = 16 << 10;

/// Of a file that was opened at `path` of an endpoint.
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

/// A word for these paths, the first of which is on this endpoint.
pub(super) fn word_of(endpoint: &str, paths: &[&PathUri]) -> String {
    word(digest_of(endpoint, paths))
}

/// The endpoint and each path end where a NUL byte is, which none of them can have.
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

/// Where to go on if `written` bytes are there. Invariant: everything before it was written.
pub(super) fn start(written: u64) -> u64 {
    let begun = written.div_ceil(BLOCK);
    begun.saturating_sub(WINDOW as u64) * BLOCK
}

/// A block that was copied.
#[derive(Debug)]
pub(super) struct CopiedBlock {
    /// Up to here.
    pub(super) end: u64,
    /// The source did not end within it.
    pub(super) is_whole: bool,
    /// The end of what was written of it; the rest is a hole.
    pub(super) written: u64,
}

/// The state of a partial file, kept from one attempt to the next.
#[derive(Debug, Default)]
pub(super) struct PartialFile {
    pub(super) key: Option<String>,
    /// Invariant: everything before this place was confirmed as written, or is a hole.
    certain: u64,
    /// It is at least this long. A shorter one is another file.
    len: u64,
    /// As far as any attempt has come.
    furthest: u64,
    vanished: usize,
}

impl PartialFile {
    /// Of which nothing is known but its key.
    pub(super) fn of_key(key: Option<String>) -> Self {
        Self { key, ..Self::default() }
    }

    /// Where to go on if `found` bytes are there.
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
    fn another_source_has_another_key() {
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
    fn a_partial_file_goes_on_where_it_was_confirmed() {
        let completed = CompletedCount::default();
        let mut partial = PartialFile::default();
        assert_eq!(partial.start(20 * BLOCK), 12 * BLOCK, "another program has written it");
        let copied =
            |block: u64, written| CopiedBlock { end: block * BLOCK, is_whole: true, written };
        partial.reached(&copied(13, 13 * BLOCK), &completed);
        assert_eq!(partial.start(20 * BLOCK), 13 * BLOCK);
        // Holes are not written, and so not found.
        partial.reached(&copied(30, 0), &completed);
        assert_eq!(partial.start(20 * BLOCK), 30 * BLOCK);
        assert_eq!(partial.start(12 * BLOCK), 4 * BLOCK, "it is another file");
        assert_eq!(partial.start(0), 0, "and so is this");
    }

    #[test]
    fn what_may_have_holes_is_written_again() {
        assert_eq!(start(0), 0);
        assert_eq!(start(8 * BLOCK), 0);
        assert_eq!(start(8 * BLOCK + 1), BLOCK);
        assert_eq!(start(100 * BLOCK), 92 * BLOCK);
        // The worst case: of the blocks begun only the last is there.
        let last = 100 * BLOCK + 7;
        assert!(start(last) <= (last.div_ceil(BLOCK) - WINDOW as u64) * BLOCK);
    }
}

//! Copies one file between endpoints.

use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use exec_server_client::{ExecServerError, NewFile, OpenFile};
use exec_server_protocol::{
    ErrorKind, FsCreateParams, FsGetMetadataParams, FsMetadata, FsOpenParams, FsReadFileParams,
    FsWriteFileParams, MAX_BLOCK_BYTES, PathUri,
};
use futures_util::{StreamExt as _, stream};
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep};

use super::bar::size;
use super::endpoint::Endpoint;
use super::progress::{FileProgress, Progress, add};
use super::resume::{self, CopiedBlock, PartialFile, WINDOW};
use super::retry_budget::RetryBudget;
use crate::environment::blocks::ReadBlocks;

/// A file up to this size is read and written with one message each.
const SMALL: u64 = 256 << 10;
/// Bounds the blocks and small files in memory, across all files.
const HELD_BLOCKS: usize = 16;
/// How long to wait for another writer to release the partial file. The server may need a moment to
/// notice that this command's previous connection is gone.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(10);
const RELEASE_INTERVAL: Duration = Duration::from_millis(100);

/// The preserved permission bits. The meaning of the others depends on the owner of the file, which
/// is not preserved.
pub(super) const PRESERVED_MODE: u32 = 0o777;

#[derive(Debug)]
pub(super) struct Job {
    pub(super) from: Rc<Endpoint>,
    pub(super) source: PathUri,
    pub(super) target: PathUri,
    pub(super) size: u64,
    pub(super) mode: Option<u32>,
    pub(super) links: Links,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Links {
    /// Followed, because the user gave the path.
    Followed,
    /// Refused, because the path comes from a listed tree: a symlink there now was created after
    /// the listing.
    Refused,
}

impl Links {
    pub(super) fn on_the_wire(self) -> Option<bool> {
        Some(self == Self::Followed)
    }
}

pub(super) struct Transfer<'a> {
    to: Rc<Endpoint>,
    progress: &'a Progress,
    ignores_leftovers: bool,
    held: Semaphore,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum CopyError {
    #[error(transparent)]
    Source(ExecServerError),
    #[error(transparent)]
    Target(ExecServerError),
    #[error("became shorter while it was copied; copy it again")]
    Shorter,
    #[error("changed while it was copied; copy it again")]
    Changed,
    #[error("received a block of {got} bytes; expected 1 to {asked} bytes, or the end of the file")]
    OddBlock { asked: usize, got: usize },
}

impl CopyError {
    /// Returns the error of the failed call, or this error.
    pub(super) fn into_cause(self) -> anyhow::Error {
        match self {
            Self::Source(error) | Self::Target(error) => error.into(),
            other => other.into(),
        }
    }

    /// Whether the partial file is useless: for example, because the disk is full, or because the
    /// source has changed.
    fn spoils_partial_file(&self) -> bool {
        match self {
            Self::Source(_) => false,
            Self::Target(error) => matches!(error, ExecServerError::Server(_)),
            Self::Shorter | Self::Changed | Self::OddBlock { .. } => true,
        }
    }
}

impl<'a> Transfer<'a> {
    pub(super) fn new(to: Rc<Endpoint>, progress: &'a Progress, ignores_leftovers: bool) -> Self {
        Self { to, progress, ignores_leftovers, held: Semaphore::new(HELD_BLOCKS) }
    }

    pub(super) async fn copy(&self, job: &Job) -> Result<(), CopyError> {
        self.progress.begin(job.from.show(&job.source));
        if job.size <= SMALL {
            match self.copy_whole(job).await {
                // The file has grown since it was examined, or its metadata has a wrong size, as in
                // /proc.
                Err(CopyError::Source(error)) if error.kind() == Some(&ErrorKind::FileTooLarge) => {
                }
                outcome => return outcome,
            }
        }
        self.copy_in_blocks(job).await
    }

    async fn copy_whole(&self, job: &Job) -> Result<(), CopyError> {
        let _held = self.hold().await;
        let mut params = FsReadFileParams::new(job.source.clone());
        params.follow_symlinks = job.links.on_the_wire();
        let content = job.from.files.read_file(params).await.map_err(CopyError::Source)?;
        let len = content.len() as u64;
        let write = async || {
            self.to
                .files
                .write_file(FsWriteFileParams {
                    atomic: true,
                    mode: job.mode.map(|mode| mode & PRESERVED_MODE),
                    follow_symlinks: job.links.on_the_wire(),
                    ..FsWriteFileParams::new(job.target.clone(), content.clone())
                })
                .await
        };
        self.to.retry_interrupted(write).await.map_err(CopyError::Target)?;
        add(&self.progress.counts.transferred, len);
        FileProgress::new(&self.progress.counts).reached(len);
        Ok(())
    }

    /// Copies a large file. Handles end with their connection, so source and target are reopened
    /// after a loss; the partial file is found by its key.
    async fn copy_in_blocks(&self, job: &Job) -> Result<(), CopyError> {
        let progress = FileProgress::new(&self.progress.counts);
        let mut retries = RetryBudget::new(&self.to.completed);
        let (mut partial, mut has_changed) = (PartialFile::default(), false);
        loop {
            match self.attempt(job, &mut partial, &progress).await {
                Err(
                    CopyError::Source(ExecServerError::Interrupted { .. })
                    | CopyError::Target(ExecServerError::Interrupted { .. }),
                ) if retries.allows_another() => {}
                Err(CopyError::Changed) if !has_changed => {
                    has_changed = true;
                    partial = PartialFile::of_key(partial.key);
                }
                outcome => {
                    self.to.completed.increment();
                    return outcome;
                }
            }
        }
    }

    async fn attempt(
        &self,
        job: &Job,
        partial: &mut PartialFile,
        progress: &FileProgress<'_>,
    ) -> Result<(), CopyError> {
        let file = open(job).await.map_err(CopyError::Source)?;
        let found = *file.metadata();
        let key = resume::key_of(&job.from.identity, &job.source, &file).await;
        let key = key.map_err(CopyError::Source)?;
        let previous = partial.key.replace(key.clone());
        let is_first = previous.is_none();
        if let Some(obsolete) = previous.filter(|previous| *previous != key) {
            partial.begin_anew();
            self.create(job, &obsolete).await?.discard().await.map_err(CopyError::Target)?;
        }
        let mut new = self.create(job, &key).await?;
        if new.written() > found.size || (is_first && self.ignores_leftovers && new.written() > 0) {
            new.discard().await.map_err(CopyError::Target)?;
            new = self.create(job, &key).await?;
        }
        let start = partial.start(new.written());
        if start > 0 {
            add(&self.progress.counts.resumed, if is_first { start } else { 0 });
            let (source, place, all) = (job.from.show(&job.source), size(start), size(found.size));
            self.progress.note(&format!("{source}: resumed at {place} of {all}"));
        }
        progress.reached(start);
        let copied = tokio::select! {
            biased;
            copied = self.blocks(&file, &new, start..found.size, partial, progress) => copied,
            // While a hole is copied nothing is written, so no failed write would report a lost
            // connection.
            error = new.lost() => Err(CopyError::Target(error)),
        };
        let copied = match copied {
            Ok(()) => check_unchanged(job, &found).await,
            failed => failed,
        };
        match copied {
            Ok(()) => new.commit().await.map(drop).map_err(CopyError::Target),
            Err(error) => {
                if error.spoils_partial_file() {
                    let _ = new.discard().await;
                }
                Err(error)
            }
        }
    }

    async fn create(&self, job: &Job, key: &str) -> Result<NewFile, CopyError> {
        let deadline = Instant::now() + RELEASE_TIMEOUT;
        loop {
            let params = FsCreateParams {
                mode: job.mode.map(|mode| mode & PRESERVED_MODE),
                follow_symlinks: job.links.on_the_wire(),
                resume_key: Some(key.to_owned()),
                ..FsCreateParams::new(job.target.clone(), "")
            };
            match self.to.files.create(params).await {
                Err(error)
                    if error.kind() == Some(&ErrorKind::Conflict) && Instant::now() < deadline =>
                {
                    sleep(RELEASE_INTERVAL).await;
                }
                outcome => return outcome.map_err(CopyError::Target),
            }
        }
    }

    /// Copies all blocks of `range`. Data appended in the meantime is not copied.
    async fn blocks(
        &self,
        file: &dyn ReadBlocks,
        new: &NewFile,
        range: Range<u64>,
        partial: &mut PartialFile,
        progress: &FileProgress<'_>,
    ) -> Result<(), CopyError> {
        let end = range.end;
        let mut reached = |copied: &CopiedBlock| {
            partial.reached(copied, &self.to.completed);
            progress.reached(copied.end);
        };
        let block = |offset: u64| {
            let len = usize::try_from(end - offset).unwrap_or(usize::MAX).min(MAX_BLOCK_BYTES);
            self.block(file, new, offset, len, end)
        };
        let mut place = range.start;
        let mut blocks = stream::iter(range.step_by(MAX_BLOCK_BYTES)).map(block).buffered(WINDOW);
        while let Some(copied) = blocks.next().await {
            let copied = copied?;
            place = copied.end;
            reached(&copied);
            if !copied.is_whole {
                return Err(CopyError::Shorter);
            }
        }
        drop(blocks);
        if end > 0 {
            return Ok(());
        }
        // Files in /proc and the like report size 0 and must be read to the end.
        loop {
            let copied = self.block(file, new, place, MAX_BLOCK_BYTES, end).await?;
            place = copied.end;
            reached(&copied);
            if !copied.is_whole {
                return Ok(());
            }
        }
    }

    /// Copies one block. A hole in a file that ends at `file_end` remains a hole, since unwritten
    /// ranges read as zeros. The last byte of the file is always written, which sets its length.
    async fn block(
        &self,
        file: &dyn ReadBlocks,
        new: &NewFile,
        offset: u64,
        len: usize,
        file_end: u64,
    ) -> Result<CopiedBlock, CopyError> {
        let _held = self.hold().await;
        let (mut place, mut written) = (offset, 0);
        let end = offset + len as u64;
        while place < end {
            let asked = usize::try_from(end - place).unwrap_or(MAX_BLOCK_BYTES);
            let read = file.read_block(place, asked).await.map_err(CopyError::Source)?;
            let bytes = read.chunk.into_bytes();
            let got = bytes.len();
            if got > asked || (got == 0 && !read.eof) {
                return Err(CopyError::OddBlock { asked, got });
            }
            let next = place + got as u64;
            if got > 0 && (next >= file_end || !is_hole(&bytes)) {
                new.write_block(place, bytes).await.map_err(CopyError::Target)?;
                add(&self.progress.counts.transferred, got as u64);
                written = next;
            }
            place = next;
            if read.eof {
                break;
            }
        }
        Ok(CopiedBlock { end: place, is_whole: place == end, written })
    }

    async fn hold(&self) -> tokio::sync::SemaphorePermit<'_> {
        self.held.acquire().await.expect("the semaphore is never closed")
    }
}

fn is_hole(bytes: &[u8]) -> bool {
    const ZEROS: [u8; 4096] = [0; 4096];
    bytes.chunks(ZEROS.len()).all(|chunk| *chunk == ZEROS[..chunk.len()])
}

async fn open(job: &Job) -> Result<OpenFile, ExecServerError> {
    let params = FsOpenParams {
        path: job.source.clone(),
        handle_id: String::new(),
        follow_symlinks: job.links.on_the_wire(),
        details: true,
        sandbox: None,
    };
    job.from.files.open(params).await
}

/// Detects a source that changed while it was read: the copy would mix old and new content.
async fn check_unchanged(job: &Job, before: &FsMetadata) -> Result<(), CopyError> {
    if before.size == 0 {
        return Ok(());
    }
    let params = FsGetMetadataParams {
        path: job.source.clone(),
        follow_symlinks: job.links.on_the_wire(),
        sandbox: None,
    };
    match job.from.files.metadata(params).await {
        Ok(now) if !is_rewritten(before, &now) => Ok(()),
        Ok(_) => Err(CopyError::Changed),
        // The opened file was read to its end, whatever happened to its name.
        Err(error) if error.kind() == Some(&ErrorKind::NotFound) => Ok(()),
        Err(error) => Err(CopyError::Source(error)),
    }
}

/// Whether the file was modified in place. Appended data does not count, because it was not read;
/// nor does a replacement, because the opened file was not changed.
fn is_rewritten(before: &FsMetadata, now: &FsMetadata) -> bool {
    let births = [before.created_at_ms, now.created_at_ms];
    let is_another = births[0] != births[1] && !births.contains(&0);
    let has_grown = now.size > before.size;
    let is_the_same = now.size == before.size && now.modified_at_ms == before.modified_at_ms;
    !(is_another || has_grown || is_the_same)
}

#[cfg(test)]
mod tests {
    use async_trait::async_trait;
    use exec_server_protocol::FsReadBlockResponse;

    use super::super::tests::file;
    use super::*;

    /// A file whose first block is complete, and whose later blocks are all `then`.
    #[derive(Debug)]
    struct Odd {
        metadata: FsMetadata,
        then: FsReadBlockResponse,
    }

    #[async_trait]
    impl ReadBlocks for Odd {
        fn metadata(&self) -> &FsMetadata {
            &self.metadata
        }

        async fn read_block(
            &self,
            offset: u64,
            len: usize,
        ) -> Result<FsReadBlockResponse, ExecServerError> {
            if offset > 0 {
                return Ok(self.then.clone());
            }
            Ok(FsReadBlockResponse { chunk: bytes::Bytes::from(vec![1; len]).into(), eof: false })
        }
    }

    async fn copy_odd(then: &[u8], eof: bool) -> Result<(), CopyError> {
        let directory = tempfile::tempdir().unwrap();
        let target = PathUri::from_path(directory.path().join("copy")).unwrap();
        let endpoint = Rc::new(Endpoint::here());
        let new = endpoint.files.create(FsCreateParams::new(target, "")).await.unwrap();
        let progress = Progress::new(true, false);
        let transfer = Transfer::new(endpoint, &progress, false);
        let chunk = bytes::Bytes::copy_from_slice(then).into();
        let odd = Odd { metadata: file(5, 0, 0), then: FsReadBlockResponse { chunk, eof } };
        let size = 5 * MAX_BLOCK_BYTES as u64;
        let progress = FileProgress::new(&progress.counts);
        transfer.blocks(&odd, &new, 0..size, &mut PartialFile::default(), &progress).await
    }

    #[tokio::test]
    async fn a_file_that_ends_early_or_sends_odd_blocks_is_an_error() {
        for (then, eof) in [(&b""[..], true), (b"x", true)] {
            let outcome = copy_odd(then, eof).await;
            assert!(matches!(outcome, Err(CopyError::Shorter)), "{outcome:?}");
        }
        for then in [&b""[..], &[0; MAX_BLOCK_BYTES + 1]] {
            let outcome = copy_odd(then, false).await;
            assert!(matches!(outcome, Err(CopyError::OddBlock { .. })), "{outcome:?}");
        }
        copy_odd(&[0; MAX_BLOCK_BYTES], false).await.unwrap();
    }

    #[test]
    fn growth_and_replacement_are_not_modifications() {
        let before = file(10, 5, 1);
        for (now, is_change) in [
            (before, false),
            (file(11, 6, 1), false),
            (file(10, 6, 2), false),
            (file(3, 6, 2), false),
            (file(10, 6, 1), true),
            (file(9, 6, 1), true),
            (file(9, 5, 1), true),
            // Without a known birth time, it counts as the same file.
            (file(10, 6, 0), true),
        ] {
            assert_eq!(is_rewritten(&before, &now), is_change, "{now:?}");
        }
    }
}

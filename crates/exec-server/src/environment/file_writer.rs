//! A new file of an environment as an `AsyncWrite`.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use exec_server_client::{ExecServerError, NewFile};
use exec_server_protocol::{FsCloseResponse, MAX_BLOCK_BYTES};
use tokio::io::AsyncWrite;
use tokio::sync::RwLock;

use super::blocks::WriteBlocks;

const BLOCKS_IN_FLIGHT: usize = 4;

/// Writes a new file sequentially. The file appears under its path only once `shutdown` succeeds;
/// dropping the writer before that drops the [`NewFile`]. After a failed write, all further writes
/// fail.
pub struct FileWriter {
    file: SharedFile,
    /// Data that is not sent yet, at most one block.
    buffer: BytesMut,
    /// The file offset of the buffer.
    offset: u64,
    state: State,
}

/// Blocks are written concurrently under read locks. The commit takes the file out under the write
/// lock.
type SharedFile = Arc<RwLock<Option<Box<dyn WriteBlocks>>>>;

type Work<T> = Pin<Box<dyn Future<Output = Result<T, ExecServerError>> + Send>>;

/// The blocks in flight, in file order. Completed blocks become `None` and remain until all blocks
/// before them are completed, so the length of the queue bounds the data that a resuming writer
/// must not trust.
type Blocks = VecDeque<Option<Work<()>>>;

enum State {
    Writing(Blocks),
    Committing(Work<FsCloseResponse>),
    Committed(FsCloseResponse),
    Failed(ExecServerError),
}

impl FileWriter {
    /// Creates a writer. If an earlier writer with the same `resume_key` left a partial file,
    /// resumes it at an offset before which all data has certainly been written.
    #[must_use]
    pub fn new(file: NewFile) -> Self {
        Self::of(Box::new(file))
    }

    fn of(file: Box<dyn WriteBlocks>) -> Self {
        // The last blocks may have been written although earlier ones were not.
        let unsure = (BLOCKS_IN_FLIGHT * MAX_BLOCK_BYTES) as u64;
        let offset = file.written().saturating_sub(unsure);
        Self {
            file: Arc::new(RwLock::new(Some(file))),
            buffer: BytesMut::new(),
            offset,
            state: State::Writing(Blocks::new()),
        }
    }

    /// Returns the file offset of the next byte. After [`Self::new`] it may be more than 0, if a
    /// partial file was found by its `resume_key`.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.offset + self.buffer.len() as u64
    }

    /// Returns the result of the commit, once it has succeeded.
    #[must_use]
    pub fn committed(&self) -> Option<FsCloseResponse> {
        match self.state {
            State::Committed(response) => Some(response),
            State::Writing(_) | State::Committing(_) | State::Failed(_) => None,
        }
    }

    /// Returns the blocks in flight, or an error if no more can be written.
    fn in_flight(&mut self) -> io::Result<&mut Blocks> {
        match &mut self.state {
            State::Writing(blocks) => Ok(blocks),
            State::Failed(error) => Err(io::Error::other(error.clone())),
            State::Committing(_) | State::Committed(_) => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }

    /// Polls the blocks in flight. Resolves when fewer than `fewer_than` blocks remain from the
    /// first incomplete one to the last.
    fn poll_blocks(
        &mut self,
        context: &mut Context<'_>,
        fewer_than: usize,
    ) -> Poll<io::Result<()>> {
        let mut failure = None;
        let blocks = self.in_flight()?;
        for block in blocks.iter_mut() {
            let Some(work) = block else { continue };
            if let Poll::Ready(written) = work.as_mut().poll(context) {
                failure = failure.take().or(written.err());
                *block = None;
            }
        }
        while blocks.pop_front_if(|block| block.is_none()).is_some() {}
        let room = blocks.len() < fewer_than;
        if let Some(error) = failure {
            self.state = State::Failed(error.clone());
            return Poll::Ready(Err(io::Error::other(error)));
        }
        if room { Poll::Ready(Ok(())) } else { Poll::Pending }
    }

    /// Starts writing the buffer, after waiting for room.
    fn poll_send(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_blocks(context, BLOCKS_IN_FLIGHT))?;
        let bytes = self.buffer.split().freeze();
        let (file, offset) = (Arc::clone(&self.file), self.offset);
        self.offset += bytes.len() as u64;
        self.in_flight()?.push_back(Some(Box::pin(write_block(file, offset, bytes))));
        // Polls the new block, because a future does nothing before its first poll. Does not wait
        // for room.
        self.poll_blocks(context, usize::MAX)
    }
}

async fn write_block(file: SharedFile, offset: u64, bytes: Bytes) -> Result<(), ExecServerError> {
    match &*file.read().await {
        Some(file) => file.write_block(offset, bytes).await,
        None => Err(ExecServerError::Closed),
    }
}

async fn commit(file: SharedFile) -> Result<FsCloseResponse, ExecServerError> {
    let file = file.write().await.take();
    file.ok_or(ExecServerError::Closed)?.commit().await
}

impl AsyncWrite for FileWriter {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.buffer.len() >= MAX_BLOCK_BYTES {
            ready!(self.poll_send(context))?;
        } else {
            ready!(self.poll_blocks(context, usize::MAX))?;
        }
        let len = bytes.len().min(MAX_BLOCK_BYTES - self.buffer.len());
        self.buffer.extend_from_slice(&bytes[..len]);
        Poll::Ready(Ok(len))
    }

    /// Waits until the server has all data. Does not commit the file; `shutdown` does.
    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.buffer.is_empty() {
            ready!(self.poll_send(context))?;
        }
        self.poll_blocks(context, 1)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if matches!(self.state, State::Committed(_)) {
            return Poll::Ready(Ok(()));
        }
        if !matches!(self.state, State::Committing(_)) {
            ready!(self.as_mut().poll_flush(context))?;
            self.state = State::Committing(Box::pin(commit(Arc::clone(&self.file))));
        }
        if let State::Committing(committing) = &mut self.state {
            self.state = match ready!(committing.as_mut().poll(context)) {
                Ok(response) => State::Committed(response),
                Err(error) => State::Failed(error),
            };
        }
        match &self.state {
            State::Failed(error) => Poll::Ready(Err(io::Error::other(error.clone()))),
            _ => Poll::Ready(Ok(())),
        }
    }
}

impl std::fmt::Debug for FileWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FileWriter")
            .field("position", &self.position())
            .field("committed", &self.committed())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use async_trait::async_trait;
    use tokio::io::AsyncWriteExt as _;

    use super::*;

    /// The content of a [`Fake`], and how it was written.
    #[derive(Debug, Default)]
    struct Fate {
        content: Vec<u8>,
        in_flight: usize,
        most_in_flight: usize,
        furthest: u64,
        end: Option<&'static str>,
    }

    #[derive(Debug, Default)]
    struct Fake {
        fate: Arc<Mutex<Fate>>,
        found: u64,
        fails_at: Option<u64>,
        hangs_at: Option<u64>,
        conflict: bool,
    }

    #[async_trait]
    impl WriteBlocks for Fake {
        fn written(&self) -> u64 {
            self.found
        }

        async fn write_block(&self, offset: u64, bytes: Bytes) -> Result<(), ExecServerError> {
            {
                let mut fate = self.fate.lock().unwrap();
                fate.in_flight += 1;
                fate.most_in_flight = fate.most_in_flight.max(fate.in_flight);
                fate.furthest = fate.furthest.max(offset);
            }
            if self.hangs_at == Some(offset) {
                std::future::pending::<()>().await;
            }
            // Takes longer than starting the next block, so that writes overlap.
            for _ in 0..20 {
                tokio::task::yield_now().await;
            }
            let mut fate = self.fate.lock().unwrap();
            fate.in_flight -= 1;
            if self.fails_at.is_some_and(|place| offset >= place) {
                return Err(ExecServerError::Interrupted { method: "fs/writeBlock" });
            }
            let end = offset as usize + bytes.len();
            if fate.content.len() < end {
                fate.content.resize(end, 0);
            }
            fate.content[offset as usize..end].copy_from_slice(&bytes);
            Ok(())
        }

        async fn commit(self: Box<Self>) -> Result<FsCloseResponse, ExecServerError> {
            tokio::task::yield_now().await;
            if self.conflict {
                return Err(ExecServerError::Interrupted { method: "fs/close" });
            }
            let mut fate = self.fate.lock().unwrap();
            fate.end = Some("committed");
            let size = Some(fate.content.len() as u64);
            Ok(FsCloseResponse { committed: true, modified_at_ms: None, size })
        }
    }

    impl Drop for Fake {
        fn drop(&mut self) {
            self.fate.lock().unwrap().end.get_or_insert("discarded");
        }
    }

    fn pattern(len: usize) -> Vec<u8> {
        (0..len).map(|place| (place % 251) as u8).collect()
    }

    #[tokio::test]
    async fn a_committed_file_has_all_written_bytes() {
        for len in [0, 1, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, 9_000_000] {
            let fake = Fake::default();
            let fate = Arc::clone(&fake.fate);
            let mut writer = FileWriter::of(Box::new(fake));
            let content = pattern(len);
            for piece in content.chunks(300_000) {
                writer.write_all(piece).await.unwrap();
            }
            assert_eq!((writer.position(), writer.committed()), (len as u64, None));
            writer.shutdown().await.unwrap();
            assert_eq!(writer.committed().unwrap().size, Some(len as u64));
            writer.shutdown().await.unwrap();
            assert!(writer.write_all(b"late").await.is_err());
            let fate = fate.lock().unwrap();
            assert!(fate.content == content && fate.end == Some("committed"));
            assert!(fate.most_in_flight <= BLOCKS_IN_FLIGHT, "{}", fate.most_in_flight);
            assert!(len < 9_000_000 || fate.most_in_flight > 1);
        }
    }

    #[tokio::test]
    async fn a_flush_sends_everything_without_committing() {
        let fake = Fake::default();
        let fate = Arc::clone(&fake.fate);
        let mut writer = FileWriter::of(Box::new(fake));
        for word in ["one", "two"] {
            writer.write_all(word.as_bytes()).await.unwrap();
            writer.flush().await.unwrap();
        }
        assert_eq!(fate.lock().unwrap().content, b"onetwo");
        drop(writer);
        assert_eq!(fate.lock().unwrap().end, Some("discarded"));
    }

    #[tokio::test]
    async fn a_writer_resumes_a_partial_file() {
        let content = pattern(9 << 20);
        let mut fake = Fake::default();
        fake.found = 7 << 20;
        let fate = Arc::clone(&fake.fate);
        {
            let found = &mut fate.lock().unwrap().content;
            found.extend_from_slice(&content[..7 << 20]);
            // A block that was lost although later ones were written.
            found[4 << 20..5 << 20].fill(0);
        }
        let mut writer = FileWriter::of(Box::new(fake));
        let position = usize::try_from(writer.position()).unwrap();
        assert_eq!(position, 3 << 20);
        writer.write_all(&content[position..]).await.unwrap();
        writer.shutdown().await.unwrap();
        assert!(fate.lock().unwrap().content == content);
    }

    #[tokio::test]
    async fn a_failed_block_fails_the_writer_with_its_reason() {
        let mut fake = Fake::default();
        fake.fails_at = Some(2 << 20);
        let fate = Arc::clone(&fake.fate);
        let mut writer = FileWriter::of(Box::new(fake));
        let error = writer.write_all(&pattern(20 << 20)).await.unwrap_err();
        let source = error.get_ref().unwrap().downcast_ref();
        assert!(matches!(source, Some(ExecServerError::Interrupted { .. })), "{error}");
        assert!(writer.flush().await.is_err() && writer.shutdown().await.is_err());
        drop(writer);
        assert_eq!(fate.lock().unwrap().end, Some("discarded"));
    }

    #[tokio::test]
    async fn a_failed_commit_stays_failed() {
        let mut fake = Fake::default();
        fake.conflict = true;
        let fate = Arc::clone(&fake.fate);
        let mut writer = FileWriter::of(Box::new(fake));
        writer.write_all(b"mine").await.unwrap();
        assert!(writer.shutdown().await.is_err() && writer.shutdown().await.is_err());
        assert_eq!((fate.lock().unwrap().end, writer.committed()), (Some("discarded"), None));
    }

    #[tokio::test]
    async fn writes_stay_within_a_window_after_a_hanging_block() {
        let fate = Arc::new(Mutex::new(Fate::default()));
        let fake = Fake { fate: Arc::clone(&fate), hangs_at: Some(0), ..Fake::default() };
        let mut writer = FileWriter::of(Box::new(fake));
        let content = pattern(20 * MAX_BLOCK_BYTES);
        let patience = async {
            for _ in 0..1000 {
                tokio::task::yield_now().await;
            }
        };
        tokio::select! {
            written = writer.write_all(&content) => panic!("{written:?}"),
            () = patience => {}
        }
        let furthest = fate.lock().unwrap().furthest;
        assert_eq!(furthest, ((BLOCKS_IN_FLIGHT - 1) * MAX_BLOCK_BYTES) as u64);
    }
}

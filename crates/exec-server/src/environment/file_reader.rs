//! A file of an environment as an `AsyncRead`.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use exec_server_client::{ExecServerError, OpenFile, Violation};
use exec_server_protocol::{FsMetadata, FsReadBlockResponse, MAX_BLOCK_BYTES};
use tokio::io::{AsyncRead, ReadBuf};

use super::blocks::ReadBlocks;
use crate::process::pieces::Pieces;

const BLOCKS_AHEAD: usize = 4;

/// Reads a file sequentially with a few blocks of read-ahead. Continues with the file that was
/// opened, even if its path is renamed or replaced. A lost connection is an error: after a
/// reconnect, the path might lead to another file.
pub struct FileReader {
    file: Arc<dyn ReadBlocks>,
    /// In order of their offsets.
    blocks: VecDeque<Block>,
    /// The offset of the next block to request.
    ahead: u64,
    pieces: Pieces,
}

struct Block {
    offset: u64,
    content: Content,
}

enum Content {
    Fetching(Pin<Box<dyn Future<Output = BlockResult> + Send>>),
    Fetched(BlockResult),
}

type BlockResult = Result<FsReadBlockResponse, ExecServerError>;

impl FileReader {
    #[must_use]
    pub fn new(file: OpenFile) -> Self {
        Self::of(Arc::new(file))
    }

    fn of(file: Arc<dyn ReadBlocks>) -> Self {
        Self { file, blocks: VecDeque::new(), ahead: 0, pieces: Pieces::default() }
    }

    /// Starts at `offset` instead of the beginning.
    #[must_use]
    pub fn starting_at(mut self, offset: u64) -> Self {
        self.blocks.clear();
        self.pieces = Pieces::default();
        self.ahead = offset;
        self
    }

    /// Returns the file's metadata at the time when it was opened.
    #[must_use]
    pub fn metadata(&self) -> &FsMetadata {
        self.file.metadata()
    }

    /// Requests blocks until there are [`BLOCKS_AHEAD`] or the known size is reached, but at least
    /// one.
    fn ask(&mut self) {
        let known = self.file.metadata().size;
        while self.blocks.is_empty() || (self.blocks.len() < BLOCKS_AHEAD && self.ahead < known) {
            let (file, offset) = (Arc::clone(&self.file), self.ahead);
            let fetching = async move { file.read_block(offset, MAX_BLOCK_BYTES).await };
            let content = Content::Fetching(Box::pin(fetching));
            self.blocks.push_back(Block { offset, content });
            self.ahead = offset.saturating_add(MAX_BLOCK_BYTES as u64);
        }
    }

    /// Fetches blocks until there are bytes, the end or an error to return.
    fn poll_advance(&mut self, context: &mut Context<'_>) -> Poll<()> {
        while self.pieces.is_wanting() {
            self.ask();
            // Polls all blocks, because a future does nothing before its first poll.
            for block in &mut self.blocks {
                block.poll(context);
            }
            let is_there = |block: &mut Block| matches!(block.content, Content::Fetched(_));
            let Some(Block { offset, content: Content::Fetched(fetched) }) =
                self.blocks.pop_front_if(is_there)
            else {
                return Poll::Pending;
            };
            self.take(offset, fetched);
        }
        Poll::Ready(())
    }

    fn take(&mut self, offset: u64, fetched: BlockResult) {
        match fetched {
            Ok(FsReadBlockResponse { chunk, eof }) => {
                if eof {
                    self.pieces.end();
                    self.blocks.clear();
                } else if chunk.is_empty() {
                    // Retrying could loop forever, and ending here would cut the file short.
                    self.pieces.fail(Violation::EmptyBlock.into());
                    self.blocks.clear();
                } else if chunk.len() < MAX_BLOCK_BYTES {
                    // After a short block, the blocks requested ahead are not contiguous.
                    self.blocks.clear();
                    self.ahead = offset + chunk.len() as u64;
                }
                self.pieces.put(chunk.into_bytes());
            }
            Err(error) => {
                self.pieces.fail(error);
                self.blocks.clear();
            }
        }
    }
}

impl Block {
    fn poll(&mut self, context: &mut Context<'_>) {
        if let Content::Fetching(fetching) = &mut self.content
            && let Poll::Ready(fetched) = fetching.as_mut().poll(context)
        {
            self.content = Content::Fetched(fetched);
        }
    }
}

impl AsyncRead for FileReader {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        ready!(self.poll_advance(context));
        Poll::Ready(self.pieces.give_out(buffer))
    }
}

impl std::fmt::Debug for FileReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FileReader").field("pieces", &self.pieces).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use async_trait::async_trait;
    use tokio::io::AsyncReadExt as _;

    use super::*;

    /// A file that returns at most `largest` bytes at once, and may report a wrong size.
    #[derive(Debug)]
    struct Odd {
        metadata: FsMetadata,
        content: Vec<u8>,
        largest: usize,
        fails_at: Option<u64>,
        asked: Mutex<Vec<u64>>,
    }

    impl Odd {
        fn new(len: usize, largest: usize, said: u64) -> Self {
            let metadata = FsMetadata {
                is_directory: false,
                is_file: true,
                is_symlink: false,
                size: said,
                created_at_ms: 0,
                modified_at_ms: 0,
                mode: None,
                special: None,
            };
            let content = (0..len).map(|place| (place % 251) as u8).collect();
            Self { metadata, content, largest, fails_at: None, asked: Mutex::default() }
        }
    }

    #[async_trait]
    impl ReadBlocks for Odd {
        fn metadata(&self) -> &FsMetadata {
            &self.metadata
        }

        async fn read_block(&self, offset: u64, len: usize) -> BlockResult {
            self.asked.lock().unwrap().push(offset);
            tokio::task::yield_now().await;
            if self.fails_at.is_some_and(|place| offset >= place) {
                return Err(ExecServerError::Interrupted { method: "fs/readBlock" });
            }
            let rest = self.content.get(offset as usize..).unwrap_or_default();
            let chunk = &rest[..rest.len().min(len).min(self.largest)];
            let eof = chunk.len() == rest.len();
            Ok(FsReadBlockResponse { chunk: chunk.to_vec().into(), eof })
        }
    }

    #[tokio::test]
    async fn every_byte_is_read_once_and_in_order() {
        let mebi = 1 << 20;
        for (len, largest, said) in [
            (0, mebi, 0),
            (10, mebi, 10),
            // Files in `/proc` report size 0.
            (10_000, 4096, 0),
            (5 * mebi, mebi, 5 * mebi as u64),
            (5 * mebi + 1, mebi, 5 * mebi as u64),
            // Files that grew or shrank after they were opened.
            (3 * mebi, mebi, 10),
            (10, mebi, 3 * mebi as u64),
            (3 * mebi, 700_000, 3 * mebi as u64),
        ] {
            let file = Odd::new(len, largest, said);
            let expected = file.content.clone();
            let mut read = Vec::new();
            FileReader::of(Arc::new(file)).read_to_end(&mut read).await.unwrap();
            assert!(read == expected, "{len} {largest} {said}: {} bytes", read.len());
        }
    }

    #[tokio::test]
    async fn a_reader_can_start_anywhere() {
        let file = Odd::new(3 << 20, 1 << 20, 3 << 20);
        let expected = file.content[2_000_000..].to_vec();
        let mut read = Vec::new();
        let mut reader = FileReader::of(Arc::new(file)).starting_at(2_000_000);
        reader.read_to_end(&mut read).await.unwrap();
        assert!(read == expected);
    }

    #[tokio::test]
    async fn read_ahead_is_bounded() {
        let file = Arc::new(Odd::new(10 << 20, 1 << 20, 10 << 20));
        let mut reader = FileReader::of(Arc::clone(&file) as Arc<dyn ReadBlocks>);
        reader.read_u8().await.unwrap();
        assert_eq!(*file.asked.lock().unwrap(), [0, 1 << 20, 2 << 20, 3 << 20]);
    }

    #[tokio::test]
    async fn a_failure_follows_the_read_bytes_and_keeps_its_reason() {
        let mut file = Odd::new(4 << 20, 1 << 20, 4 << 20);
        file.fails_at = Some(2 << 20);
        let mut read = Vec::new();
        let error = FileReader::of(Arc::new(file)).read_to_end(&mut read).await.unwrap_err();
        assert_eq!(read.len(), 2 << 20);
        let source = error.get_ref().unwrap().downcast_ref();
        assert!(matches!(source, Some(ExecServerError::Interrupted { .. })), "{error}");
    }
}

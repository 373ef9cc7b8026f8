//! The files of an environment, as callers see them. Params and results are those of the protocol: there is one
//! vocabulary, wherever the files are.

use std::ffi::OsString;
use std::fmt::Debug;

use async_trait::async_trait;
use bytes::Bytes;
use exec_server_client::{Changes, ExecServerError, Violation};
use exec_server_protocol::{
    DirectoryEntry, FsCanonicalizeParams, FsCloseResponse, FsCopyParams, FsCreateDirectoryParams,
    FsCreateParams, FsGetMetadataParams, FsGlobParams, FsMetadata, FsOpenParams,
    FsReadBlockResponse, FsReadDirectoryParams, FsReadDirectoryResponse, FsReadFileParams,
    FsReadLinkParams, FsRemoveParams, FsRenameParams, FsSearchParams, FsSearchResponse,
    FsSetPermissionsParams, FsSymlinkParams, FsWalkParams, FsWalkResponse, FsWatchParams,
    FsWriteFileParams, FsWriteFileResponse, PathUri, SearchMatch,
};

use super::file_reader::FileReader;
use super::file_writer::FileWriter;

/// Reads and changes the files of the machine on which the processes of an environment run.
///
/// Every call may carry the policy under which it is to be done; without one it has the rights of the server. Ids in
/// the params (`handle_id`, `watch_id`, `search_id`) are chosen by the implementation; what callers put there is
/// ignored.
///
/// Calls in flight at the same time have no promised order. One that changes something and loses its connection fails
/// as [`ExecServerError::Interrupted`]; one that only looks is done again.
#[async_trait]
pub trait ExecutorFileSystem: Debug + Send + Sync {
    /// The content of a regular file that fits into one message, at most 47 MiB. Larger ones are read in blocks; see
    /// [`Self::read_file_stream`].
    async fn read_file(&self, params: FsReadFileParams) -> Result<Bytes, ExecServerError>;

    /// Replaces the content, in place or atomically. A condition that does not hold is refused with the kind
    /// `conflict`.
    async fn write_file(
        &self,
        params: FsWriteFileParams,
    ) -> Result<FsWriteFileResponse, ExecServerError>;

    async fn create_directory(
        &self,
        params: FsCreateDirectoryParams,
    ) -> Result<(), ExecServerError>;

    async fn metadata(&self, params: FsGetMetadataParams) -> Result<FsMetadata, ExecServerError>;

    async fn canonicalize(&self, params: FsCanonicalizeParams) -> Result<PathUri, ExecServerError>;

    /// The entries of one directory, or a page of them if `limit` or `after` are given. Without `details` types are those of
    /// symlinks' targets, and a dangling symlink is left out.
    async fn read_directory_page(
        &self,
        params: FsReadDirectoryParams,
    ) -> Result<FsReadDirectoryResponse, ExecServerError>;

    /// The same for all entries from `after` on, however many there are: `limit` is the size of the pages in which they are
    /// read.
    async fn read_directory(
        &self,
        params: FsReadDirectoryParams,
    ) -> Result<Vec<DirectoryEntry>, ExecServerError> {
        let (mut entries, mut asked) = (Vec::new(), Some(params.in_pages()));
        while let Some(params) = asked {
            let page = self.read_directory_page(params.clone()).await?;
            asked = params.following(&page).map_err(Violation::PageOrder)?;
            entries.extend(page.entries);
        }
        Ok(entries)
    }

    /// The tree below a directory, as far as the options go.
    async fn walk(&self, params: FsWalkParams) -> Result<FsWalkResponse, ExecServerError>;

    /// The names below a directory that patterns match.
    async fn glob(&self, params: FsGlobParams) -> Result<FsWalkResponse, ExecServerError>;

    /// A symlink is removed, never its target.
    async fn remove(&self, params: FsRemoveParams) -> Result<(), ExecServerError>;

    /// Symlinks are copied as symlinks.
    async fn copy(&self, params: FsCopyParams) -> Result<(), ExecServerError>;

    async fn rename(&self, params: FsRenameParams) -> Result<(), ExecServerError>;

    async fn symlink(&self, params: FsSymlinkParams) -> Result<(), ExecServerError>;

    /// The target of a symlink, byte for byte.
    async fn read_link(&self, params: FsReadLinkParams) -> Result<OsString, ExecServerError>;

    async fn set_permissions(&self, params: FsSetPermissionsParams) -> Result<(), ExecServerError>;

    /// Opens a regular file for reading in blocks.
    async fn open(&self, params: FsOpenParams) -> Result<Box<dyn OpenFile>, ExecServerError>;

    /// Begins a file, to be written in blocks.
    async fn create(&self, params: FsCreateParams) -> Result<Box<dyn NewFile>, ExecServerError>;

    /// Reports changes of a file, or of a directory, until the watch is dropped.
    async fn watch(&self, params: FsWatchParams) -> Result<Box<dyn FileWatch>, ExecServerError>;

    /// Looks for lines in files. Returns with the first results, or at the end. Dropping the search ends it.
    async fn search(&self, params: FsSearchParams) -> Result<Box<dyn FileSearch>, ExecServerError>;

    /// A file of any size, a few blocks of it read ahead.
    async fn read_file_stream(&self, params: FsOpenParams) -> Result<FileReader, ExecServerError> {
        Ok(FileReader::new(self.open(params).await?))
    }

    /// A new file of any size. It takes its name with `shutdown`; before that nobody sees any of it.
    async fn write_file_stream(
        &self,
        params: FsCreateParams,
    ) -> Result<FileWriter, ExecServerError> {
        Ok(FileWriter::new(self.create(params).await?))
    }
}

/// A file that stays the one that was opened, whatever happens to its name. Dropping it closes it. It ends with the
/// connection on which it was opened.
#[async_trait]
pub trait OpenFile: Debug + Send + Sync {
    /// What it was when it was opened.
    fn metadata(&self) -> &FsMetadata;

    /// At most `len` bytes, and at most [`MAX_BLOCK_BYTES`](exec_server_protocol::MAX_BLOCK_BYTES).
    async fn read_block(
        &self,
        offset: u64,
        len: usize,
    ) -> Result<FsReadBlockResponse, ExecServerError>;
}

/// A file that is being written. Nobody sees it before [`Self::commit`]. It ends with the connection on which it was
/// begun. Dropping it discards it, unless it has a `resume_key`, by which what was written can be found again.
#[async_trait]
pub trait NewFile: Debug + Send + Sync {
    /// How far it was written before, if it was found by its `resume_key`. Blocks that were under way when that attempt
    /// ended may be missing before this place.
    fn written(&self) -> u64;

    /// At most [`MAX_BLOCK_BYTES`](exec_server_protocol::MAX_BLOCK_BYTES). Blocks may be written in any order,
    /// several at once.
    async fn write_block(&self, offset: u64, bytes: Bytes) -> Result<(), ExecServerError>;

    /// Resolves when the file has ended with its connection: nothing can be written any more.
    async fn lost(&self) -> ExecServerError {
        std::future::pending().await
    }

    /// Gives the file its name, in one step.
    async fn commit(self: Box<Self>) -> Result<FsCloseResponse, ExecServerError>;

    /// Takes it all back, and waits until that is done.
    async fn discard(self: Box<Self>) -> Result<(), ExecServerError>;
}

/// Changes below one path.
#[async_trait]
pub trait FileWatch: Debug + Send {
    /// The canonical form of what is watched.
    fn path(&self) -> &PathUri;

    /// What has changed since the last call, several changes together; an error is the last item. Cancel-safe.
    ///
    /// A watch outlives lost connections: what happened meanwhile is `rescan`.
    async fn next(&mut self) -> Option<Result<Changes, ExecServerError>>;
}

/// A search that runs.
#[async_trait]
pub trait FileSearch: Debug + Send {
    /// Several results together; `None` at the end, and after an error. Cancel-safe.
    async fn next(&mut self) -> Option<Result<Vec<SearchMatch>, ExecServerError>>;

    /// How the search went, once [`Self::next`] has come to the end.
    fn summary(&self) -> Option<FsSearchResponse>;
}

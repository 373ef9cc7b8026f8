//! The files of an environment, as callers see them. Params and results are those of the protocol: there is one
//! vocabulary, wherever the files are.

use std::ffi::OsString;
use std::fmt::Debug;

use async_trait::async_trait;
use bytes::Bytes;
use exec_server_client::{ExecServerError, NewFile, OpenFile, SearchResults, WatchEvents};
use exec_server_protocol::{
    DirectoryEntry, FsCanonicalizeParams, FsCopyParams, FsCreateDirectoryParams, FsCreateParams,
    FsGetMetadataParams, FsGlobParams, FsMetadata, FsOpenParams, FsReadDirectoryParams,
    FsReadDirectoryResponse, FsReadFileParams, FsReadLinkParams, FsRemoveParams, FsRenameParams,
    FsSearchParams, FsSetPermissionsParams, FsSymlinkParams, FsWalkParams, FsWalkResponse,
    FsWatchParams, FsWriteFileParams, FsWriteFileResponse, PathUri,
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
    ) -> Result<Vec<DirectoryEntry>, ExecServerError>;

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
    async fn open(&self, params: FsOpenParams) -> Result<OpenFile, ExecServerError>;

    /// Begins a file, to be written in blocks.
    async fn create(&self, params: FsCreateParams) -> Result<NewFile, ExecServerError>;

    /// Reports changes of a file, or of a directory, until the watch is dropped.
    async fn watch(&self, params: FsWatchParams) -> Result<WatchEvents, ExecServerError>;

    /// Looks for lines in files. Returns with the first results, or at the end. Dropping the search ends it.
    async fn search(&self, params: FsSearchParams) -> Result<SearchResults, ExecServerError>;

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

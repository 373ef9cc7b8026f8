//! The file API of an environment. Params and results are those of the protocol, so local and
//! remote files share one vocabulary.

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

/// Reads and changes the files of the machine on which an environment's processes run.
///
/// Every call may carry a sandbox policy; without one it has the rights of the server. The
/// implementation chooses the ids in the params (`handle_id`, `watch_id`, `search_id`) and ignores
/// those of callers.
///
/// Concurrent calls have no guaranteed order. If the connection is lost, a call that changes
/// something fails as [`ExecServerError::Interrupted`], and a call that only reads is repeated.
#[async_trait]
pub trait ExecutorFileSystem: Debug + Send + Sync {
    /// Reads a regular file that fits into one message, at most 47 MiB. For larger files see
    /// [`Self::read_file_stream`].
    async fn read_file(&self, params: FsReadFileParams) -> Result<Bytes, ExecServerError>;

    /// Replaces the content of a file, in place or atomically. If a condition in the params does
    /// not hold, fails with the kind `conflict`.
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

    /// Lists a directory, or one page of it with `limit` or `after`. Without `details`, entries
    /// have the types of symlink targets, and dangling symlinks are omitted.
    async fn read_directory_page(
        &self,
        params: FsReadDirectoryParams,
    ) -> Result<FsReadDirectoryResponse, ExecServerError>;

    /// Lists all entries of a directory, or those after `after`. They are read in pages of `limit`
    /// entries.
    async fn read_directory(
        &self,
        params: FsReadDirectoryParams,
    ) -> Result<Vec<DirectoryEntry>, ExecServerError>;

    /// Lists the tree below a directory, within the limits in `params`.
    async fn walk(&self, params: FsWalkParams) -> Result<FsWalkResponse, ExecServerError>;

    /// Lists the paths below a directory that match patterns.
    async fn glob(&self, params: FsGlobParams) -> Result<FsWalkResponse, ExecServerError>;

    /// Removes a file or directory. Removes a symlink, never its target.
    async fn remove(&self, params: FsRemoveParams) -> Result<(), ExecServerError>;

    /// Copies files or directories. Symlinks are copied as symlinks.
    async fn copy(&self, params: FsCopyParams) -> Result<(), ExecServerError>;

    async fn rename(&self, params: FsRenameParams) -> Result<(), ExecServerError>;

    async fn symlink(&self, params: FsSymlinkParams) -> Result<(), ExecServerError>;

    /// Returns the target of a symlink, byte for byte.
    async fn read_link(&self, params: FsReadLinkParams) -> Result<OsString, ExecServerError>;

    async fn set_permissions(&self, params: FsSetPermissionsParams) -> Result<(), ExecServerError>;

    /// Opens a regular file for reading in blocks.
    async fn open(&self, params: FsOpenParams) -> Result<OpenFile, ExecServerError>;

    /// Creates a file, to be written in blocks.
    async fn create(&self, params: FsCreateParams) -> Result<NewFile, ExecServerError>;

    /// Reports changes to a file or directory until the watch is dropped.
    async fn watch(&self, params: FsWatchParams) -> Result<WatchEvents, ExecServerError>;

    /// Searches the lines of files. Returns once there are results or the search is over. Dropping
    /// the results ends the search.
    async fn search(&self, params: FsSearchParams) -> Result<SearchResults, ExecServerError>;

    /// Opens a file of any size for streaming, with a few blocks of read-ahead.
    async fn read_file_stream(&self, params: FsOpenParams) -> Result<FileReader, ExecServerError> {
        Ok(FileReader::new(self.open(params).await?))
    }

    /// Opens a new file of any size for streaming. The file appears under its path only once
    /// `shutdown` succeeds.
    async fn write_file_stream(
        &self,
        params: FsCreateParams,
    ) -> Result<FileWriter, ExecServerError> {
        Ok(FileWriter::new(self.create(params).await?))
    }
}

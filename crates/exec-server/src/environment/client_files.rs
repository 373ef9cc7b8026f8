//! The files that a client has access to, of this machine or another.

use std::ffi::OsString;

use async_trait::async_trait;
use bytes::Bytes;
use exec_server_client::{
    Changes, ExecServerClient, ExecServerError, SearchResults, Violation, WatchEvents,
};
use exec_server_protocol::{
    FsCanonicalizeParams, FsCloseResponse, FsCopyParams, FsCreateDirectoryParams, FsCreateParams,
    FsGetMetadataParams, FsGlobParams, FsMetadata, FsOpenParams, FsReadBlockResponse,
    FsReadDirectoryParams, FsReadDirectoryResponse, FsReadFileParams, FsReadLinkParams,
    FsRemoveParams, FsRenameParams, FsSearchParams, FsSearchResponse, FsSetPermissionsParams,
    FsSymlinkParams, FsWalkParams, FsWalkResponse, FsWatchParams, FsWriteFileParams,
    FsWriteFileResponse, PathUri, SearchMatch,
};

use super::file_system::{ExecutorFileSystem, FileSearch, FileWatch, NewFile, OpenFile};

#[async_trait]
impl ExecutorFileSystem for ExecServerClient {
    async fn read_file(&self, params: FsReadFileParams) -> Result<Bytes, ExecServerError> {
        Ok(self.fs_read_file(params).await?.data_base64.into_bytes())
    }

    async fn write_file(
        &self,
        params: FsWriteFileParams,
    ) -> Result<FsWriteFileResponse, ExecServerError> {
        self.fs_write_file(params).await
    }

    async fn create_directory(
        &self,
        params: FsCreateDirectoryParams,
    ) -> Result<(), ExecServerError> {
        self.fs_create_directory(params).await.map(drop)
    }

    async fn metadata(&self, params: FsGetMetadataParams) -> Result<FsMetadata, ExecServerError> {
        self.fs_get_metadata(params).await
    }

    async fn canonicalize(&self, params: FsCanonicalizeParams) -> Result<PathUri, ExecServerError> {
        Ok(self.fs_canonicalize(params).await?.path)
    }

    async fn read_directory_page(
        &self,
        params: FsReadDirectoryParams,
    ) -> Result<FsReadDirectoryResponse, ExecServerError> {
        let directory = params.path.clone();
        Ok(self.fs_read_directory(params).await?.with_paths(&directory))
    }

    async fn walk(&self, params: FsWalkParams) -> Result<FsWalkResponse, ExecServerError> {
        self.fs_walk(params).await
    }

    async fn glob(&self, params: FsGlobParams) -> Result<FsWalkResponse, ExecServerError> {
        self.fs_glob(params).await
    }

    async fn remove(&self, params: FsRemoveParams) -> Result<(), ExecServerError> {
        self.fs_remove(params).await.map(drop)
    }

    async fn copy(&self, params: FsCopyParams) -> Result<(), ExecServerError> {
        self.fs_copy(params).await.map(drop)
    }

    async fn rename(&self, params: FsRenameParams) -> Result<(), ExecServerError> {
        self.fs_rename(params).await.map(drop)
    }

    async fn symlink(&self, params: FsSymlinkParams) -> Result<(), ExecServerError> {
        self.fs_symlink(params).await.map(drop)
    }

    async fn read_link(&self, params: FsReadLinkParams) -> Result<OsString, ExecServerError> {
        let response = self.fs_read_link(params).await?;
        response.link_target().map_err(|error| Violation::LinkTarget(error).into())
    }

    async fn set_permissions(&self, params: FsSetPermissionsParams) -> Result<(), ExecServerError> {
        self.fs_set_permissions(params).await.map(drop)
    }

    async fn open(&self, mut params: FsOpenParams) -> Result<Box<dyn OpenFile>, ExecServerError> {
        params.details = true;
        let FsOpenParams { path, follow_symlinks, sandbox, .. } = params.clone();
        let file = self.open_file(params).await?;
        let metadata = match file.metadata() {
            Some(metadata) => *metadata,
            // A server that does not know details of handles: the name is the next best thing.
            None => self.metadata(FsGetMetadataParams { path, follow_symlinks, sandbox }).await?,
        };
        Ok(Box::new(ClientFile { file, metadata }))
    }

    async fn create(&self, params: FsCreateParams) -> Result<Box<dyn NewFile>, ExecServerError> {
        Ok(Box::new(ClientNewFile(self.create_file(params).await?)))
    }

    async fn watch(&self, params: FsWatchParams) -> Result<Box<dyn FileWatch>, ExecServerError> {
        Ok(Box::new(ClientWatch(ExecServerClient::watch(self, params).await?)))
    }

    async fn search(&self, params: FsSearchParams) -> Result<Box<dyn FileSearch>, ExecServerError> {
        Ok(Box::new(ClientSearch(ExecServerClient::search(self, params).await?)))
    }
}

#[derive(Debug)]
struct ClientFile {
    file: exec_server_client::OpenFile,
    metadata: FsMetadata,
}

#[async_trait]
impl OpenFile for ClientFile {
    fn metadata(&self) -> &FsMetadata {
        &self.metadata
    }

    async fn read_block(
        &self,
        offset: u64,
        len: usize,
    ) -> Result<FsReadBlockResponse, ExecServerError> {
        self.file.read_block(offset, len).await
    }
}

#[derive(Debug)]
struct ClientNewFile(exec_server_client::NewFile);

#[async_trait]
impl NewFile for ClientNewFile {
    fn written(&self) -> u64 {
        self.0.written()
    }

    async fn write_block(&self, offset: u64, bytes: Bytes) -> Result<(), ExecServerError> {
        self.0.write_block(offset, bytes).await
    }

    async fn lost(&self) -> ExecServerError {
        self.0.lost().await
    }

    async fn commit(self: Box<Self>) -> Result<FsCloseResponse, ExecServerError> {
        self.0.commit().await
    }

    async fn discard(self: Box<Self>) -> Result<(), ExecServerError> {
        self.0.discard().await
    }
}

#[derive(Debug)]
struct ClientWatch(WatchEvents);

#[async_trait]
impl FileWatch for ClientWatch {
    fn path(&self) -> &PathUri {
        self.0.path()
    }

    async fn next(&mut self) -> Option<Result<Changes, ExecServerError>> {
        self.0.next().await
    }
}

#[derive(Debug)]
struct ClientSearch(SearchResults);

#[async_trait]
impl FileSearch for ClientSearch {
    async fn next(&mut self) -> Option<Result<Vec<SearchMatch>, ExecServerError>> {
        self.0.next().await
    }

    fn summary(&self) -> Option<FsSearchResponse> {
        self.0.summary()
    }
}

//! Implements the file API with a client, whose server may be local or remote.

use std::ffi::OsString;

use async_trait::async_trait;
use bytes::Bytes;
use exec_server_client::{
    ExecServerClient, ExecServerError, NewFile, OpenFile, SearchResults, Violation, WatchEvents,
};
use exec_server_protocol::{
    DirectoryEntry, FsCanonicalizeParams, FsCopyParams, FsCreateDirectoryParams, FsCreateParams,
    FsGetMetadataParams, FsGlobParams, FsMetadata, FsOpenParams, FsReadDirectoryParams,
    FsReadDirectoryResponse, FsReadFileParams, FsReadLinkParams, FsRemoveParams, FsRenameParams,
    FsSearchParams, FsSetPermissionsParams, FsSymlinkParams, FsWalkParams, FsWalkResponse,
    FsWatchParams, FsWriteFileParams, FsWriteFileResponse, PathUri,
};

use super::file_system::ExecutorFileSystem;

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

    async fn read_directory(
        &self,
        params: FsReadDirectoryParams,
    ) -> Result<Vec<DirectoryEntry>, ExecServerError> {
        self.list_directory(params).await
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

    async fn open(&self, params: FsOpenParams) -> Result<OpenFile, ExecServerError> {
        self.open_file(params).await
    }

    async fn create(&self, params: FsCreateParams) -> Result<NewFile, ExecServerError> {
        self.create_file(params).await
    }

    async fn watch(&self, params: FsWatchParams) -> Result<WatchEvents, ExecServerError> {
        ExecServerClient::watch(self, params).await
    }

    async fn search(&self, params: FsSearchParams) -> Result<SearchResults, ExecServerError> {
        ExecServerClient::search(self, params).await
    }
}

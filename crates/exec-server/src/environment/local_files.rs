//! The files of this machine: straight into the server, without a connection and without JSON.

use std::ffi::OsString;
use std::fmt;
use std::pin::Pin;

use async_trait::async_trait;
use bytes::Bytes;
use exec_server_client::{Changes, ExecServerError, Violation};
use exec_server_protocol::{
    FsCanonicalizeParams, FsCloseResponse, FsCopyParams, FsCreateDirectoryParams, FsCreateParams,
    FsGetMetadataParams, FsGlobParams, FsMetadata, FsOpenParams, FsReadBlockResponse,
    FsReadDirectoryParams, FsReadDirectoryResponse, FsReadFileParams, FsReadLinkParams,
    FsRemoveParams, FsRenameParams, FsSearchParams, FsSearchResponse, FsSetPermissionsParams,
    FsSymlinkParams, FsWalkParams, FsWalkResponse, FsWatchParams, FsWriteFileParams,
    FsWriteFileResponse, PathUri, RpcError, SearchMatch,
};
use exec_server_server::{LocalChanges, LocalSearch};

use super::file_system::{ExecutorFileSystem, FileSearch, FileWatch, NewFile, OpenFile};

/// The files of this machine, under the same rules as those of a server.
#[derive(Debug, Clone)]
pub struct LocalFileSystem {
    files: exec_server_server::LocalFileSystem,
}

impl LocalFileSystem {
    /// Of a session of this program.
    #[must_use]
    pub fn new(files: exec_server_server::LocalFileSystem) -> Self {
        Self { files }
    }
}

fn answer<T>(answer: Result<T, RpcError>) -> Result<T, ExecServerError> {
    answer.map_err(ExecServerError::Server)
}

#[async_trait]
impl ExecutorFileSystem for LocalFileSystem {
    async fn read_file(&self, params: FsReadFileParams) -> Result<Bytes, ExecServerError> {
        Ok(answer(self.files.read_file(params).await)?.data_base64.0)
    }

    async fn write_file(
        &self,
        params: FsWriteFileParams,
    ) -> Result<FsWriteFileResponse, ExecServerError> {
        answer(self.files.write_file(params).await)
    }

    async fn create_directory(
        &self,
        params: FsCreateDirectoryParams,
    ) -> Result<(), ExecServerError> {
        answer(self.files.create_directory(params).await).map(drop)
    }

    async fn metadata(&self, params: FsGetMetadataParams) -> Result<FsMetadata, ExecServerError> {
        answer(self.files.get_metadata(params).await)
    }

    async fn canonicalize(&self, params: FsCanonicalizeParams) -> Result<PathUri, ExecServerError> {
        Ok(answer(self.files.canonicalize(params).await)?.path)
    }

    async fn read_directory_page(
        &self,
        params: FsReadDirectoryParams,
    ) -> Result<FsReadDirectoryResponse, ExecServerError> {
        answer(self.files.read_directory(params).await)
    }

    async fn walk(&self, params: FsWalkParams) -> Result<FsWalkResponse, ExecServerError> {
        answer(self.files.walk(params).await)
    }

    async fn glob(&self, params: FsGlobParams) -> Result<FsWalkResponse, ExecServerError> {
        answer(self.files.glob(params).await)
    }

    async fn remove(&self, params: FsRemoveParams) -> Result<(), ExecServerError> {
        answer(self.files.remove(params).await).map(drop)
    }

    async fn copy(&self, params: FsCopyParams) -> Result<(), ExecServerError> {
        answer(self.files.copy(params).await).map(drop)
    }

    async fn rename(&self, params: FsRenameParams) -> Result<(), ExecServerError> {
        answer(self.files.rename(params).await).map(drop)
    }

    async fn symlink(&self, params: FsSymlinkParams) -> Result<(), ExecServerError> {
        answer(self.files.symlink(params).await).map(drop)
    }

    async fn read_link(&self, params: FsReadLinkParams) -> Result<OsString, ExecServerError> {
        let response = answer(self.files.read_link(params).await)?;
        response.link_target().map_err(|error| Violation::LinkTarget(error).into())
    }

    async fn set_permissions(&self, params: FsSetPermissionsParams) -> Result<(), ExecServerError> {
        answer(self.files.set_permissions(params).await).map(drop)
    }

    async fn open(&self, params: FsOpenParams) -> Result<Box<dyn OpenFile>, ExecServerError> {
        Ok(Box::new(LocalFile(answer(self.files.open(params).await)?)))
    }

    async fn create(&self, params: FsCreateParams) -> Result<Box<dyn NewFile>, ExecServerError> {
        Ok(Box::new(LocalNewFile(answer(self.files.create(params).await)?)))
    }

    async fn watch(&self, params: FsWatchParams) -> Result<Box<dyn FileWatch>, ExecServerError> {
        Ok(Box::new(LocalWatch(answer(self.files.watch(params).await)?)))
    }

    async fn search(&self, params: FsSearchParams) -> Result<Box<dyn FileSearch>, ExecServerError> {
        let running = answer(self.files.search(params).await)?;
        let mut search = Search { state: State::Running(running), first: None };
        // As elsewhere: a search that cannot begin is an error of the call.
        search.first = search.next().await.transpose()?;
        Ok(Box::new(search))
    }
}

#[derive(Debug)]
struct LocalFile(exec_server_server::LocalFile);

#[async_trait]
impl OpenFile for LocalFile {
    fn metadata(&self) -> &FsMetadata {
        self.0.metadata()
    }

    async fn read_block(
        &self,
        offset: u64,
        len: usize,
    ) -> Result<FsReadBlockResponse, ExecServerError> {
        let len = u64::try_from(len).unwrap_or(u64::MAX);
        answer(self.0.read_block(offset, len).await)
    }
}

#[derive(Debug)]
struct LocalNewFile(exec_server_server::LocalNewFile);

#[async_trait]
impl NewFile for LocalNewFile {
    fn written(&self) -> u64 {
        self.0.written()
    }

    async fn write_block(&self, offset: u64, bytes: Bytes) -> Result<(), ExecServerError> {
        answer(self.0.write_block(offset, bytes).await)
    }

    async fn commit(self: Box<Self>) -> Result<FsCloseResponse, ExecServerError> {
        answer(self.0.commit().await)
    }

    async fn discard(self: Box<Self>) -> Result<(), ExecServerError> {
        answer(self.0.discard().await)
    }
}

#[derive(Debug)]
struct LocalWatch(exec_server_server::LocalWatch);

#[async_trait]
impl FileWatch for LocalWatch {
    fn path(&self) -> &PathUri {
        self.0.path()
    }

    async fn next(&mut self) -> Option<Result<Changes, ExecServerError>> {
        let LocalChanges { changes, rescan } = self.0.next().await?;
        Some(Ok(Changes { changes, rescan }))
    }
}

#[derive(Debug)]
struct Search {
    state: State,
    /// Found before anybody asked.
    first: Option<Vec<SearchMatch>>,
}

enum State {
    Running(LocalSearch),
    /// Nothing more is found; how it went is about to be known.
    Ending(Pin<Box<dyn Future<Output = Result<FsSearchResponse, RpcError>> + Send>>),
    Over(Option<FsSearchResponse>),
}

#[async_trait]
impl FileSearch for Search {
    async fn next(&mut self) -> Option<Result<Vec<SearchMatch>, ExecServerError>> {
        if let Some(first) = self.first.take() {
            return Some(Ok(first));
        }
        if let State::Running(search) = &mut self.state {
            if let Some(found) = search.next().await {
                return Some(Ok(found));
            }
            if let State::Running(search) = std::mem::replace(&mut self.state, State::Over(None)) {
                self.state = State::Ending(Box::pin(search.finish()));
            }
        }
        if let State::Ending(ending) = &mut self.state {
            let ended = ending.as_mut().await;
            self.state = State::Over(ended.as_ref().ok().copied());
            return ended.err().map(|error| Err(ExecServerError::Server(error)));
        }
        None
    }

    fn summary(&self) -> Option<FsSearchResponse> {
        match self.state {
            State::Over(summary) if self.first.is_none() => summary,
            State::Over(_) | State::Running(_) | State::Ending(_) => None,
        }
    }
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Running(_) => "Running",
            Self::Ending(_) => "Ending",
            Self::Over(_) => "Over",
        })
    }
}

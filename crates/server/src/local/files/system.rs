//! The files of this machine for the program that the server is part of: the same rules, without a connection.

use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use exec_server_host::fs::{OpenFile, Stop};
use exec_server_protocol::{
    Base64Bytes, FsCloseResponse, FsCreateParams, FsMetadata, FsOpenParams, FsReadBlockResponse,
    FsReadFileParams, FsReadFileResponse, FsSearchParams, FsSearchResponse, FsWatchParams, Rpc,
    RpcError, SearchMatch, rpc,
};
use tokio::sync::{mpsc, oneshot};

use super::handles::{Upload, check_block_len, open, read_block};
use super::operations::FileCall;
use super::reading::Reading;
use super::searching::Searching;
use super::watching::{LocalWatch, Watches};
use super::work::{Admitted, FileWork, Lane, Sandboxed};

/// Batches of a search that may wait for their reader.
const QUEUED_BATCHES: usize = 4;

/// Reads and changes files. Clones share threads and the kernel's queue of changes.
#[derive(Debug, Clone)]
pub struct LocalFileSystem {
    files: FileWork,
    searches: FileWork,
    watches: Arc<Watches>,
}

impl LocalFileSystem {
    pub(crate) fn new(files: FileWork, searches: FileWork) -> Self {
        Self { files, searches, watches: Arc::default() }
    }

    pub async fn read_file(
        &self,
        params: FsReadFileParams,
    ) -> Result<FsReadFileResponse, RpcError> {
        self.run(params, move |admitted| {
            let content = match Reading::begin(&admitted)? {
                Reading::Done(content) => content,
                Reading::Large(file) => {
                    let mut content = Vec::with_capacity(file.expected_bytes());
                    file.finish(&mut |piece| {
                        content.extend_from_slice(piece);
                        Ok(())
                    })?;
                    content
                }
            };
            Ok(FsReadFileResponse { data_base64: content.into() })
        })
        .await
    }

    /// Opens a regular file for reading in blocks. The handle's id has no meaning here.
    pub async fn open(&self, params: FsOpenParams) -> Result<LocalFile, RpcError> {
        self.run(params, move |admitted| {
            let (file, metadata) = open(&admitted)?;
            Ok(LocalFile { file: Arc::new(file), metadata, lane: admitted.lane })
        })
        .await
    }

    /// Begins a file that takes its name when it is committed. The handle's id has no meaning here.
    pub async fn create(&self, params: FsCreateParams) -> Result<LocalNewFile, RpcError> {
        self.run(params, move |admitted| {
            Ok(LocalNewFile { upload: Arc::new(Upload::create(admitted)?) })
        })
        .await
    }

    /// Reports changes until it is dropped. The watch's id has no meaning here.
    pub async fn watch(&self, params: FsWatchParams) -> Result<LocalWatch, RpcError> {
        let watches = Arc::clone(&self.watches);
        let prepare = move || watches.prepare();
        self.files.free().compute(prepare).await.unwrap_or_else(|| Err(abandoned()))?;
        let watches = Arc::clone(&self.watches);
        self.run(params, move |admitted| watches.watch(admitted)).await
    }

    /// Begins a search, which ends when it is dropped. Its id has no meaning here.
    pub async fn search(&self, params: FsSearchParams) -> Result<LocalSearch, RpcError> {
        let (batches, found) = mpsc::channel(QUEUED_BATCHES);
        let (report, outcome) = oneshot::channel();
        let cancelled = Arc::new(AtomicBool::new(false));
        let cancelled_too = Arc::clone(&cancelled);
        let (checked, begun) = oneshot::channel();
        self.searches.run(params, move |admitted| {
            let searching = match admitted.and_then(Searching::new) {
                Ok(searching) => searching,
                Err(error) => return drop(checked.send(Err(error))),
            };
            let _ = checked.send(Ok(()));
            let ended = searching.run(&cancelled_too, |batch| match batches.blocking_send(batch) {
                Ok(()) => ControlFlow::Continue(()),
                Err(_) => ControlFlow::Break(()),
            });
            drop(batches);
            let _ = report.send(ended);
        });
        begun.await.unwrap_or_else(|_| Err(abandoned()))?;
        Ok(LocalSearch { found, outcome: Some(outcome), cancelled })
    }

    async fn call<M: FileCall>(&self, params: M::Params) -> Result<M::Response, RpcError> {
        self.run(params, |admitted| M::run(admitted, &Stop::never())).await
    }

    async fn run<P: Sandboxed + Send + 'static, T: Send + 'static>(
        &self,
        params: P,
        work: impl FnOnce(Admitted<P>) -> Result<T, RpcError> + Send + 'static,
    ) -> Result<T, RpcError> {
        let outcome = self.files.compute(params, work).await;
        outcome.unwrap_or_else(|| Err(abandoned()))
    }
}

macro_rules! calls {
    ($($function:ident: $name:ident,)*) => {
        /// The methods that are one piece of work.
        impl LocalFileSystem {
            $(
                pub async fn $function(
                    &self,
                    params: <rpc::$name as Rpc>::Params,
                ) -> Result<<rpc::$name as Rpc>::Response, RpcError> {
                    self.call::<rpc::$name>(params).await
                }
            )*
        }
    };
}

calls! {
    write_file: FsWriteFile,
    create_directory: FsCreateDirectory,
    get_metadata: FsGetMetadata,
    canonicalize: FsCanonicalize,
    read_directory: FsReadDirectory,
    walk: FsWalk,
    glob: FsGlob,
    remove: FsRemove,
    copy: FsCopy,
    rename: FsRename,
    symlink: FsSymlink,
    read_link: FsReadLink,
    set_permissions: FsSetPermissions,
}

/// A file that stays the one that was opened, whatever happens to its name.
pub struct LocalFile {
    file: Arc<OpenFile>,
    metadata: FsMetadata,
    lane: Lane,
}

impl LocalFile {
    /// What was opened.
    #[must_use]
    pub fn metadata(&self) -> &FsMetadata {
        &self.metadata
    }

    pub async fn read_block(&self, offset: u64, len: u64) -> Result<FsReadBlockResponse, RpcError> {
        let len = check_block_len(len)?;
        let file = Arc::clone(&self.file);
        run_on(&self.lane, move || {
            let (bytes, eof) = read_block(&file, offset, len)?;
            Ok(FsReadBlockResponse { chunk: Base64Bytes::from(bytes), eof })
        })
        .await
    }
}

impl fmt::Debug for LocalFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalFile").field("metadata", &self.metadata).finish_non_exhaustive()
    }
}

/// A file that is being written. Dropping it discards it, as far as it has no key by which it can be found again.
#[derive(Debug)]
pub struct LocalNewFile {
    upload: Arc<Upload>,
}

impl LocalNewFile {
    /// How much an earlier attempt with the same key has left.
    #[must_use]
    pub fn written(&self) -> u64 {
        self.upload.written_before()
    }

    pub async fn write_block(&self, offset: u64, bytes: Bytes) -> Result<(), RpcError> {
        let block = Arc::clone(&self.upload).expect_block();
        run_on(self.upload.lane(), move || block.write(offset, &bytes)).await
    }

    /// Gives the file its name.
    pub async fn commit(self) -> Result<FsCloseResponse, RpcError> {
        let upload = Arc::clone(&self.upload);
        run_on(self.upload.lane(), move || upload.commit()).await
    }

    pub async fn discard(self) -> Result<(), RpcError> {
        let upload = Arc::clone(&self.upload);
        run_on(self.upload.lane(), move || {
            upload.discard();
            Ok(())
        })
        .await
    }
}

impl Drop for LocalNewFile {
    fn drop(&mut self) {
        let upload = Arc::clone(&self.upload);
        self.upload.lane().run(move |_| upload.abandon());
    }
}

/// A search that runs.
#[derive(Debug)]
pub struct LocalSearch {
    found: mpsc::Receiver<Vec<SearchMatch>>,
    outcome: Option<oneshot::Receiver<Result<FsSearchResponse, RpcError>>>,
    cancelled: Arc<AtomicBool>,
}

impl LocalSearch {
    /// The next matches; `None` when the search is over. Cancel-safe.
    pub async fn next(&mut self) -> Option<Vec<SearchMatch>> {
        self.found.recv().await
    }

    /// How it ended. What has not been taken until now is left out.
    pub async fn finish(mut self) -> Result<FsSearchResponse, RpcError> {
        while self.found.recv().await.is_some() {}
        match self.outcome.take() {
            Some(outcome) => outcome.await.unwrap_or_else(|_| Err(abandoned())),
            None => Err(abandoned()),
        }
    }
}

impl Drop for LocalSearch {
    fn drop(&mut self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }
}

async fn run_on<T: Send + 'static>(
    lane: &Lane,
    work: impl FnOnce() -> Result<T, RpcError> + Send + 'static,
) -> Result<T, RpcError> {
    let (report, outcome) = oneshot::channel();
    lane.run(move |kept| drop(report.send(kept.and_then(|()| work()))));
    outcome.await.unwrap_or_else(|_| Err(abandoned()))
}

fn abandoned() -> RpcError {
    RpcError::internal("work on a file was abandoned")
}

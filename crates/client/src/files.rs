//! Files on the server, open for reading or writing in blocks. Their handles end with the
//! connection.

use bytes::Bytes;
use exec_server_protocol::{
    FsCloseParams, FsCloseResponse, FsCreateParams, FsGetMetadataParams, FsMetadata, FsOpenParams,
    FsReadBlockParams, FsReadBlockResponse, FsWriteBlockParams, Method, Rpc, rpc,
};

use crate::calls::MAX_LOSSES;
use crate::leases::{FilePurpose, LeaseHandle, NoItems, Target};
use crate::{ExecServerClient, ExecServerError};

/// An open file. It refers to the file that was opened, even if that file is renamed or replaced
/// later. Dropping the handle closes it. The handle ends with its connection.
#[derive(Debug)]
pub struct OpenFile {
    handle: Handle,
    metadata: FsMetadata,
}

/// A file being written. It appears under its path only once [`Self::commit`] succeeds. Dropping
/// the `NewFile`, or losing the connection, discards the data, unless the file has a `resume_key`:
/// then the server keeps the data for a later attempt.
#[derive(Debug)]
pub struct NewFile {
    handle: Handle,
    written: u64,
}

#[derive(Debug)]
struct Handle(LeaseHandle<NoItems>);

impl ExecServerClient {
    /// Opens a regular file for reading in blocks. Chooses the `handle_id` and always asks for
    /// `details`.
    pub async fn open_file(&self, mut params: FsOpenParams) -> Result<OpenFile, ExecServerError> {
        let target = |inbox| Target::File { inbox, purpose: FilePurpose::Read };
        params.details = true;
        let mut losses = 0;
        loop {
            let (handle, lease) = LeaseHandle::new(self, NoItems, target);
            params.handle_id = handle.id().to_owned();
            match self.lease::<rpc::FsOpen>(params.clone(), lease).await?.answer().await {
                Ok(opened) => {
                    let metadata = match opened.metadata {
                        Some(metadata) => metadata,
                        None => self.metadata_by_path(params).await?,
                    };
                    return Ok(OpenFile { handle: Handle(handle), metadata });
                }
                // The lost connection closed the handle, so another attempt is safe.
                Err(ExecServerError::Interrupted { .. }) if losses < MAX_LOSSES => losses += 1,
                Err(error) => return Err(error),
            }
        }
    }

    /// Reads the metadata by path, for servers that do not support `details`.
    async fn metadata_by_path(&self, params: FsOpenParams) -> Result<FsMetadata, ExecServerError> {
        let FsOpenParams { path, follow_symlinks, sandbox, .. } = params;
        self.fs_get_metadata(FsGetMetadataParams { path, follow_symlinks, sandbox }).await
    }

    /// Creates a file to be written in blocks. Chooses the `handle_id`.
    pub async fn create_file(
        &self,
        mut params: FsCreateParams,
    ) -> Result<NewFile, ExecServerError> {
        let target = |inbox| Target::File { inbox, purpose: FilePurpose::Write };
        let (handle, lease) = LeaseHandle::new(self, NoItems, target);
        params.handle_id = handle.id().to_owned();
        let created = self.lease::<rpc::FsCreate>(params, lease).await?.answer().await?;
        Ok(NewFile { handle: Handle(handle), written: created.size.unwrap_or(0) })
    }
}

impl OpenFile {
    /// The file's metadata at the time it was opened.
    #[must_use]
    pub fn metadata(&self) -> &FsMetadata {
        &self.metadata
    }

    /// Reads at most `len` bytes, and at most 1 MiB.
    pub async fn read_block(
        &self,
        offset: u64,
        len: usize,
    ) -> Result<FsReadBlockResponse, ExecServerError> {
        let len = u64::try_from(len).unwrap_or(u64::MAX);
        let params = FsReadBlockParams { handle_id: self.handle.id(), offset, len };
        self.handle.call::<rpc::FsReadBlock>(params).await
    }
}

impl NewFile {
    /// The length written by earlier attempts under the same `resume_key`. Blocks that were in
    /// flight when such an attempt ended may be missing below this length.
    #[must_use]
    pub fn written(&self) -> u64 {
        self.written
    }

    /// Writes at most 1 MiB. Blocks may be written in any order, and concurrently.
    pub async fn write_block(&self, offset: u64, bytes: Bytes) -> Result<(), ExecServerError> {
        let chunk = bytes.into();
        let params = FsWriteBlockParams { handle_id: self.handle.id(), offset, chunk };
        self.handle.call::<rpc::FsWriteBlock>(params).await.map(drop)
    }

    /// Resolves when the connection, and with it the handle, is lost. No further write is possible.
    pub async fn lost(&self) -> ExecServerError {
        lost_error::<rpc::FsWriteBlock>(self.handle.0.over().await)
    }

    /// Makes the file appear under its path. Fails with [`ExecServerError::Interrupted`] if the
    /// outcome is unknown.
    pub async fn commit(self) -> Result<FsCloseResponse, ExecServerError> {
        let closed = self.close(false).await?;
        match closed.committed {
            true => Ok(closed),
            // The server does not know the handle: it belonged to a lost connection.
            false => Err(ExecServerError::Interrupted { method: Method::FsClose.name() }),
        }
    }

    /// Discards all data, including that of earlier attempts under the same `resume_key`.
    pub async fn discard(self) -> Result<(), ExecServerError> {
        self.close(true).await.map(drop)
    }

    async fn close(self, discard: bool) -> Result<FsCloseResponse, ExecServerError> {
        let params = FsCloseParams { handle_id: self.handle.id(), discard, keep: false };
        let closed = self.handle.call::<rpc::FsClose>(params).await?;
        self.handle.0.release();
        Ok(closed)
    }
}

impl Handle {
    fn id(&self) -> String {
        self.0.id().to_owned()
    }

    /// Fails as soon as the connection is lost. Waiting for the next connection would be pointless:
    /// the handle does not exist there.
    async fn call<R: Rpc>(&self, params: R::Params) -> Result<R::Response, ExecServerError> {
        let answer = tokio::select! {
            biased;
            answer = self.0.client().call::<R>(params) => answer,
            error = self.0.over() => return Err(lost_error::<R>(error)),
        };
        match answer {
            // The next connection was made before this future was polled; the handle does not
            // exist there.
            Err(ExecServerError::Server(_)) if self.0.is_over() => Err(lost_error::<R>(None)),
            answer => answer,
        }
    }
}

/// Returns the error of a call whose handle ended with its connection.
fn lost_error<R: Rpc>(end: Option<ExecServerError>) -> ExecServerError {
    match end {
        Some(error @ (ExecServerError::Closed | ExecServerError::Disconnected(_))) => error,
        _ => ExecServerError::Interrupted { method: R::METHOD.name() },
    }
}

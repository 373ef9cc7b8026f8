//! Files at the server that are open for reading or writing in blocks. They end with their connection.

use bytes::Bytes;
use exec_server_protocol::{
    FsCloseParams, FsCloseResponse, FsCreateParams, FsGetMetadataParams, FsMetadata, FsOpenParams,
    FsReadBlockParams, FsReadBlockResponse, FsWriteBlockParams, Method, Rpc, rpc,
};

use crate::calls::MAX_LOSSES;
use crate::leases::{FilePurpose, LeaseHandle, NoItems, Target};
use crate::{ExecServerClient, ExecServerError};

/// A file that stays the one that was opened, whatever happens to its name. Dropping it closes it. It ends with the
/// connection on which it was opened.
#[derive(Debug)]
pub struct OpenFile {
    handle: Handle,
    metadata: FsMetadata,
}

/// A file that is being written and takes its name with [`Self::commit`]; nobody sees any of it before. It ends with
/// the connection on which it was begun. Dropping it discards it, unless it has a `resume_key`: then the server keeps
/// it for a later attempt.
#[derive(Debug)]
pub struct NewFile {
    handle: Handle,
    written: u64,
}

#[derive(Debug)]
struct Handle(LeaseHandle<NoItems>);

impl ExecServerClient {
    /// Opens a regular file for reading in blocks. The `handle_id` is chosen here, and `details` are always asked for.
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
                        None => self.metadata_by_name(params).await?,
                    };
                    return Ok(OpenFile { handle: Handle(handle), metadata });
                }
                // Nothing is left of it, so nothing speaks against another attempt.
                Err(ExecServerError::Interrupted { .. }) if losses < MAX_LOSSES => losses += 1,
                Err(error) => return Err(error),
            }
        }
    }

    /// For a server that does not know details of handles: the name is the next best thing.
    async fn metadata_by_name(&self, params: FsOpenParams) -> Result<FsMetadata, ExecServerError> {
        let FsOpenParams { path, follow_symlinks, sandbox, .. } = params;
        self.fs_get_metadata(FsGetMetadataParams { path, follow_symlinks, sandbox }).await
    }

    /// Begins a new file, to be written in blocks. The `handle_id` is chosen here.
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
    /// The file's metadata when it was opened.
    #[must_use]
    pub fn metadata(&self) -> &FsMetadata {
        &self.metadata
    }

    /// At most `len` bytes, and at most 1 MiB.
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
    /// How far it was written before under the same `resume_key`. What was under way at the end of that attempt may be
    /// missing before this place.
    #[must_use]
    pub fn written(&self) -> u64 {
        self.written
    }

    /// Writes at most 1 MiB. Blocks may be written in any order, several at once.
    pub async fn write_block(&self, offset: u64, bytes: Bytes) -> Result<(), ExecServerError> {
        let chunk = bytes.into();
        let params = FsWriteBlockParams { handle_id: self.handle.id(), offset, chunk };
        self.handle.call::<rpc::FsWriteBlock>(params).await.map(drop)
    }

    /// Resolves when the connection is lost, and the handle with it: nothing can be written any more.
    pub async fn lost(&self) -> ExecServerError {
        lost_error::<rpc::FsWriteBlock>(self.handle.0.over().await)
    }

    /// Gives the file its name. Fails as [`ExecServerError::Interrupted`] if nobody knows whether it has it.
    pub async fn commit(self) -> Result<FsCloseResponse, ExecServerError> {
        let closed = self.close(false).await?;
        match closed.committed {
            true => Ok(closed),
            // The server does not know the handle: it was of a connection that is gone.
            false => Err(ExecServerError::Interrupted { method: Method::FsClose.name() }),
        }
    }

    /// Takes it all back, also what was found by the `resume_key`.
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

    /// Fails when the connection is lost, without waiting for the next one: the handle does not live there.
    async fn call<R: Rpc>(&self, params: R::Params) -> Result<R::Response, ExecServerError> {
        let answer = tokio::select! {
            biased;
            answer = self.0.client().call::<R>(params) => answer,
            error = self.0.over() => return Err(lost_error::<R>(error)),
        };
        match answer {
            // The next connection came before the caller looked. Its server knows no such handle.
            Err(ExecServerError::Server(_)) if self.0.is_over() => Err(lost_error::<R>(None)),
            answer => answer,
        }
    }
}

/// The error of a call whose handle ended with its connection.
fn lost_error<R: Rpc>(end: Option<ExecServerError>) -> ExecServerError {
    match end {
        Some(error @ (ExecServerError::Closed | ExecServerError::Disconnected(_))) => error,
        _ => ExecServerError::Interrupted { method: R::METHOD.name() },
    }
}

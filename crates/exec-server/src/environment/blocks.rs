//! The operations on a server's file that streams and `cp` need. Traits, so that tests can
//! substitute other files.

use async_trait::async_trait;
use bytes::Bytes;
use exec_server_client::{ExecServerError, NewFile, OpenFile};
use exec_server_protocol::{FsCloseResponse, FsMetadata, FsReadBlockResponse};

#[async_trait]
pub(crate) trait ReadBlocks: Send + Sync {
    fn metadata(&self) -> &FsMetadata;

    async fn read_block(
        &self,
        offset: u64,
        len: usize,
    ) -> Result<FsReadBlockResponse, ExecServerError>;
}

#[async_trait]
pub(super) trait WriteBlocks: Send + Sync {
    fn written(&self) -> u64;

    async fn write_block(&self, offset: u64, bytes: Bytes) -> Result<(), ExecServerError>;

    async fn commit(self: Box<Self>) -> Result<FsCloseResponse, ExecServerError>;
}

#[async_trait]
impl ReadBlocks for OpenFile {
    fn metadata(&self) -> &FsMetadata {
        OpenFile::metadata(self)
    }

    async fn read_block(
        &self,
        offset: u64,
        len: usize,
    ) -> Result<FsReadBlockResponse, ExecServerError> {
        OpenFile::read_block(self, offset, len).await
    }
}

#[async_trait]
impl WriteBlocks for NewFile {
    fn written(&self) -> u64 {
        NewFile::written(self)
    }

    async fn write_block(&self, offset: u64, bytes: Bytes) -> Result<(), ExecServerError> {
        NewFile::write_block(self, offset, bytes).await
    }

    async fn commit(self: Box<Self>) -> Result<FsCloseResponse, ExecServerError> {
        NewFile::commit(*self).await
    }
}

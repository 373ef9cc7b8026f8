//! Files that stay open between requests. Reads and writes block, and so does the end of an upload.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, PoisonError, RwLock};

use exec_server_host::fs::{NewFile, NewFileOptions, OpenFile};
use exec_server_protocol::{
    ErrorCode, ErrorKind, FsCloseResponse, FsCreateParams, FsMetadata, FsOpenParams,
    MAX_BLOCK_BYTES, RpcError,
};

use super::errors::to_rpc_error;
use super::executor::{FileExecutor, PolicyScoped};
use super::operations::{check_mode, host_condition, symlinks, wire_metadata};

const MAX_RESUME_KEY_BYTES: usize = 64;

pub(crate) fn open(
    PolicyScoped { params, .. }: &PolicyScoped<FsOpenParams>,
) -> Result<(OpenFile, FsMetadata), RpcError> {
    let file = OpenFile::open(params.path.as_path(), symlinks(params.follow_symlinks))
        .map_err(to_rpc_error)?;
    let metadata = wire_metadata(file.metadata());
    Ok((file, metadata))
}

/// The flag says whether the bytes are the last of the file.
pub(crate) fn read_block(
    file: &OpenFile,
    offset: u64,
    len: usize,
) -> Result<(Vec<u8>, bool), RpcError> {
    let block = file.read_block(offset, len).map_err(to_rpc_error)?;
    Ok((block.bytes, block.eof))
}

pub(crate) fn check_block_len(len: u64) -> Result<usize, RpcError> {
    match usize::try_from(len) {
        Ok(len) if len <= MAX_BLOCK_BYTES => Ok(len),
        _ => Err(RpcError::invalid_request(format!(
            "a block of {len} bytes exceeds the limit of {MAX_BLOCK_BYTES}"
        ))),
    }
}

/// A file that is being written. Blocks may be written concurrently; the end of the upload waits
/// for the blocks that were requested before it.
#[derive(Debug)]
pub(crate) struct Upload {
    path: PathBuf,
    executor: FileExecutor,
    written_before: u64,
    /// Taken when the upload ends.
    file: RwLock<Option<NewFile>>,
    expected_blocks: Mutex<usize>,
    none_expected: Condvar,
}

/// A block that was requested and is not written yet.
#[derive(Debug)]
pub(crate) struct ExpectedBlock(Arc<Upload>);

impl ExpectedBlock {
    pub(crate) fn write(self, offset: u64, bytes: &[u8]) -> Result<(), RpcError> {
        self.0.write_block(offset, bytes)
    }
}

impl Drop for ExpectedBlock {
    fn drop(&mut self) {
        let mut expected = self.0.expected_blocks.lock().unwrap_or_else(PoisonError::into_inner);
        *expected -= 1;
        if *expected == 0 {
            self.0.none_expected.notify_all();
        }
    }
}

impl Upload {
    pub(crate) fn create(
        PolicyScoped { params, executor }: PolicyScoped<FsCreateParams>,
    ) -> Result<Self, RpcError> {
        check_mode(&params.path, params.mode)?;
        check_resume_key(params.resume_key.as_deref())?;
        let options = NewFileOptions {
            symlinks: symlinks(params.follow_symlinks),
            mode: params.mode,
            condition: host_condition(params.condition()),
            resume_key: params.resume_key,
        };
        let file = NewFile::create(params.path.as_path(), options).map_err(to_rpc_error)?;
        Ok(Self {
            path: params.path.as_path().to_owned(),
            executor,
            written_before: file.written(),
            file: RwLock::new(Some(file)),
            expected_blocks: Mutex::new(0),
            none_expected: Condvar::new(),
        })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the executor for every block and the end of the upload, so that one policy applies
    /// throughout.
    pub(crate) fn executor(&self) -> &FileExecutor {
        &self.executor
    }

    /// Returns how many bytes an earlier attempt with the same key has written.
    pub(crate) fn written_before(&self) -> u64 {
        self.written_before
    }

    /// Makes the end of the upload wait until the returned block is dropped.
    pub(crate) fn expect_block(self: Arc<Self>) -> ExpectedBlock {
        *self.expected_blocks.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        ExpectedBlock(self)
    }

    fn write_block(&self, offset: u64, bytes: &[u8]) -> Result<(), RpcError> {
        check_block_len(bytes.len() as u64)?;
        let file = self.file.read().unwrap_or_else(PoisonError::into_inner);
        let file = file.as_ref().ok_or_else(|| self.closed())?;
        file.write_block(offset, bytes).map_err(to_rpc_error)
    }

    /// Completes the upload: the file appears under its path.
    pub(crate) fn commit(&self) -> Result<FsCloseResponse, RpcError> {
        let written = self.take().ok_or_else(|| self.closed())?.commit().map_err(to_rpc_error)?;
        Ok(FsCloseResponse {
            committed: true,
            modified_at_ms: Some(written.modified_at_ms),
            size: Some(written.size),
        })
    }

    pub(crate) fn discard(&self) {
        if let Some(file) = self.take() {
            file.discard();
        }
    }

    /// Ends the upload. Removes the partial file unless the upload has a resume key.
    pub(crate) fn abandon(&self) {
        drop(self.take());
    }

    fn closed(&self) -> RpcError {
        let path = self.path.display();
        let message = format!("{path}: the upload was already closed");
        RpcError::new(ErrorCode::NotFound, message).with_kind(ErrorKind::UnknownHandle)
    }

    fn take(&self) -> Option<NewFile> {
        let expected = self.expected_blocks.lock().unwrap_or_else(PoisonError::into_inner);
        let none = self.none_expected.wait_while(expected, |expected| *expected > 0);
        drop(none.unwrap_or_else(PoisonError::into_inner));
        self.file.write().unwrap_or_else(PoisonError::into_inner).take()
    }
}

fn check_resume_key(key: Option<&str>) -> Result<(), RpcError> {
    let Some(key) = key else { return Ok(()) };
    let sound = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
    if key.is_empty() || key.len() > MAX_RESUME_KEY_BYTES || !key.bytes().all(sound) {
        return Err(RpcError::invalid_request(format!(
            "invalid resumeKey of {} bytes; expected 1 to {MAX_RESUME_KEY_BYTES} letters, digits, \
             '-' or '_'",
            key.len()
        )));
    }
    Ok(())
}

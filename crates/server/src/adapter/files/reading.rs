//! Whole files, in two steps: small files are read at once, and large ones wait for a reservation.

use exec_server_host::fs::{FsError, OpenFile};
use exec_server_protocol::{Base64ResponseWriter, FsReadFileParams, MAX_FILE_BYTES, RpcError};

use super::errors::to_rpc_error;
use super::executor::PolicyScoped;
use super::operations::symlinks;

/// Files up to this size are read without a reservation.
const SMALL_BYTES: usize = 64 << 10;

/// How much of a large file is read at a time.
const PIECE_BYTES: usize = Base64ResponseWriter::UNIT << 16;

/// A file that was opened and read up to `SMALL_BYTES`.
#[derive(Debug)]
pub(crate) enum Reading {
    Done(Vec<u8>),
    Large(LargeFile),
}

#[derive(Debug)]
pub(crate) struct LargeFile {
    file: OpenFile,
    begun: Vec<u8>,
}

impl Reading {
    pub(crate) fn begin(
        PolicyScoped { params, .. }: &PolicyScoped<FsReadFileParams>,
    ) -> Result<Self, RpcError> {
        let file = OpenFile::open(params.path.as_path(), symlinks(params.follow_symlinks))
            .map_err(to_rpc_error)?;
        if file.metadata().size > MAX_FILE_BYTES {
            let path = params.path.as_path().to_owned();
            return Err(to_rpc_error(FsError::TooLarge { path, max: MAX_FILE_BYTES }));
        }
        let expected = usize::try_from(file.metadata().size).unwrap_or(SMALL_BYTES);
        // One byte more, so that the same read sees the end.
        let mut begun = Vec::with_capacity(expected.min(SMALL_BYTES) + 1);
        Ok(match file.read_more(&mut begun, SMALL_BYTES).map_err(to_rpc_error)? {
            true => Self::Done(begun),
            false => Self::Large(LargeFile { file, begun }),
        })
    }
}

impl LargeFile {
    pub(crate) fn size(&self) -> usize {
        usize::try_from(self.file.metadata().size).unwrap_or(usize::MAX)
    }

    /// Returns the size that the file system reports, or [`MAX_FILE_BYTES`] if at least as much was
    /// already read.
    pub(crate) fn expected_bytes(&self) -> usize {
        let size = self.size();
        // Files that are generated on read, as in /proc, report a size of 0.
        if size > self.begun.len() {
            size
        } else {
            usize::try_from(MAX_FILE_BYTES).unwrap_or(usize::MAX)
        }
    }

    /// Passes the whole content to `take` in pieces, so that only the response is large.
    pub(crate) fn finish(
        self,
        mut take: impl FnMut(&[u8]) -> Result<(), RpcError>,
    ) -> Result<(), RpcError> {
        let max = usize::try_from(MAX_FILE_BYTES).unwrap_or(usize::MAX);
        let (mut piece, mut offset) = (self.begun, 0);
        loop {
            // Every piece but the last is full; the first begins with the bytes that were read
            // before.
            let (from, missing) = (offset + piece.len(), PIECE_BYTES - piece.len());
            let is_end =
                self.file.read_from(from as u64, &mut piece, missing).map_err(to_rpc_error)?;
            offset += piece.len();
            if offset > max {
                let path = self.file.path().to_owned();
                return Err(to_rpc_error(FsError::TooLarge { path, max: MAX_FILE_BYTES }));
            }
            take(&piece)?;
            if is_end {
                return Ok(());
            }
            piece.clear();
        }
    }
}

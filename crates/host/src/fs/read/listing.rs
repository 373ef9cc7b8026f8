//! Lists the names in an open directory as the kernel returns them: unordered, with one buffer for
//! many directories.

use std::ffi::{CStr, OsStr};
use std::ops::ControlFlow;
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt as _;

use rustix::fs::{AtFlags, FileType, RawDir, SeekFrom};
use rustix::io::Errno;

use crate::fs::path::resolve;

/// Room for several hundred names per system call.
const BUFFER_BYTES: usize = 32 * 1024;

#[derive(Debug)]
pub(in crate::fs) struct Listing {
    buffer: Vec<u8>,
}

impl Listing {
    pub(in crate::fs) fn new() -> Self {
        Self { buffer: Vec::with_capacity(BUFFER_BYTES) }
    }

    /// Calls `visit` with each name but `.` and `..`, from the start of the directory, until
    /// `visit` breaks. The type is the one in the directory entry. Some file systems leave it
    /// unknown, and it may be outdated a moment later.
    pub(in crate::fs) fn read<B>(
        &mut self,
        directory: BorrowedFd<'_>,
        mut visit: impl FnMut(&CStr, FileType) -> ControlFlow<B>,
    ) -> Result<ControlFlow<B>, Errno> {
        rustix::fs::seek(directory, SeekFrom::Start(0))?;
        let mut names = RawDir::new(directory, self.buffer.spare_capacity_mut());
        while let Some(entry) = names.next() {
            let entry = match entry {
                Ok(entry) => entry,
                Err(Errno::INTR) => continue,
                // The directory was removed while it was read; it has no more entries.
                Err(Errno::NOENT) => break,
                Err(errno) => return Err(errno),
            };
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            if let ControlFlow::Break(value) = visit(name, entry.file_type()) {
                return Ok(ControlFlow::Break(value));
            }
        }
        Ok(ControlFlow::Continue(()))
    }
}

/// Returns the type of the file `name` itself: a symlink is not followed. Calls stat(2) only if the
/// directory entry lacks the type.
pub(in crate::fs) fn own_type(
    directory: BorrowedFd<'_>,
    name: &CStr,
    listed: FileType,
) -> Result<FileType, Errno> {
    if listed != FileType::Unknown {
        return Ok(listed);
    }
    let stat = rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)?;
    Ok(FileType::from_raw_mode(stat.st_mode))
}

/// Returns the type of the target of a symlink. `None` if the symlink leads to no file, or to one
/// that must not be revealed.
pub(in crate::fs) fn followed_type(
    directory: BorrowedFd<'_>,
    name: &CStr,
) -> Result<Option<FileType>, Errno> {
    resolve::type_of_target(directory, OsStr::from_bytes(name.to_bytes()))
}

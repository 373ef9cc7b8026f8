//! Writes whole files: replaces the content of an existing inode, or the whole file if the write is
//! atomic.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, IntoRawFd as _, OwnedFd};
use std::path::Path;
use std::slice::from_ref;

use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;

use super::claim::{self, Claim, Existing};
use super::condition::{Arrival, Condition, Written, distinguish};
use super::new_file::{NewFile, NewFileOptions};
use super::room;
use crate::fs::confinement::{self, RequiredAccess};
use crate::fs::error::FsError;
use crate::fs::path::destination::{self, LastLink};
use crate::fs::path::resolve::{self, Identity, Parent, Symlinks};
use crate::fs::read::metadata::size;
use crate::fs::tree::permissions::permission_bits;

#[derive(Debug, Clone, Copy, Default)]
pub struct WriteOptions {
    pub symlinks: Symlinks,
    /// Readers see all of the old or all of the new content, even after a crash. The file is new:
    /// other hard links keep the old content.
    pub atomic: bool,
    /// Permission bits after the write. By default, an existing file keeps its own.
    pub mode: Option<u32>,
    pub condition: Condition,
}

/// Only regular files are written; others are refused without being opened. With
/// [`Symlinks::Follow`], the missing target of a dangling symlink is created.
///
/// A failed write removes a file that it created, and leaves an existing file unchanged except for
/// its times. One exception: a non-atomic write can leave a mix of both contents if the storage
/// itself fails, or if space could not be reserved and runs out.
pub fn write_file(path: &Path, content: &[u8], options: &WriteOptions) -> Result<Written, FsError> {
    if options.atomic {
        let WriteOptions { symlinks, mode, condition, .. } = *options;
        let new = NewFileOptions { symlinks, mode, condition, resume_key: None };
        let file = NewFile::create(path, new)?;
        file.write_block(0, content)?;
        return file.commit_where_it_began();
    }
    let mode = options.mode.map(|mode| permission_bits(path, mode)).transpose()?;
    claim::persist(path, || write_in_place(path, content, options, mode))
}

fn write_in_place(
    path: &Path,
    content: &[u8],
    options: &WriteOptions,
    mode: Option<Mode>,
) -> Result<Option<Written>, FsError> {
    let WriteOptions { symlinks, condition, .. } = options;
    let Some(parent) = destination::find(path, *symlinks, LastLink::under(condition))? else {
        return Ok(None);
    };
    let Some(claim) = Claim::take(path, &parent)? else { return Ok(None) };
    if let Some(existing) = claim.admit(path, *symlinks, condition)? {
        return overwrite(path, &parent, existing, content, mode, condition).map(Some);
    }
    confinement::expect(parent.directory.as_fd(), &parent.name, RequiredAccess::Change, path)?;
    match create(&parent, mode) {
        Ok(file) => fill_new(path, &parent, file, content, mode).map(Some),
        Err(Errno::EXIST) if condition.create_new => Err(FsError::already_exists(path)),
        // Another program created the file first; now it can be overwritten.
        Err(Errno::EXIST) => Ok(None),
        Err(errno) => Err(FsError::os("create", path)(errno)),
    }
}

fn overwrite(
    path: &Path,
    parent: &Parent,
    existing: &Existing,
    content: &[u8],
    mode: Option<Mode>,
    condition: &Condition,
) -> Result<Written, FsError> {
    let (node, old_size) = (existing.node.as_fd(), size(&existing.stat));
    let file = resolve::content("open for writing", path, node, old_size, OFlags::WRONLY)?;
    let changed = mode.filter(|mode| *mode != Mode::from_raw_mode(existing.stat.st_mode));
    let len = content.len() as u64;
    let (data, beside) = (0..len, || parent.try_clone(path).map(Some));
    let try_out = |staged_file: BorrowedFd<'_>| {
        write_all_at(staged_file, content, 0).map_err(FsError::os("write", path))
    };
    let prepared = room::reserve(path, file.as_fd(), len, from_ref(&data), beside, try_out);
    let prepared = prepared.and_then(|_| match changed {
        // Set before the new content is written, which the old bits might expose.
        Some(mode) => set_mode(path, &file, mode - (Mode::SUID | Mode::SGID)),
        None => Ok(()),
    });
    if let Err(error) = prepared {
        room::give_back(file.as_fd(), &existing.stat, len);
        return Err(error);
    }
    // The file is not truncated before the write. So no reader sees it empty, its blocks are
    // reused, and ext4 does not force it to disk on close, as it does with truncated files.
    write_all_at(file.as_fd(), content, 0).map_err(FsError::os("write", path))?;
    // The old content may be longer, and another program may have appended data.
    let stat = rustix::fs::fstat(&file).map_err(FsError::os("stat", path))?;
    if size(&stat) > len {
        rustix::fs::ftruncate(&file, len).map_err(FsError::os("truncate", path))?;
    }
    if let Some(mode) = mode.filter(|mode| mode.intersects(Mode::SUID | Mode::SGID)) {
        // A write clears these bits.
        set_mode(path, &file, mode)?;
    }
    let arrival = Arrival::Overwritten;
    let written = distinguish(path, &file, Some(&existing.stat), arrival, condition)?;
    finish(path, file, written)
}

fn create(parent: &Parent, mode: Option<Mode>) -> Result<OwnedFd, Errno> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    // A requested mode is exact, regardless of the umask; until it is set, the file is private.
    let initial = if mode.is_some() { 0o600 } else { 0o666 };
    rustix::fs::openat(&parent.directory, &parent.name, flags, Mode::from_raw_mode(initial))
}

fn fill_new(
    path: &Path,
    parent: &Parent,
    file: OwnedFd,
    content: &[u8],
    mode: Option<Mode>,
) -> Result<Written, FsError> {
    let created = Identity::of(file.as_fd()).map_err(FsError::os("stat", path))?;
    let fill = || {
        write_all_at(file.as_fd(), content, 0).map_err(FsError::os("write", path))?;
        if let Some(mode) = mode {
            set_mode(path, &file, mode)?;
        }
        let stat = rustix::fs::fstat(&file).map_err(FsError::os("stat", path))?;
        finish(path, file, Written::from(&stat))
    };
    let filled = fill();
    if filled.is_err() {
        take_back(parent.directory.as_fd(), &parent.name, created);
    }
    filled
}

/// Removes a created file that could not be filled, unless another file has taken its place.
pub(in crate::fs) fn take_back(directory: BorrowedFd<'_>, name: &OsStr, created: Identity) {
    let now = rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW);
    if now.is_ok_and(|now| Identity::from(&now) == created) {
        let _ = rustix::fs::unlinkat(directory, name, AtFlags::empty());
    }
}

fn finish(path: &Path, file: OwnedFd, written: Written) -> Result<Written, FsError> {
    close(file).map_err(FsError::os("write", path))?;
    Ok(written)
}

fn set_mode(path: &Path, file: &OwnedFd, mode: Mode) -> Result<(), FsError> {
    rustix::fs::fchmod(file, mode).map_err(FsError::os("set the permissions of", path))
}

/// Reports errors: network file systems may report lack of space only on close.
fn close(file: OwnedFd) -> Result<(), Errno> {
    // SAFETY: the owner of the descriptor has just given it up, so no other code uses or closes it.
    if unsafe { libc::close(file.into_raw_fd()) } == 0 {
        return Ok(());
    }
    match Errno::from_io_error(&io::Error::last_os_error()) {
        // Linux has closed it regardless.
        Some(Errno::INTR) => Ok(()),
        Some(errno) => Err(errno),
        None => Err(Errno::IO),
    }
}

pub(in crate::fs) fn write_all_at(
    file: BorrowedFd<'_>,
    mut bytes: &[u8],
    mut offset: u64,
) -> Result<(), Errno> {
    while !bytes.is_empty() {
        match rustix::io::pwrite(file, bytes, offset) {
            Ok(0) => return Err(Errno::IO),
            Ok(written) => {
                bytes = &bytes[written..];
                offset += written as u64;
            }
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_appended_during_an_overwrite_is_removed() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("file");
        std::fs::write(&path, "old").unwrap();
        let parent = resolve::parent(&path, Symlinks::Follow, RequiredAccess::Change).unwrap();
        let claim = Claim::take(&path, &parent).unwrap().unwrap();
        let none = Condition::default();
        let existing = claim.admit(&path, Symlinks::Follow, &none).unwrap().unwrap();
        std::fs::write(&path, "old and more").unwrap();
        let written = overwrite(&path, &parent, existing, b"new", None, &none).unwrap();
        assert_eq!((std::fs::read(&path).unwrap(), written.size), (b"new".to_vec(), 3));
    }
}

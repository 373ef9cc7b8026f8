//! Copies of files, symlinks and trees.
//!
//! A copy has the content and permission bits of the source, but not its owner, times or
//! attributes. The set-user-id and set-group-id bits are left out: they would grant the rights of
//! the new owner, who makes the copy. Directories keep the sticky bit.
//!
//! An existing file keeps its inode and gets the content and bits of the source. Space for the new
//! content is reserved first if possible: a copy that then fails for lack of space leaves the file
//! unchanged. A copy that is cancelled, or cannot read its source to the end, may leave part of the
//! new content. An existing directory keeps its bits and any entries that the source does not have.
//! A copied symlink replaces an existing symlink. An existing file of a kind other than that of the
//! source is an error.
//!
//! Symlinks in the two paths of the caller are followed, except that a symlink at the end of the
//! source is copied itself, and replaces one at the end of the destination. Symlinks inside a tree
//! are never followed, neither in the source nor in the destination. The first failure ends the
//! copy; entries copied by then stay.

mod content;
mod file;
mod link;
mod overwrite;
mod tree;

use std::ffi::OsStr;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags, Stat};

use super::cancel::CancelFlag;
use crate::fs::confinement::{self, RequiredAccess};
use crate::fs::error::FsError;
use crate::fs::path::resolve::{self, Symlinks};

/// Copies `source` so that `destination` names the copy. A FIFO, socket or device is refused;
/// inside a tree it is skipped.
pub fn copy(
    source: &Path,
    destination: &Path,
    recursive: bool,
    cancel: &CancelFlag,
) -> Result<(), FsError> {
    let source = Source::new(source.to_owned(), resolve::own_node(source, RequiredAccess::Read)?)?;
    match source.file_type() {
        FileType::RegularFile => {
            let parent = resolve::parent(destination, Symlinks::Follow, RequiredAccess::Read)?;
            let target = CopyTarget::named(destination, parent.directory.as_fd(), &parent.name);
            file::copy(&source, &target, cancel)
        }
        FileType::Symlink => {
            let parent = resolve::parent(destination, Symlinks::Follow, RequiredAccess::Change)?;
            link::copy(
                &source,
                &CopyTarget::named(destination, parent.directory.as_fd(), &parent.name),
            )
        }
        FileType::Directory if recursive => tree::copy(&source, destination, cancel),
        FileType::Directory => {
            let why = "is a directory; request a recursive copy";
            Err(FsError::Unsuitable { path: source.path, why })
        }
        other => {
            let wanted = "a regular file, directory or symlink";
            Err(FsError::WrongKind { path: source.path, found: other.into(), wanted })
        }
    }
}

/// The source of a copy, held open but not read.
struct Source {
    path: PathBuf,
    node: OwnedFd,
    stat: Stat,
}

impl Source {
    fn new(path: PathBuf, node: OwnedFd) -> Result<Self, FsError> {
        let stat = rustix::fs::fstat(&node).map_err(FsError::os("stat", &path))?;
        Ok(Self { path, node, stat })
    }

    fn file_type(&self) -> FileType {
        FileType::from_raw_mode(self.stat.st_mode)
    }

    fn mode(&self) -> Mode {
        Mode::from_raw_mode(self.stat.st_mode & 0o777)
    }
}

struct CopyTarget<'a> {
    path: PathBuf,
    directory: BorrowedFd<'a>,
    name: &'a OsStr,
    /// Whether an existing symlink of that name is followed.
    symlinks: Symlinks,
}

impl<'a> CopyTarget<'a> {
    /// For a path of the caller, in which symlinks are followed.
    fn named(path: &Path, directory: BorrowedFd<'a>, name: &'a OsStr) -> Self {
        Self { path: path.to_owned(), directory, name, symlinks: Symlinks::Follow }
    }

    fn expect(&self, required: RequiredAccess) -> Result<(), FsError> {
        confinement::expect(self.directory, self.name, required, &self.path)
    }

    /// Opens the existing file of that name.
    fn node(&self) -> Result<OwnedFd, FsError> {
        if self.symlinks == Symlinks::Follow {
            return resolve::node(&self.path, Symlinks::Follow, RequiredAccess::Write);
        }
        self.expect(RequiredAccess::Write)?;
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        rustix::fs::openat(self.directory, self.name, flags, Mode::empty())
            .map_err(FsError::os("open", &self.path))
    }
}

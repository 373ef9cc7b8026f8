//! Copies of files, symlinks and trees.
//!
//! A copy has content and permission bits, but not owner, times or attributes. The set-user-id and set-group-id bits are left out:
//! they would grant the rights of a new owner, the one who copies. Directories keep the sticky bit.
//!
//! An existing file keeps its inode and gets content and bits of the source. Room for them is secured first: a copy that fails for
//! want of room leaves the file as it was. One that is stopped, or cannot read its source to the end, may leave part of the new
//! content. An existing directory keeps its bits and
//! whatever the source does not have. An existing symlink is replaced by a symlink. Nothing else takes the place of
//! something of another kind.
//!
//! The two paths of the caller are followed, except that a symlink at the end of the source is itself what is copied. Nothing
//! below them is followed, neither in the source nor in the destination. The first failure ends the copy, and what
//! was copied by then stays.

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

/// Copies `source` so that `destination` names the copy. A FIFO, socket or device is refused; in a tree it is left out.
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
            let why = "is a directory, which only a recursive copy includes";
            Err(FsError::Unsuitable { path: source.path, why })
        }
        other => {
            let wanted = "a regular file, directory or symlink";
            Err(FsError::WrongKind { path: source.path, found: other.into(), wanted })
        }
    }
}

/// Something to copy, held but not touched.
struct Source {
    path: PathBuf,
    node: OwnedFd,
    stat: Stat,
}

impl Source {
    fn new(path: PathBuf, node: OwnedFd) -> Result<Self, FsError> {
        let stat = rustix::fs::fstat(&node).map_err(FsError::os("look at", &path))?;
        Ok(Self { path, node, stat })
    }

    fn file_type(&self) -> FileType {
        FileType::from_raw_mode(self.stat.st_mode)
    }

    /// The permission bits of the copy.
    fn mode(&self) -> Mode {
        Mode::from_raw_mode(self.stat.st_mode & 0o777)
    }
}

/// Where a copy goes: a name in an open directory.
struct CopyTarget<'a> {
    path: PathBuf,
    directory: BorrowedFd<'a>,
    name: &'a OsStr,
    /// Whether what has the name already may be a symlink to it.
    symlinks: Symlinks,
}

impl<'a> CopyTarget<'a> {
    /// By the caller.
    fn named(path: &Path, directory: BorrowedFd<'a>, name: &'a OsStr) -> Self {
        Self { path: path.to_owned(), directory, name, symlinks: Symlinks::Follow }
    }

    /// Whether this thread may do so much to the name itself.
    fn expect(&self, required: RequiredAccess) -> Result<(), FsError> {
        confinement::expect(self.directory, self.name, required, &self.path)
    }

    /// What has the name already.
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

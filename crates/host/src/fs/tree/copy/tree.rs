//! Copies a directory tree. Source and destination are walked in parallel, each with its own
//! [`TreeDescent`].

use std::ffi::{CStr, OsStr, OsString};
use std::ops::ControlFlow;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::{CopyTarget, Source, file, link};
use crate::fs::confinement::{self, RequiredAccess};
use crate::fs::error::FsError;
use crate::fs::path::descent::{TreeDescent, open_directory};
use crate::fs::path::kind::FileKind;
use crate::fs::path::resolve::{self, Identity, Symlinks};
use crate::fs::read::listing::Listing;
use crate::fs::tree::cancel::CancelFlag;
use crate::fs::tree::precheck::{self, CheckedTree};

/// While it is filled, a new directory is accessible only to its owner, who needs all rights.
const MODE_WHILE_FILLED: Mode = Mode::RWXU;

pub(super) fn copy(
    source: &Source,
    destination: &Path,
    cancel: &CancelFlag,
) -> Result<(), FsError> {
    let from = resolve::reopen(source.node.as_fd(), OFlags::RDONLY | OFlags::DIRECTORY)
        .map_err(FsError::os("open the directory", &source.path))?;
    let (to, is_new) = open_root(source, destination, cancel)?;
    let root = Identity::of(to.as_fd()).map_err(FsError::os("stat", destination))?;
    let mut copy = TreeCopy {
        cancel,
        from: TreeDescent::new(&source.path, from),
        to: TreeDescent::new(destination, to),
        destination: root,
        levels: Vec::new(),
    };
    copy.run(is_new)
}

/// Opens or creates the destination, and returns whether it is new. Checks first that the source
/// does not contain it, and that the policy allows the copy.
fn open_root(
    source: &Source,
    destination: &Path,
    cancel: &CancelFlag,
) -> Result<(OwnedFd, bool), FsError> {
    match resolve::node(destination, Symlinks::Follow, RequiredAccess::Write) {
        Ok(node) => {
            let stat = rustix::fs::fstat(&node).map_err(FsError::os("stat", destination))?;
            resolve::expect_kind(destination, &stat, FileKind::Directory, "a directory")?;
            refuse_inside(source, destination, node.as_fd())?;
            expect_copyable(
                source,
                || CheckedTree::open(node.as_fd(), RequiredAccess::MakeDirectory, destination),
                cancel,
            )?;
            let root = resolve::reopen(node.as_fd(), OFlags::RDONLY | OFlags::DIRECTORY)
                .map_err(FsError::os("open the directory", destination))?;
            Ok((root, false))
        }
        Err(error) if error.is_not_found() => {
            let parent =
                resolve::parent(destination, Symlinks::Follow, RequiredAccess::MakeDirectory)?;
            refuse_inside(source, destination, parent.directory.as_fd())?;
            let (above, name) = (parent.directory.as_fd(), &parent.name);
            expect_copyable(
                source,
                || CheckedTree::of(above, name, RequiredAccess::MakeDirectory, destination),
                cancel,
            )?;
            rustix::fs::mkdirat(&parent.directory, &parent.name, MODE_WHILE_FILLED)
                .map_err(FsError::os("create the directory", destination))?;
            let root = open_directory(parent.directory.as_fd(), &parent.name)
                .map_err(FsError::os("open the directory", destination))?;
            Ok((root, true))
        }
        Err(error) => Err(error),
    }
}

/// Checks that everything in the source may be read and its copy may be created.
fn expect_copyable(
    source: &Source,
    destination: impl FnOnce() -> Result<CheckedTree, FsError>,
    cancel: &CancelFlag,
) -> Result<(), FsError> {
    if !confinement::is_confined() {
        return Ok(());
    }
    let node = source.node.as_fd();
    let sites = [CheckedTree::open(node, RequiredAccess::Read, &source.path)?, destination()?];
    precheck::expect(node, OsStr::new("."), &sites, &source.path, cancel)
}

fn refuse_inside(
    source: &Source,
    destination: &Path,
    lowest: BorrowedFd<'_>,
) -> Result<(), FsError> {
    let inside = is_inside(lowest, Identity::from(&source.stat))
        .map_err(FsError::os("open the directories above", destination))?;
    if inside {
        let why = "is inside the source of the copy";
        return Err(FsError::Unsuitable { path: destination.to_owned(), why });
    }
    Ok(())
}

/// Whether a directory is `tree` or below it.
fn is_inside(directory: BorrowedFd<'_>, tree: Identity) -> Result<bool, Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut here = rustix::fs::openat(directory, ".", flags, Mode::empty())?;
    let mut identity = Identity::of(here.as_fd())?;
    loop {
        if identity == tree {
            return Ok(true);
        }
        here = rustix::fs::openat(&here, "..", flags, Mode::empty())?;
        let above = Identity::of(here.as_fd())?;
        if above == identity {
            return Ok(false);
        }
        identity = above;
    }
}

struct TreeCopy<'a> {
    cancel: &'a CancelFlag,
    from: TreeDescent,
    to: TreeDescent,
    /// The root of the destination. The copy fails if another program moves or mounts this
    /// directory into the source: the copy would never end.
    destination: Identity,
    /// One for each directory of a descent; both descents are always equally deep.
    levels: Vec<Level>,
}

struct Level {
    /// Directories that remain to be copied.
    waiting: Vec<OsString>,
    /// Set for a new directory; applied once it is filled.
    mode: Option<Mode>,
}

impl TreeCopy<'_> {
    fn run(&mut self, root_is_new: bool) -> Result<(), FsError> {
        let mut listing = Listing::new();
        self.fill(root_is_new, &mut listing)?;
        while let Some(level) = self.levels.last_mut() {
            if let Some(name) = level.waiting.pop() {
                if let Some(is_new) = self.enter(&name)? {
                    self.fill(is_new, &mut listing)?;
                }
            } else {
                self.leave()?;
            }
        }
        Ok(())
    }

    /// Enters a directory in the source and in the destination. Returns whether the one in the
    /// destination is new, or `None` if the one in the source no longer exists.
    fn enter(&mut self, name: &OsStr) -> Result<Option<bool>, FsError> {
        self.expect(name)?;
        match self.from.enter(name) {
            Ok(()) => {}
            Err(Errno::NOENT) => return Ok(None),
            Err(errno) => {
                return Err(FsError::os("open the directory", &self.from.path_of(name))(errno));
            }
        }
        let is_new = match rustix::fs::mkdirat(self.to.here(), name, MODE_WHILE_FILLED) {
            Ok(()) => true,
            Err(Errno::EXIST) => false,
            Err(errno) => {
                return Err(FsError::os("create the directory", &self.to.path_of(name))(errno));
            }
        };
        self.to.enter(name).map_err(|errno| self.not_entered(name, errno))?;
        Ok(Some(is_new))
    }

    /// Checks the access to an entry in the source and in the destination. The entry may be newer
    /// than the precheck of the tree. For anything but a directory, `file::copy` and `link::copy`
    /// check further access.
    fn expect(&self, name: &OsStr) -> Result<(), FsError> {
        let path = self.from.path_of(name);
        confinement::expect(self.from.here(), name, RequiredAccess::Read, &path)?;
        confinement::expect(
            self.to.here(),
            name,
            RequiredAccess::MakeDirectory,
            &self.to.path_of(name),
        )
    }

    fn not_entered(&self, name: &OsStr, errno: Errno) -> FsError {
        let path = self.to.path_of(name);
        let flags = AtFlags::SYMLINK_NOFOLLOW;
        match rustix::fs::statat(self.to.here(), name, flags) {
            Ok(stat) => resolve::expect_kind(&path, &stat, FileKind::Directory, "a directory")
                .err()
                .unwrap_or_else(|| FsError::os("open the directory", &path)(errno)),
            Err(_) => FsError::os("open the directory", &path)(errno),
        }
    }

    /// Copies everything in this directory except subdirectories, which it queues.
    fn fill(&mut self, is_new: bool, listing: &mut Listing) -> Result<(), FsError> {
        let stat = rustix::fs::fstat(self.from.here())
            .map_err(|errno| FsError::os("stat", &self.from.path())(errno))?;
        if Identity::from(&stat) == self.destination {
            let why = "is the destination of the copy";
            return Err(FsError::Unsuitable { path: self.from.path(), why });
        }
        self.cancel.check(&self.from.path())?;
        let mut waiting = Vec::new();
        let outcome = listing.read(self.from.here(), |name, listed| {
            let copied = match listed {
                FileType::Directory => Ok(Copied::Waits),
                _ => self.copy_entry(name),
            };
            match copied {
                Ok(Copied::Waits) => waiting.push(os_str(name).to_owned()),
                Ok(Copied::Done) => {}
                Err(error) => return ControlFlow::Break(error),
            }
            ControlFlow::Continue(())
        });
        match outcome {
            Ok(ControlFlow::Continue(())) => {}
            Ok(ControlFlow::Break(error)) => return Err(error),
            Err(errno) => return Err(FsError::os("read the directory", &self.from.path())(errno)),
        }
        let mode = is_new.then(|| Mode::from_raw_mode(stat.st_mode & 0o1777));
        self.levels.push(Level { waiting, mode });
        Ok(())
    }

    fn copy_entry(&self, name: &CStr) -> Result<Copied, FsError> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let path = self.from.path_of(os_str(name));
        self.cancel.check(&path)?;
        self.expect(os_str(name))?;
        let node = match rustix::fs::openat(self.from.here(), name, flags, Mode::empty()) {
            Err(Errno::NOENT) => return Ok(Copied::Done),
            node => node.map_err(FsError::os("open", &path))?,
        };
        let source = Source::new(path, node)?;
        let target = CopyTarget {
            path: self.to.path_of(os_str(name)),
            directory: self.to.here(),
            name: os_str(name),
            symlinks: Symlinks::Refuse,
        };
        match source.file_type() {
            FileType::RegularFile => file::copy(&source, &target, self.cancel)?,
            FileType::Symlink => link::copy(&source, &target)?,
            FileType::Directory => return Ok(Copied::Waits),
            _ => {}
        }
        Ok(Copied::Done)
    }

    fn leave(&mut self) -> Result<(), FsError> {
        let mode = self.levels.pop().and_then(|level| level.mode);
        self.from.leave()?;
        let left = self.to.leave()?;
        let Some(mode) = mode else { return Ok(()) };
        let directory = left.as_ref().map_or(self.to.here(), |left| left.directory.as_fd());
        set_mode(directory, mode).map_err(|errno| {
            let path = left.as_ref().map_or(self.to.path(), |left| self.to.path_of(&left.name));
            FsError::os("set the permissions of", &path)(errno)
        })
    }
}

enum Copied {
    Done,
    /// The entry is a directory, to be copied later.
    Waits,
}

/// Sets the permissions of a new directory. Keeps an inherited set-group-id bit, so that new files
/// still get the group of the parent.
fn set_mode(directory: BorrowedFd<'_>, mode: Mode) -> Result<(), Errno> {
    let inherited = rustix::fs::fstat(directory)?.st_mode & 0o2000;
    rustix::fs::fchmod(directory, mode | Mode::from_raw_mode(inherited))
}

fn os_str(name: &CStr) -> &OsStr {
    OsStr::from_bytes(name.to_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_destination_moved_into_the_source_is_not_copied() {
        let root = tempfile::tempdir().unwrap();
        let (from, to) = (root.path().join("from"), root.path().join("to"));
        std::fs::create_dir_all(from.join("sub")).unwrap();
        let source =
            Source::new(from.clone(), resolve::own_node(&from, RequiredAccess::Read).unwrap())
                .unwrap();
        let opened = resolve::directory(&from, Symlinks::Follow).unwrap();
        let (destination, is_new) = open_root(&source, &to, &CancelFlag::never()).unwrap();
        let cancel = CancelFlag::never();
        let mut copy = TreeCopy {
            cancel: &cancel,
            from: TreeDescent::new(&from, opened),
            destination: Identity::of(destination.as_fd()).unwrap(),
            to: TreeDescent::new(&to, destination),
            levels: Vec::new(),
        };
        std::fs::rename(&to, from.join("sub/moved")).unwrap();
        match copy.run(is_new) {
            Err(FsError::Unsuitable { path, .. }) => assert_eq!(path, from.join("sub/moved")),
            other => panic!("{other:?}"),
        }
    }
}

//! Removes names and trees. Never follows a symlink in a tree, even if entries are replaced
//! in the meantime: see [`TreeDescent`].

use std::ffi::{CStr, OsStr, OsString};
use std::io;
use std::ops::ControlFlow;
use std::os::fd::AsFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use rustix::fs::{AtFlags, FileType, Stat};
use rustix::io::Errno;

use super::cancel::CancelFlag;
use super::precheck::{self, CheckedTree};
use crate::fs::confinement::{RequiredAccess, View, is_confined};
use crate::fs::error::FsError;
use crate::fs::path::descent::TreeDescent;
use crate::fs::path::resolve::{self, Parent, Symlinks};
use crate::fs::read::listing::Listing;
use crate::fs::write::write_lock::WriteLock;

/// Limit on retries in one tree, for directories that were refilled or replaced before their
/// removal.
const MAX_RETRIES: usize = 1_000;
/// Limit on directory names in memory. A directory with more is read again once these are removed.
const MAX_WAITING: usize = 65_536;

#[derive(Debug, Clone, Copy)]
pub struct RemoveOptions {
    /// Remove a directory with its content. Otherwise a directory is removed only if it is empty.
    pub recursive: bool,
    /// Treat a missing path as success, including a parent that is missing or not a directory.
    pub force: bool,
    /// Whether symlinks in the directories of the path are followed. The name itself is never
    /// followed, nor is anything below it; [`Symlinks::Refuse`] also refuses a symlink as the name.
    pub symlinks: Symlinks,
}

/// Removes a name and, with `recursive`, everything below it. Stops at the first entry that cannot
/// be removed; the error names it, unless the policy hides it.
pub fn remove(path: &Path, options: &RemoveOptions, cancel: &CancelFlag) -> Result<(), FsError> {
    let parent = match resolve::parent(path, options.symlinks, RequiredAccess::Change) {
        Err(error) if options.force && is_nowhere(&error) => return Ok(()),
        parent => parent?,
    };
    match remove_existing(path, parent, options, cancel) {
        Err(error) if options.force && error.is_not_found() => Ok(()),
        removed => removed,
    }
}

/// Whether the error means that the path does not exist. A path below a regular file does not exist
/// either.
fn is_nowhere(error: &FsError) -> bool {
    let no_directory = matches!(error, FsError::Os { source, .. }
        if source.kind() == io::ErrorKind::NotADirectory);
    no_directory || error.is_not_found()
}

fn remove_existing(
    path: &Path,
    parent: Parent,
    options: &RemoveOptions,
    cancel: &CancelFlag,
) -> Result<(), FsError> {
    match unlink_name(path, &parent, options.symlinks)? {
        Err(Errno::ISDIR) if options.recursive => {
            if is_confined() {
                let (directory, name) = (parent.directory.as_fd(), &parent.name);
                let site = CheckedTree::of(directory, name, RequiredAccess::Change, path)?;
                precheck::expect(directory, name, &[site], path, cancel)?;
            }
            Removal::new(path, parent, cancel).run()
        }
        Err(Errno::ISDIR) => {
            rustix::fs::unlinkat(&parent.directory, &parent.name, AtFlags::REMOVEDIR)
                .map_err(FsError::os("remove the directory", path))
        }
        unlinked => unlinked.map_err(FsError::os("remove", path)),
    }
}

/// Holds the write lock, so that a conditional write that has checked the name finds the same file
/// when it writes.
fn unlink_name(
    path: &Path,
    parent: &Parent,
    symlinks: Symlinks,
) -> Result<Result<(), Errno>, FsError> {
    let _name = WriteLock::name(parent, path)?;
    if symlinks == Symlinks::Refuse {
        // Another program may put a symlink there after this check. Then the symlink is removed,
        // but never its target.
        let found = rustix::fs::statat(&parent.directory, &parent.name, AtFlags::SYMLINK_NOFOLLOW);
        let is_symlink = |found: Stat| FileType::from_raw_mode(found.st_mode) == FileType::Symlink;
        if found.is_ok_and(is_symlink) {
            return Err(FsError::Symlink { path: path.to_owned() });
        }
    }
    Ok(rustix::fs::unlinkat(&parent.directory, &parent.name, AtFlags::empty()))
}

struct Removal<'a> {
    cancel: &'a CancelFlag,
    descent: TreeDescent,
    /// One for each directory of the descent.
    levels: Vec<Level>,
    /// The number of names that wait in all levels.
    waiting: usize,
    retries: usize,
    listing: Listing,
}

#[derive(Default)]
struct Level {
    /// Names that were directories when they were listed or last tried.
    waiting: Vec<OsString>,
    /// The directory was read to its end, and its other entries were removed.
    listed: bool,
}

/// Reasons for not listing a directory to its end.
enum Halt {
    EnoughWaiting,
    Abandoned,
    Denied,
    Failed(OsString, Errno),
}

impl<'a> Removal<'a> {
    /// Starts one directory above the tree, where only `name` is touched.
    fn new(path: &Path, Parent { directory, name }: Parent, cancel: &'a CancelFlag) -> Self {
        let above = path.parent().unwrap_or(path);
        Self {
            cancel,
            descent: TreeDescent::new(above, directory),
            levels: vec![Level { waiting: vec![name], listed: true }],
            waiting: 1,
            retries: 0,
            listing: Listing::new(),
        }
    }

    fn run(mut self) -> Result<(), FsError> {
        while let Some(level) = self.levels.last_mut() {
            if let Some(name) = level.waiting.pop() {
                self.waiting -= 1;
                self.enter(name)?;
            } else if !level.listed {
                self.list()?;
            } else {
                self.levels.pop();
                if let Some(left) = self.descent.leave()? {
                    self.remove_directory(left.name)?;
                }
            }
        }
        Ok(())
    }

    fn enter(&mut self, name: OsString) -> Result<(), FsError> {
        match self.descent.enter(&name) {
            Ok(()) => self.levels.push(Level::default()),
            Err(Errno::NOENT) => {}
            // Another kind of file has taken the name.
            Err(Errno::NOTDIR | Errno::LOOP) => return self.unlink(name),
            // The directory is unreadable, but an empty one can be removed unread.
            Err(errno) => {
                rustix::fs::unlinkat(self.descent.here(), &name, AtFlags::REMOVEDIR).map_err(
                    |_| FsError::os("open the directory", &self.descent.path_of(&name))(errno),
                )?;
            }
        }
        Ok(())
    }

    /// Lists the current directory. Removes all entries but directories, which it queues.
    fn list(&mut self) -> Result<(), FsError> {
        let here = self.descent.here();
        let room = MAX_WAITING.saturating_sub(self.waiting).max(1);
        let mut view =
            View::of(here).map_err(|errno| FsError::os("stat", &self.descent.path())(errno))?;
        let mut waiting = Vec::new();
        let outcome = self.listing.read(here, |name, listed| {
            if self.cancel.is_requested() {
                return ControlFlow::Break(Halt::Abandoned);
            }
            // If this entry is not allowed, it appeared after the precheck of the tree.
            if !view.allows(OsStr::from_bytes(name.to_bytes()), RequiredAccess::Change) {
                return ControlFlow::Break(Halt::Denied);
            }
            let unlinked = if listed == FileType::Directory {
                Err(Errno::ISDIR)
            } else {
                rustix::fs::unlinkat(here, name, AtFlags::empty())
            };
            match unlinked {
                Ok(()) | Err(Errno::NOENT) => return ControlFlow::Continue(()),
                Err(Errno::ISDIR) => waiting.push(owned(name)),
                Err(errno) => return ControlFlow::Break(Halt::Failed(owned(name), errno)),
            }
            if waiting.len() == room {
                return ControlFlow::Break(Halt::EnoughWaiting);
            }
            ControlFlow::Continue(())
        });
        let listed = match outcome {
            Ok(ControlFlow::Continue(())) => true,
            Ok(ControlFlow::Break(Halt::EnoughWaiting)) => false,
            Ok(ControlFlow::Break(Halt::Abandoned)) => {
                return Err(CancelFlag::abandoned(&self.descent.path()));
            }
            Ok(ControlFlow::Break(Halt::Denied)) => {
                let path = self.descent.path();
                return Err(FsError::denied_inside(&path, RequiredAccess::Change));
            }
            Ok(ControlFlow::Break(Halt::Failed(name, errno))) => {
                return Err(FsError::os("remove", &self.descent.path_of(&name))(errno));
            }
            Err(errno) => {
                return Err(FsError::os("read the directory", &self.descent.path())(errno));
            }
        };
        self.waiting += waiting.len();
        let level = self.levels.last_mut().expect("the directory that was read has a level");
        *level = Level { waiting, listed };
        Ok(())
    }

    fn unlink(&mut self, name: OsString) -> Result<(), FsError> {
        match rustix::fs::unlinkat(self.descent.here(), &name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno @ Errno::ISDIR) => self.retry(name, errno),
            Err(errno) => Err(FsError::os("remove", &self.descent.path_of(&name))(errno)),
        }
    }

    fn remove_directory(&mut self, name: OsString) -> Result<(), FsError> {
        match rustix::fs::unlinkat(self.descent.here(), &name, AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno @ (Errno::NOTEMPTY | Errno::EXIST | Errno::NOTDIR)) => {
                self.retry(name, errno)
            }
            Err(errno) => {
                Err(FsError::os("remove the directory", &self.descent.path_of(&name))(errno))
            }
        }
    }

    /// Queues the name for another attempt. The directory was refilled or replaced in the meantime,
    /// and whatever has the name now is removed as well.
    fn retry(&mut self, name: OsString, errno: Errno) -> Result<(), FsError> {
        self.retries += 1;
        if self.retries > MAX_RETRIES {
            return Err(FsError::os("remove", &self.descent.path_of(&name))(errno));
        }
        let level = self.levels.last_mut().expect("every directory but the root has a level above");
        level.waiting.push(name);
        self.waiting += 1;
        Ok(())
    }
}

fn owned(name: &CStr) -> OsString {
    OsStr::from_bytes(name.to_bytes()).to_owned()
}

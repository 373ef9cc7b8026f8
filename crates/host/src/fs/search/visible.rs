//! Walks the visible part of a tree in order: unless requested, without hidden names and without
//! files excluded by ignore files.
//!
//! Symlinks are visited but never followed, even if names are replaced in the meantime: each
//! directory is opened in its parent.

use std::ffi::{CStr, CString, OsStr};
use std::ops::ControlFlow;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;

use super::rules::{self, Rules};
use crate::fs::FsError;
use crate::fs::confinement::{self, RequiredAccess, View};
use crate::fs::path::procfs;
use crate::fs::path::resolve::{self, Symlinks};
use crate::fs::read::listing::{Listing, followed_type, own_type};
use crate::fs::read::metadata::size;

/// Each level holds one descriptor.
const MAX_DEPTH: usize = 256;
/// Names are sorted, so all names of a directory are in memory at once.
const MAX_DIRECTORY_NAMES: usize = 500_000;

/// Some files of `/proc` and `/sys` look regular, but block reads until an event occurs.
pub(super) const READING: OFlags = OFlags::RDONLY.union(OFlags::NONBLOCK);

#[derive(Debug, Clone, Copy)]
pub(in crate::fs) struct Visibility {
    /// Include names that start with a dot.
    pub(in crate::fs) hidden: bool,
    /// Include files excluded by ignore files.
    pub(in crate::fs) ignored: bool,
}

pub(in crate::fs) enum Found<'a> {
    Entry(Entry<'a>),
    /// An entry or an ignore file that cannot be read.
    Unreadable {
        way: &'a Path,
        obstacle: Obstacle,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(in crate::fs) enum Obstacle {
    #[error("{0}")]
    Os(#[from] Errno),
    #[error("it is more than {MAX_DEPTH} levels deep")]
    TooDeep,
    #[error("it has more than {MAX_DIRECTORY_NAMES} entries")]
    TooManyNames,
    #[error(
        "it has too many rules: ignore files may have {} KiB each, and {} KiB in total",
        rules::MAX_FILE_BYTES >> 10,
        rules::MAX_BYTES >> 10
    )]
    TooManyRules,
}

pub(in crate::fs) struct Entry<'a> {
    /// Path relative to the root.
    pub(in crate::fs) way: &'a Path,
    pub(in crate::fs) file_type: FileType,
    directory: BorrowedFd<'a>,
    name: &'a CStr,
}

/// The visitor's decision after an entry.
pub(in crate::fs) enum Next {
    /// Also visit the content, if the entry is a directory.
    Enter,
    Pass,
    Stop,
}

/// Calls `visit` with every visible entry below the directory `root`, each directory before its
/// content.
pub(in crate::fs) fn walk(
    root: &Path,
    visibility: Visibility,
    visit: &mut dyn FnMut(Found<'_>) -> Next,
) -> Result<(), FsError> {
    let directory = resolve::directory(root, Symlinks::Follow)?;
    let root = real_root(root, directory.as_fd())?;
    let above = if visibility.ignored { Vec::new() } else { rules::above(&root) };
    let mut walk =
        Walk { root: &root, visibility, visit, above, levels: Vec::new(), listing: Listing::new() };
    // The visitor knows if it stopped early.
    let _ = walk.run(directory);
    Ok(())
}

fn real_root(root: &Path, directory: BorrowedFd<'_>) -> Result<PathBuf, FsError> {
    if confinement::is_confined() {
        return confinement::real_path(directory).map_err(FsError::os("resolve", root));
    }
    let failed = |source| FsError::Os { action: "resolve", path: root.to_owned(), source };
    root.canonicalize().map_err(failed)
}

/// Opens a regular file in an open directory for reading. `None`, without opening it, if it is
/// another kind of file or the policy denies it.
pub(super) fn open_regular(
    directory: BorrowedFd<'_>,
    name: &CStr,
) -> Result<Option<OwnedFd>, Errno> {
    if !View::of(directory)?.allows(OsStr::from_bytes(name.to_bytes()), RequiredAccess::Read) {
        return Ok(None);
    }
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let node = rustix::fs::openat(directory, name, flags, Mode::empty())?;
    let stat = rustix::fs::fstat(&node)?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile if procfs::is_private(node.as_fd(), size(&stat))? => {
            Err(Errno::ACCESS)
        }
        FileType::RegularFile => resolve::reopen(node.as_fd(), READING).map(Some),
        _ => Ok(None),
    }
}

impl Entry<'_> {
    pub(super) fn open(&self) -> Result<Option<OwnedFd>, Errno> {
        open_regular(self.directory, self.name)
    }

    pub(in crate::fs) fn leads_to_directory(&self) -> bool {
        followed_type(self.directory, self.name) == Ok(Some(FileType::Directory))
    }
}

struct Walk<'a> {
    root: &'a Path,
    visibility: Visibility,
    visit: &'a mut dyn FnMut(Found<'_>) -> Next,
    /// The rules of the directories above the root, nearest first, up to the top of the repository.
    above: Vec<Rules>,
    levels: Vec<Level>,
    listing: Listing,
}

/// A directory on the path to the current position.
struct Level {
    directory: OwnedFd,
    path: PathBuf,
    names: std::vec::IntoIter<Name>,
    rules: Rules,
}

struct Name {
    name: CString,
    listed: FileType,
}

impl Walk<'_> {
    fn run(&mut self, root: OwnedFd) -> ControlFlow<()> {
        self.enter(root, self.root.to_owned())?;
        while let Some(level) = self.levels.last_mut() {
            match level.names.next() {
                Some(name) => self.meet(&name)?,
                None => drop(self.levels.pop()),
            }
        }
        ControlFlow::Continue(())
    }

    fn enter(&mut self, directory: OwnedFd, path: PathBuf) -> ControlFlow<()> {
        if self.levels.len() == MAX_DEPTH {
            return self.unreadable(&path, Obstacle::TooDeep);
        }
        let names = match self.list(directory.as_fd()) {
            Ok(names) => names,
            Err(obstacle) => return self.unreadable(&path, obstacle),
        };
        let rules = if self.visibility.ignored {
            Rules::none()
        } else {
            let has = |wanted: &CStr| {
                names.binary_search_by(|name| name.name.as_c_str().cmp(wanted)).is_ok()
            };
            let (rules, bad) = Rules::of(directory.as_fd(), &path, has, self.rules_in_force());
            for (name, obstacle) in bad {
                self.unreadable(&path.join(name), obstacle)?;
            }
            rules
        };
        self.levels.push(Level { directory, path, names: names.into_iter(), rules });
        ControlFlow::Continue(())
    }

    fn meet(&mut self, Name { name, listed }: &Name) -> ControlFlow<()> {
        let Some(level) = self.levels.last() else {
            return ControlFlow::Continue(());
        };
        if !self.visibility.hidden && name.to_bytes().starts_with(b".") {
            return ControlFlow::Continue(());
        }
        let path = level.path.join(OsStr::from_bytes(name.to_bytes()));
        let directory = level.directory.as_fd();
        let file_type = match own_type(directory, name, *listed) {
            Ok(file_type) => file_type,
            Err(Errno::NOENT) => return ControlFlow::Continue(()),
            Err(errno) => return self.unreadable(&path, errno.into()),
        };
        let is_directory = file_type == FileType::Directory;
        if self.is_ignored(&path, is_directory) {
            return ControlFlow::Continue(());
        }
        let entry = Entry { way: way(self.root, &path), file_type, directory, name };
        match (self.visit)(Found::Entry(entry)) {
            Next::Stop => ControlFlow::Break(()),
            Next::Enter if is_directory => {
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                match rustix::fs::openat(directory, name.as_c_str(), flags, Mode::empty()) {
                    Ok(directory) => self.enter(directory, path),
                    Err(Errno::NOENT) => ControlFlow::Continue(()),
                    Err(errno) => self.unreadable(&path, errno.into()),
                }
            }
            Next::Enter | Next::Pass => ControlFlow::Continue(()),
        }
    }

    fn list(&mut self, directory: BorrowedFd<'_>) -> Result<Vec<Name>, Obstacle> {
        let mut names: Vec<Name> = Vec::new();
        let mut view = View::of(directory)?;
        let read = self.listing.read(directory, |name, listed| {
            if !view.allows(OsStr::from_bytes(name.to_bytes()), RequiredAccess::Read) {
                return ControlFlow::Continue(());
            }
            if names.len() == MAX_DIRECTORY_NAMES {
                return ControlFlow::Break(());
            }
            names.push(Name { name: name.to_owned(), listed });
            ControlFlow::Continue(())
        })?;
        match read {
            ControlFlow::Continue(()) => {
                names.sort_unstable_by(|a, b| a.name.cmp(&b.name));
                Ok(names)
            }
            ControlFlow::Break(()) => Err(Obstacle::TooManyNames),
        }
    }

    /// The nearest matching rule decides.
    fn is_ignored(&self, path: &Path, is_directory: bool) -> bool {
        self.rules_in_force().find_map(|rules| rules.judge(path, is_directory)).unwrap_or(false)
    }

    /// Nearest first.
    fn rules_in_force(&self) -> impl Iterator<Item = &Rules> {
        self.levels.iter().rev().map(|level| &level.rules).chain(&self.above)
    }

    fn unreadable(&mut self, path: &Path, obstacle: Obstacle) -> ControlFlow<()> {
        match (self.visit)(Found::Unreadable { way: way(self.root, path), obstacle }) {
            Next::Stop => ControlFlow::Break(()),
            Next::Enter | Next::Pass => ControlFlow::Continue(()),
        }
    }
}

fn way<'a>(root: &Path, path: &'a Path) -> &'a Path {
    path.strip_prefix(root).expect("a walk stays below its root")
}

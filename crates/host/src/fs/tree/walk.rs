//! Walks a directory tree breadth first, within limits.
//!
//! Thousands of directories may be waiting to be read, so they are not held open: each is opened by
//! its path from the root. Symlinks on that path are followed only if requested.

use std::collections::HashSet;
use std::ffi::{CStr, OsStr};
use std::io;
use std::ops::{ControlFlow, Range};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::FileType;
use rustix::io::Errno;

use super::cancel::CancelFlag;
use crate::fs::confinement::{RequiredAccess, View};
use crate::fs::error::FsError;
use crate::fs::path::kind::FileKind;
use crate::fs::path::resolve::{self, Identity, Symlinks};
use crate::fs::read::listing::{Listing, followed_type, own_type};

/// The cost of an entry in a response in addition to its path.
const ENTRY_BYTES: usize = 48;

/// Returns the cost of an entry in a response. Its path is sent as a URI, where all but some ASCII
/// bytes become `%XX`.
pub(in crate::fs) fn cost(path: &Path) -> usize {
    let literal = |byte: &u8| byte.is_ascii_alphanumeric() || b"/-._~!$&'()*+,;=:@".contains(byte);
    let bytes = path.as_os_str().as_bytes();
    let literals = bytes.iter().filter(|byte| literal(byte)).count();
    ENTRY_BYTES + 3 * bytes.len() - 2 * literals
}

const MAX_ERRORS: usize = 1_000;

#[derive(Debug, Clone)]
pub struct WalkOptions {
    /// 0 lists the entries of the root, 1 also those of its subdirectories.
    pub max_depth: usize,
    /// Limit on the directories that are read, including the root.
    pub max_directories: usize,
    pub max_entries: usize,
    /// Limit on the response. Each entry and each error counts as 48 bytes plus the length of its
    /// path as a URI, and an error also by its message.
    pub max_bytes: usize,
    pub follow_directory_symlinks: bool,
    /// Directories whose name starts with a dot are listed but not entered.
    pub prune_hidden_directories: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Tree {
    pub entries: Vec<TreeEntry>,
    pub errors: Vec<TreeError>,
    /// A limit other than the depth was reached; there may be more entries.
    pub truncated: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TreeEntry {
    pub path: PathBuf,
    pub kind: TreeKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TreeKind {
    Directory,
    File,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TreeError {
    pub path: PathBuf,
    pub message: String,
}

/// Returns directories and regular files below `path`, excluding `path` itself, breadth first and
/// sorted by name within each directory.
///
/// Files of other kinds are left out. With `follow_directory_symlinks`, symlinks that lead to a
/// directory are listed as directories and entered, but each directory is entered only once. For a
/// regular file the result is empty. If a directory has more names than the limits allow, the file
/// system determines which are listed.
pub fn walk(path: &Path, options: &WalkOptions, cancel: &CancelFlag) -> Result<Tree, FsError> {
    let Some(root) = open_root(path)? else { return Ok(Tree::default()) };
    let mut walk = Walk {
        path,
        options,
        cancel,
        tree: Tree::default(),
        bytes: 0,
        waiting: Vec::new(),
        entered: HashSet::new(),
    };
    match walk.levels(&root) {
        ControlFlow::Continue(()) => {}
        ControlFlow::Break(Stopped::ByBound) => walk.tree.truncated = true,
        ControlFlow::Break(Stopped::Abandoned) => return Err(CancelFlag::abandoned(path)),
    }
    Ok(walk.tree)
}

enum Stopped {
    ByBound,
    Abandoned,
}

struct Walk<'a> {
    path: &'a Path,
    options: &'a WalkOptions,
    cancel: &'a CancelFlag,
    tree: Tree,
    bytes: usize,
    /// Indexes into `tree.entries` of directories that remain to be read.
    waiting: Vec<usize>,
    /// Used only if symlinks are followed: without them there are no cycles.
    entered: HashSet<Identity>,
}

struct Scratch {
    listing: Listing,
    names: Names,
}

impl Walk<'_> {
    fn levels(&mut self, root: &OwnedFd) -> ControlFlow<Stopped> {
        if self.options.max_directories == 0 {
            return ControlFlow::Break(Stopped::ByBound);
        }
        let mut scratch = Scratch { listing: Listing::new(), names: Names::default() };
        self.directory(root.as_fd(), self.path.to_owned(), &mut scratch)?;
        let mut read = 1;
        let mut depth = 0;
        while !self.waiting.is_empty() && depth < self.options.max_depth {
            for index in std::mem::take(&mut self.waiting) {
                if read == self.options.max_directories {
                    return ControlFlow::Break(Stopped::ByBound);
                }
                read += 1;
                self.below(root, index, &mut scratch)?;
            }
            depth += 1;
        }
        ControlFlow::Continue(())
    }

    fn below(
        &mut self,
        root: &OwnedFd,
        index: usize,
        scratch: &mut Scratch,
    ) -> ControlFlow<Stopped> {
        let path = self.tree.entries[index].path.clone();
        let way = path.strip_prefix(self.path).expect("entries are below the root");
        let symlinks = if self.options.follow_directory_symlinks {
            Symlinks::Follow
        } else {
            Symlinks::Refuse
        };
        match resolve::directory_below(root.as_fd(), way, symlinks) {
            Ok(directory) => self.directory(directory.as_fd(), path, scratch),
            Err(unresolved) => {
                let error = resolve::explain("open the directory", &path, symlinks, unresolved);
                self.error(path, &error)
            }
        }
    }

    fn directory(
        &mut self,
        directory: BorrowedFd<'_>,
        path: PathBuf,
        scratch: &mut Scratch,
    ) -> ControlFlow<Stopped> {
        if self.cancel.is_requested() {
            return ControlFlow::Break(Stopped::Abandoned);
        }
        if self.options.follow_directory_symlinks {
            match Identity::of(directory) {
                Ok(identity) if !self.entered.insert(identity) => {
                    return ControlFlow::Continue(());
                }
                Ok(_) => {}
                Err(errno) => {
                    let error = FsError::os("stat", &path)(errno);
                    return self.error(path, &error);
                }
            }
        }
        scratch.names.clear();
        let outcome = self.collect(directory, &path, scratch);
        scratch.names.sort();
        self.list(&path, &scratch.names)?;
        match outcome {
            Ok(flow) => flow,
            Err(errno) => {
                let error = FsError::os("read the directory", &path)(errno);
                self.error(path, &error)
            }
        }
    }

    /// Reads at most as many names as may be listed, and one more to detect that there are more.
    fn collect(
        &mut self,
        directory: BorrowedFd<'_>,
        path: &Path,
        scratch: &mut Scratch,
    ) -> Result<ControlFlow<Stopped>, Errno> {
        let room = self.options.max_entries - self.tree.entries.len();
        let Scratch { listing, names } = scratch;
        let mut view = View::of(directory)?;
        listing.read(directory, |name, listed| {
            if !view.allows(os_str(name), RequiredAccess::Read) {
                return ControlFlow::Continue(());
            }
            let follow = self.options.follow_directory_symlinks;
            let found = match find(directory, name, listed, follow) {
                Ok(Some(found)) => found,
                // Left out, or removed since it was listed.
                Ok(None) | Err(Errno::NOENT) => return ControlFlow::Continue(()),
                Err(errno) => {
                    let path = path.join(os_str(name));
                    let error = FsError::os("stat", &path)(errno);
                    return self.error(path, &error);
                }
            };
            if names.len() == room {
                return ControlFlow::Break(Stopped::ByBound);
            }
            names.push(name, found);
            ControlFlow::Continue(())
        })
    }

    fn list(&mut self, directory: &Path, names: &Names) -> ControlFlow<Stopped> {
        for (name, kind) in names.iter() {
            let mut path = PathBuf::with_capacity(directory.as_os_str().len() + 1 + name.len());
            path.push(directory);
            path.push(OsStr::from_bytes(name));
            self.pay(cost(&path))?;
            let is_pruned = self.options.prune_hidden_directories && name.starts_with(b".");
            if kind == TreeKind::Directory && !is_pruned {
                self.waiting.push(self.tree.entries.len());
            }
            self.tree.entries.push(TreeEntry { path, kind });
        }
        ControlFlow::Continue(())
    }

    fn error(&mut self, path: PathBuf, error: &FsError) -> ControlFlow<Stopped> {
        if self.tree.errors.len() == MAX_ERRORS {
            return ControlFlow::Break(Stopped::ByBound);
        }
        let message = error.to_string();
        self.pay(cost(&path) + message.len())?;
        self.tree.errors.push(TreeError { path, message });
        ControlFlow::Continue(())
    }

    fn pay(&mut self, bytes: usize) -> ControlFlow<Stopped> {
        self.bytes = self.bytes.saturating_add(bytes);
        if self.bytes > self.options.max_bytes {
            return ControlFlow::Break(Stopped::ByBound);
        }
        ControlFlow::Continue(())
    }
}

/// `None` if the path is a regular file.
fn open_root(path: &Path) -> Result<Option<OwnedFd>, FsError> {
    match resolve::directory(path, Symlinks::Follow) {
        Err(FsError::Os { source, .. }) if source.kind() == io::ErrorKind::NotADirectory => {
            // `ENOTDIR` may also concern a parent; then opening the node fails too.
            let node = resolve::node(path, Symlinks::Follow, RequiredAccess::Read)?;
            let stat = rustix::fs::fstat(&node).map_err(FsError::os("stat", path))?;
            resolve::expect_kind(path, &stat, FileKind::Regular, "a directory or a regular file")?;
            Ok(None)
        }
        opened => opened.map(Some),
    }
}

/// `None` for files that a walk leaves out.
fn find(
    directory: BorrowedFd<'_>,
    name: &CStr,
    listed: FileType,
    follow_directory_symlinks: bool,
) -> Result<Option<TreeKind>, Errno> {
    Ok(match own_type(directory, name, listed)? {
        FileType::RegularFile => Some(TreeKind::File),
        FileType::Directory => Some(TreeKind::Directory),
        FileType::Symlink if follow_directory_symlinks => {
            let target = followed_type(directory, name)?;
            (target == Some(FileType::Directory)).then_some(TreeKind::Directory)
        }
        _ => None,
    })
}

/// The names of one directory, in one buffer that is reused for the next.
#[derive(Debug, Default)]
struct Names {
    bytes: Vec<u8>,
    names: Vec<(Range<usize>, TreeKind)>,
}

impl Names {
    fn clear(&mut self) {
        self.bytes.clear();
        self.names.clear();
    }

    fn len(&self) -> usize {
        self.names.len()
    }

    fn push(&mut self, name: &CStr, kind: TreeKind) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(name.to_bytes());
        self.names.push((start..self.bytes.len(), kind));
    }

    fn sort(&mut self) {
        let bytes = &self.bytes;
        self.names.sort_unstable_by(|(a, _), (b, _)| bytes[a.clone()].cmp(&bytes[b.clone()]));
    }

    fn iter(&self) -> impl Iterator<Item = (&[u8], TreeKind)> {
        self.names.iter().map(|(range, kind)| (&self.bytes[range.clone()], *kind))
    }
}

fn os_str(name: &CStr) -> &OsStr {
    OsStr::from_bytes(name.to_bytes())
}

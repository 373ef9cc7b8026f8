//! Descends from the root of a tree to one directory in it, for trees of any depth.
//!
//! Every step opens a name in an open directory and follows no symlink. Only the root and the
//! lowest directories are held open, so that a deep tree does not exhaust descriptors. The others
//! are reopened through `..`, which leads elsewhere if a directory was moved during the descent. So
//! a reopened directory must be the one that the descent came through.

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::resolve::Identity;
use crate::fs::error::FsError;

/// How many directories stay open besides the root and the current one. Most trees are less deep.
const MAX_OPEN: usize = 32;

#[derive(Debug)]
pub(in crate::fs) struct TreeDescent {
    root: PathBuf,
    /// From the root down. Invariant: at most the root and the last `MAX_OPEN` are open.
    above: Vec<Above>,
    here: OwnedFd,
}

#[derive(Debug)]
struct Above {
    identity: Identity,
    /// `None`: closed, because it is far up.
    directory: Option<OwnedFd>,
    entered: OsString,
}

/// A directory that was left for its parent.
#[derive(Debug)]
pub(in crate::fs) struct Left {
    pub(in crate::fs) directory: OwnedFd,
    pub(in crate::fs) name: OsString,
}

impl TreeDescent {
    /// `path` appears in errors only.
    pub(in crate::fs) fn new(path: &Path, root: OwnedFd) -> Self {
        Self { root: path.to_owned(), above: Vec::new(), here: root }
    }

    pub(in crate::fs) fn here(&self) -> BorrowedFd<'_> {
        self.here.as_fd()
    }

    /// Fails for a symlink, with `ENOTDIR` or `ELOOP`.
    pub(in crate::fs) fn enter(&mut self, name: &OsStr) -> Result<(), Errno> {
        let directory = open_directory(self.here.as_fd(), name)?;
        let identity = Identity::of(self.here.as_fd())?;
        let left = std::mem::replace(&mut self.here, directory);
        let entered = name.to_owned();
        self.above.push(Above { identity, directory: Some(left), entered });
        let far = self.above.len().saturating_sub(MAX_OPEN + 1);
        if far > 0 {
            self.above[far].directory = None;
        }
        Ok(())
    }

    /// `None` at the root.
    pub(in crate::fs) fn leave(&mut self) -> Result<Option<Left>, FsError> {
        let Some(above) = self.above.pop() else { return Ok(None) };
        let directory = match above.directory {
            Some(directory) => directory,
            None => self.reopen_above(&above)?,
        };
        let directory = std::mem::replace(&mut self.here, directory);
        Ok(Some(Left { directory, name: above.entered }))
    }

    fn reopen_above(&self, above: &Above) -> Result<OwnedFd, FsError> {
        let path = self.path_of(&above.entered);
        let directory = open_directory(self.here.as_fd(), OsStr::new(".."))
            .map_err(FsError::os("open the directory of", &path))?;
        let found =
            Identity::of(directory.as_fd()).map_err(FsError::os("stat the directory of", &path))?;
        if found != above.identity {
            let why = "was moved to another directory during the operation";
            return Err(FsError::Unsuitable { path, why });
        }
        Ok(directory)
    }

    pub(in crate::fs) fn path(&self) -> PathBuf {
        let mut path = self.root.clone();
        path.extend(self.above.iter().map(|above| &above.entered));
        path
    }

    pub(in crate::fs) fn path_of(&self, name: &OsStr) -> PathBuf {
        let mut path = self.path();
        path.push(name);
        path
    }
}

/// Opens a directory for listing, never through a symlink.
pub(in crate::fs) fn open_directory(at: BorrowedFd<'_>, name: &OsStr) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(at, name, flags, Mode::empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEPTH: usize = 3 * MAX_OPEN;

    fn descent(top: &Path) -> TreeDescent {
        let root = open_directory(rustix::fs::CWD, top.as_os_str()).unwrap();
        let mut descent = TreeDescent::new(top, root);
        for _ in 0..DEPTH {
            rustix::fs::mkdirat(descent.here(), "d", Mode::RWXU).unwrap();
            descent.enter(OsStr::new("d")).unwrap();
        }
        descent
    }

    #[test]
    fn leaving_retraces_the_entered_directories() {
        let top = tempfile::tempdir().unwrap();
        let mut descent = descent(top.path());
        let open = descent.above.iter().filter(|above| above.directory.is_some()).count();
        assert_eq!(open, MAX_OPEN + 1);
        let root = Identity::from(&rustix::fs::stat(top.path()).unwrap());
        for _ in 0..DEPTH {
            let left = descent.leave().unwrap().unwrap();
            let again = open_directory(descent.here(), &left.name).unwrap();
            let both = [&again, &left.directory].map(|directory| Identity::of(directory.as_fd()));
            assert_eq!(both[0], both[1]);
        }
        assert!(descent.leave().unwrap().is_none());
        assert_eq!(Identity::of(descent.here()), Ok(root));
    }

    #[test]
    fn leaving_a_moved_directory_fails() {
        let top = tempfile::tempdir().unwrap();
        let mut descent = descent(top.path());
        let mut moved = top.path().to_owned();
        moved.extend(std::iter::repeat_n("d", DEPTH / 2));
        std::fs::rename(&moved, top.path().join("elsewhere")).unwrap();
        let error = loop {
            match descent.leave() {
                Ok(left) => assert!(left.is_some(), "the root was reached"),
                Err(error) => break error,
            }
        };
        match error {
            FsError::Unsuitable { path, .. } => assert_eq!(path, moved),
            other => panic!("{other}"),
        }
    }

    #[test]
    fn a_symlink_is_not_entered() {
        let top = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("/", top.path().join("link")).unwrap();
        let root = open_directory(rustix::fs::CWD, top.path().as_os_str()).unwrap();
        let mut descent = TreeDescent::new(top.path(), root);
        let refused = descent.enter(OsStr::new("link"));
        assert!(matches!(refused, Err(Errno::NOTDIR | Errno::LOOP)), "{refused:?}");
    }
}

//! An in-memory file system for tests.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

use super::{Hold, NameKind, Names};

#[derive(Debug, Clone, Default)]
pub(in crate::sandbox) struct FakeNames {
    nodes: BTreeMap<PathBuf, Node>,
    holds: BTreeMap<PathBuf, Hold>,
    unchangeable: BTreeSet<PathBuf>,
}

#[derive(Debug, Clone)]
enum Node {
    Directory,
    File(Vec<u8>),
    Symlink(PathBuf),
    Unreadable,
    Forbidden,
}

impl FakeNames {
    pub(in crate::sandbox) fn directory(self, path: impl AsRef<Path>) -> Self {
        self.node(path.as_ref(), Node::Directory)
    }

    pub(in crate::sandbox) fn file(self, path: impl AsRef<Path>) -> Self {
        self.node(path.as_ref(), Node::File(Vec::new()))
    }

    pub(in crate::sandbox) fn file_with(self, path: impl AsRef<Path>, content: &[u8]) -> Self {
        self.node(path.as_ref(), Node::File(content.to_owned()))
    }

    pub(in crate::sandbox) fn symlink(
        self,
        path: impl AsRef<Path>,
        target: impl AsRef<Path>,
    ) -> Self {
        self.node(path.as_ref(), Node::Symlink(target.as_ref().to_owned()))
    }

    pub(in crate::sandbox) fn unreadable(self, path: impl AsRef<Path>) -> Self {
        self.node(path.as_ref(), Node::Unreadable)
    }

    /// A path whose kind and content cannot be queried.
    pub(in crate::sandbox) fn forbidden(self, path: impl AsRef<Path>) -> Self {
        self.node(path.as_ref(), Node::Forbidden)
    }

    /// Sets who can replace the name, which another user owns in a sticky directory.
    pub(in crate::sandbox) fn held(mut self, path: impl AsRef<Path>, hold: Hold) -> Self {
        self.holds.insert(path.as_ref().to_owned(), hold);
        self
    }

    /// A directory in which only root can create names.
    pub(in crate::sandbox) fn unchangeable(mut self, directory: impl AsRef<Path>) -> Self {
        self.unchangeable.insert(directory.as_ref().to_owned());
        self
    }

    fn node(mut self, path: &Path, node: Node) -> Self {
        assert!(path.is_absolute());
        for above in path.ancestors().skip(1) {
            self.nodes.entry(above.to_owned()).or_insert(Node::Directory);
        }
        self.nodes.insert(path.to_owned(), node);
        self
    }
}

impl Names for FakeNames {
    fn kind(&self, path: &Path) -> io::Result<NameKind> {
        match self.nodes.get(path) {
            None if path == Path::new("/") => Ok(NameKind::Directory),
            None => Ok(NameKind::Missing),
            Some(Node::Directory) => Ok(NameKind::Directory),
            Some(Node::File(_) | Node::Unreadable) => Ok(NameKind::File),
            Some(Node::Symlink(_)) => Ok(NameKind::Symlink),
            Some(Node::Forbidden) => Err(io::ErrorKind::PermissionDenied.into()),
        }
    }

    fn read_link(&self, path: &Path) -> io::Result<PathBuf> {
        match self.nodes.get(path) {
            Some(Node::Symlink(target)) => Ok(target.clone()),
            _ => Err(io::ErrorKind::InvalidInput.into()),
        }
    }

    fn list(&self, directory: &Path, max: usize) -> io::Result<Vec<(OsString, NameKind)>> {
        if self.kind(directory)? != NameKind::Directory {
            return Err(io::ErrorKind::NotADirectory.into());
        }
        let inside = self.nodes.keys().filter(|path| path.parent() == Some(directory));
        inside
            .take(max)
            .map(|path| {
                let name = path.file_name().expect("a path with a parent has a name").to_owned();
                Ok((name, self.kind(path)?))
            })
            .collect()
    }

    fn read_start(&self, file: &Path, max: usize) -> io::Result<Vec<u8>> {
        match self.nodes.get(file) {
            Some(Node::File(content)) => Ok(content.iter().copied().take(max).collect()),
            _ => Err(io::ErrorKind::InvalidInput.into()),
        }
    }

    fn hold(&self, path: &Path) -> io::Result<Hold> {
        Ok(self.holds.get(path).copied().unwrap_or(Hold::Ours))
    }

    fn is_changeable(&self, directory: &Path) -> io::Result<bool> {
        Ok(!self.unchangeable.contains(directory))
    }
}

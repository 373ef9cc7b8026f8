use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, mknodat};
use tempfile::TempDir;

use crate::uri;

/// A directory for one test, with a path free of symlinks. Removed with its contents on drop.
#[derive(Debug)]
pub struct Scratch {
    root: PathBuf,
    _directory: TempDir,
}

impl Scratch {
    #[expect(clippy::new_without_default, reason = "it makes a directory")]
    #[must_use]
    pub fn new() -> Self {
        Self::of(tempfile::tempdir().unwrap())
    }

    /// Creates the directory in memory if possible, for work that would keep a disk busy.
    #[must_use]
    pub fn in_memory() -> Self {
        Self::of(tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap())
    }

    fn of(directory: TempDir) -> Self {
        let root = directory.path().canonicalize().unwrap();
        Self { root, _directory: directory }
    }

    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    pub fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.root.join(name)
    }

    pub fn uri(&self, name: impl AsRef<Path>) -> String {
        uri(self.path(name))
    }

    /// Creates a directory and its parents.
    pub fn directory(&self, name: impl AsRef<Path>) -> PathBuf {
        let path = self.path(name);
        std::fs::create_dir_all(&path).unwrap();
        path
    }

    /// Writes a file and creates its parent directories.
    pub fn file(&self, name: impl AsRef<Path>, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, content).unwrap();
        path
    }

    pub fn file_with_mode(
        &self,
        name: impl AsRef<Path>,
        content: impl AsRef<[u8]>,
        mode: u32,
    ) -> PathBuf {
        let path = self.file(name, content);
        std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
        path
    }

    pub fn symlink(&self, target: impl AsRef<Path>, name: impl AsRef<Path>) -> PathBuf {
        let path = self.path(name);
        std::os::unix::fs::symlink(target, &path).unwrap();
        path
    }

    pub fn fifo(&self, name: impl AsRef<Path>) -> PathBuf {
        let path = self.path(name);
        mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        path
    }

    /// Returns the names in the directory, sorted.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        self.names_in("")
    }

    pub fn names_in(&self, name: impl AsRef<Path>) -> Vec<String> {
        let entries = std::fs::read_dir(self.path(name)).unwrap();
        let name = |entry: std::io::Result<std::fs::DirEntry>| entry.unwrap().file_name();
        let mut names: Vec<_> =
            entries.map(|entry| name(entry).to_string_lossy().into_owned()).collect();
        names.sort_unstable();
        names
    }
}

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, mknodat};
use tempfile::TempDir;

use crate::uri;

/// A directory for one test, by a path without symlinks. It is removed with everything in it.
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

    /// In memory where possible, for work that would keep a disk busy.
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

    /// The `file:` URI of a name.
    pub fn uri(&self, name: impl AsRef<Path>) -> String {
        uri(self.path(name))
    }

    /// Makes a directory, and those above it.
    pub fn directory(&self, name: impl AsRef<Path>) -> PathBuf {
        let path = self.path(name);
        std::fs::create_dir_all(&path).unwrap();
        path
    }

    /// Writes a file, and makes the directories above it.
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

    /// The names in the directory, sorted.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        self.names_in("")
    }

    /// The names in a directory below, sorted.
    pub fn names_in(&self, name: impl AsRef<Path>) -> Vec<String> {
        let entries = std::fs::read_dir(self.path(name)).unwrap();
        let name = |entry: std::io::Result<std::fs::DirEntry>| entry.unwrap().file_name();
        let mut names: Vec<_> =
            entries.map(|entry| name(entry).to_string_lossy().into_owned()).collect();
        names.sort_unstable();
        names
    }
}

//! What the tests have in common: a directory of their own, and the two ways to write.

use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use exec_server_host::fs::{Condition, FsError, Symlinks, WriteOptions};

pub(crate) const PLAIN: WriteOptions = WriteOptions {
    symlinks: Symlinks::Follow,
    atomic: false,
    mode: None,
    condition: Condition { modified_at_ms: None, size: None, create_new: false },
};
pub(crate) const ATOMIC: WriteOptions = WriteOptions { atomic: true, ..PLAIN };
pub(crate) const BOTH: [WriteOptions; 2] = [PLAIN, ATOMIC];

/// Removed with everything in it.
pub(crate) struct Scene {
    _directory: tempfile::TempDir,
    pub(crate) root: PathBuf,
}

impl Scene {
    pub(crate) fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().canonicalize().unwrap();
        Self { _directory: directory, root }
    }

    pub(crate) fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.root.join(name)
    }

    pub(crate) fn file(&self, name: &str, content: &str, mode: u32) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, content).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        path
    }

    pub(crate) fn names(&self) -> Vec<String> {
        let mut names: Vec<_> = std::fs::read_dir(&self.root)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }
}

pub(crate) fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

pub(crate) fn umask() -> u32 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("Umask:")).unwrap();
    u32::from_str_radix(line.trim(), 8).unwrap()
}

pub(crate) fn denied(error: &FsError) -> bool {
    matches!(error, FsError::Os { source, .. } if source.kind() == io::ErrorKind::PermissionDenied)
}

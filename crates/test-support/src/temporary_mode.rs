use std::fs::{Permissions, metadata, set_permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

/// Changes the mode of a file or directory, and restores it on drop, even if the test fails. An
/// ordinary user cannot remove a tree that contains an inaccessible directory.
#[derive(Debug)]
#[must_use = "the former mode is restored when this is dropped"]
pub struct TemporaryMode {
    path: PathBuf,
    former: Permissions,
}

impl TemporaryMode {
    /// # Panics
    ///
    /// If the mode cannot be set.
    pub fn set(path: impl Into<PathBuf>, mode: u32) -> Self {
        let path = path.into();
        let changed = metadata(&path).and_then(|metadata| {
            set_permissions(&path, Permissions::from_mode(mode))?;
            Ok(metadata.permissions())
        });
        match changed {
            Ok(former) => Self { path, former },
            Err(error) => panic!("cannot set mode {mode:o} on {}: {error}", path.display()),
        }
    }
}

impl Drop for TemporaryMode {
    fn drop(&mut self) {
        // The test may have removed the file.
        let _ = set_permissions(&self.path, self.former.clone());
    }
}

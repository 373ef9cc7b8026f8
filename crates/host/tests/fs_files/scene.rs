//! Shared by the tests: the two ways to write, and helpers for modes.

use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use exec_server_host::fs::{Condition, FsError, Symlinks, WriteOptions};

pub(crate) const PLAIN: WriteOptions = WriteOptions {
    symlinks: Symlinks::Follow,
    atomic: false,
    mode: None,
    condition: Condition { modified_at_ms: None, size: None, create_new: false },
};
pub(crate) const ATOMIC: WriteOptions = WriteOptions { atomic: true, ..PLAIN };
pub(crate) const BOTH: [WriteOptions; 2] = [PLAIN, ATOMIC];

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

//! Sets permission bits.

use std::os::fd::AsFd as _;
use std::path::Path;

use rustix::fs::Mode;

use crate::fs::confinement::RequiredAccess;
use crate::fs::error::FsError;
use crate::fs::path::procfs;
use crate::fs::path::resolve::{self, Symlinks};

/// Sets the permission bits of any kind of file, directories and devices included. The file is not
/// opened for reading or writing.
pub fn set_permissions(path: &Path, mode: u32, symlinks: Symlinks) -> Result<(), FsError> {
    let mode = permission_bits(path, mode)?;
    let node = resolve::node(path, symlinks, RequiredAccess::Write)?;
    // The path could lead to another file by now, and fchmod takes no `O_PATH` descriptor.
    let link = procfs::own_link(node.as_fd());
    rustix::fs::chmod(link, mode).map_err(FsError::os("set the permissions of", path))
}

pub(in crate::fs) fn permission_bits(path: &Path, mode: u32) -> Result<Mode, FsError> {
    if mode > 0o7777 {
        let why = "cannot have mode bits beyond 0o7777";
        return Err(FsError::Unsuitable { path: path.to_owned(), why });
    }
    Ok(Mode::from_raw_mode(mode))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::fs::metadata;

    #[test]
    fn the_resolved_file_is_changed() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path().canonicalize().unwrap();
        let file = root.join("file");
        std::fs::write(&file, "").unwrap();
        symlink("file", root.join("link")).unwrap();
        let mode_of_file = || metadata(&file, Symlinks::Refuse).unwrap().mode;

        set_permissions(&file, 0o4751, Symlinks::Refuse).unwrap();
        assert_eq!(mode_of_file(), 0o4751);
        set_permissions(&root.join("link"), 0o600, Symlinks::Follow).unwrap();
        assert_eq!(mode_of_file(), 0o600);
        let refused = set_permissions(&root.join("link"), 0o777, Symlinks::Refuse).unwrap_err();
        assert!(matches!(refused, FsError::Symlink { .. }), "{refused}");
        let beyond = set_permissions(&file, 0o10_777, Symlinks::Follow).unwrap_err();
        assert!(matches!(beyond, FsError::Unsuitable { .. }), "{beyond}");
        assert_eq!(mode_of_file(), 0o600);

        set_permissions(&root, 0o711, Symlinks::Refuse).unwrap();
        assert_eq!(metadata(&root, Symlinks::Refuse).unwrap().mode, 0o711);
    }
}

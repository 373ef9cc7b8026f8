//! Creates and reads symlinks, and resolves all symlinks in a path.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;

use crate::fs::confinement::RequiredAccess;
use crate::fs::error::FsError;
use crate::fs::path::resolve::{self, Parent, Symlinks};

/// Returns the absolute path without symlinks, `.` and `..`. Every component must exist.
pub fn canonicalize(path: &Path) -> Result<PathBuf, FsError> {
    resolve::real_path(path)
}

/// `symlinks` applies to the directories of the path.
pub fn read_link(path: &Path, symlinks: Symlinks) -> Result<OsString, FsError> {
    let Parent { directory, name } = resolve::parent(path, symlinks, RequiredAccess::Read)?;
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let node = rustix::fs::openat(&directory, &name, flags, Mode::empty())
        .map_err(FsError::os("open", path))?;
    let stat = rustix::fs::fstat(&node).map_err(FsError::os("stat", path))?;
    let found = FileType::from_raw_mode(stat.st_mode);
    if found != FileType::Symlink {
        let path = path.to_owned();
        return Err(FsError::WrongKind { path, found: found.into(), wanted: "a symlink" });
    }
    let target = rustix::fs::readlinkat(&node, "", Vec::new())
        .map_err(FsError::os("read the symlink", path))?;
    Ok(OsString::from_vec(target.into_bytes()))
}

/// Makes `path` a symlink to `target`, which is not checked.
pub fn symlink(target: &OsStr, path: &Path, symlinks: Symlinks) -> Result<(), FsError> {
    let Parent { directory, name } = resolve::parent(path, symlinks, RequiredAccess::Change)?;
    rustix::fs::symlinkat(target, &directory, &name).map_err(|errno| match errno {
        Errno::EXIST => FsError::already_exists(path),
        _ => FsError::os("create the symlink", path)(errno),
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt as _;

    use super::*;
    use crate::fs::FileKind;

    #[test]
    fn any_target_round_trips() {
        let root = tempfile::tempdir().unwrap();
        let long = vec![b'x'; 4_000];
        for (index, target) in
            [&b"plain"[..], b"/abs/../olute", b"not\xff\xfeutf8", &long].into_iter().enumerate()
        {
            let link = root.path().join(index.to_string());
            symlink(OsStr::from_bytes(target), &link, Symlinks::Follow).unwrap();
            assert_eq!(read_link(&link, Symlinks::Follow).unwrap().as_bytes(), target);
        }
    }

    #[test]
    fn creating_a_symlink_replaces_nothing() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path().canonicalize().unwrap();
        let taken = root.join("taken");
        symlink(OsStr::new("nowhere"), &taken, Symlinks::Refuse).unwrap();
        let again = symlink(OsStr::new("elsewhere"), &taken, Symlinks::Refuse).unwrap_err();
        assert!(matches!(again, FsError::Conflict { .. }), "{again}");
        assert_eq!(read_link(&taken, Symlinks::Refuse).unwrap(), "nowhere");

        symlink(root.as_os_str(), &root.join("up"), Symlinks::Refuse).unwrap();
        let through = root.join("up/taken");
        assert_eq!(read_link(&through, Symlinks::Follow).unwrap(), "nowhere");
        let refused = read_link(&through, Symlinks::Refuse).unwrap_err();
        assert!(matches!(refused, FsError::Symlink { .. }), "{refused}");
        let refused = symlink(OsStr::new("x"), &root.join("up/new"), Symlinks::Refuse).unwrap_err();
        assert!(matches!(refused, FsError::Symlink { .. }), "{refused}");
        assert!(!root.join("new").exists());
    }

    #[test]
    fn reading_the_target_of_a_directory_fails() {
        let root = tempfile::tempdir().unwrap();
        let error = read_link(root.path(), Symlinks::Follow).unwrap_err();
        assert!(matches!(error, FsError::WrongKind { found: FileKind::Directory, .. }), "{error}");
        assert!(read_link(&root.path().join("no"), Symlinks::Follow).unwrap_err().is_not_found());
    }

    #[test]
    fn canonicalize_resolves_all_symlinks() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path().canonicalize().unwrap();
        std::fs::create_dir(root.join("real")).unwrap();
        symlink(OsStr::new("real"), &root.join("link"), Symlinks::Follow).unwrap();
        assert_eq!(canonicalize(&root.join("link/../link/.")).unwrap(), root.join("real"));
        assert!(canonicalize(&root.join("missing")).unwrap_err().is_not_found());
    }
}

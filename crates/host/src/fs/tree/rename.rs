//! Renames files and directories. A symlink at the end of a path is not followed.

use std::ffi::OsStr;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::path::Path;

use rustix::fs::{AtFlags, FileType, RenameFlags};
use rustix::io::Errno;

use super::cancel::CancelFlag;
use super::precheck::{self, CheckedTree};
use crate::fs::confinement::{RequiredAccess, in_force};
use crate::fs::error::FsError;
use crate::fs::path::destination::names_directory;
use crate::fs::path::kind::FileKind;
use crate::fs::path::resolve::{self, Parent, Symlinks};
use crate::fs::write::write_lock::WriteLock;

/// Whether an existing destination may be replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Replace {
    Yes,
    No,
}

/// `symlinks` applies to the directories of both paths.
pub fn rename(
    source: &Path,
    destination: &Path,
    replace: Replace,
    symlinks: Symlinks,
) -> Result<(), FsError> {
    let from = resolve::parent(source, symlinks, RequiredAccess::Change)?;
    let to = resolve::parent(destination, symlinks, RequiredAccess::Change)?;
    expect_movable(source, &from, destination, &to)?;
    expect_directory_if_named(&from, source, destination)?;
    // A conditional write that has checked one of the names must find the same file when it writes.
    let _names = WriteLock::names([(&from, source), (&to, destination)])?;
    let (old, new) = (from.directory.as_fd(), to.directory.as_fd());
    match replace {
        Replace::Yes => rustix::fs::renameat(old, &from.name, new, &to.name),
        Replace::No => without_replacing(old, &from.name, new, &to.name),
    }
    .map_err(|errno| explain(source, destination, errno))
}

/// Fails if a path ends in a slash and the source is not a directory, as rename(2) does.
fn expect_directory_if_named(
    from: &Parent,
    source: &Path,
    destination: &Path,
) -> Result<(), FsError> {
    if !names_directory(source) && !names_directory(destination) {
        return Ok(());
    }
    let stat = rustix::fs::statat(&from.directory, &from.name, AtFlags::SYMLINK_NOFOLLOW);
    let stat = stat.map_err(FsError::os("rename", source))?;
    resolve::expect_kind(source, &stat, FileKind::Directory, "a directory")
}

/// Checks a move against the policy. A directory moves with its content, but a rule stays at its
/// path. So a path with less access than the rest must not be moved away from its rule, and no file
/// may be moved to a path where a rule forbids it.
fn expect_movable(
    source: &Path,
    from: &Parent,
    destination: &Path,
    to: &Parent,
) -> Result<(), FsError> {
    let Some(confinement) = in_force() else { return Ok(()) };
    let sites = [
        CheckedTree::of(from.directory.as_fd(), &from.name, RequiredAccess::Change, source)?,
        CheckedTree::of(to.directory.as_fd(), &to.name, RequiredAccess::Change, destination)?,
    ];
    // The directories may have been moved since they were opened.
    for (site, path) in sites.iter().zip([source, destination]) {
        if !confinement.has(&site.place, site.required) {
            return Err(FsError::denied(path, site.required));
        }
    }
    precheck::expect(from.directory.as_fd(), &from.name, &sites, source, &CancelFlag::never())
}

/// Fails with `EEXIST` if the new name exists.
pub(in crate::fs) fn without_replacing(
    old: BorrowedFd<'_>,
    old_name: &OsStr,
    new: BorrowedFd<'_>,
    new_name: &OsStr,
) -> Result<(), Errno> {
    let renamed = rustix::fs::renameat_with(old, old_name, new, new_name, RenameFlags::NOREPLACE);
    if !matches!(renamed, Err(Errno::INVAL | Errno::NOSYS)) {
        return renamed;
    }
    // Some file systems lack the flag. Creating a hard link cannot replace anything either, but
    // directories cannot have hard links.
    let stat = rustix::fs::statat(old, old_name, AtFlags::SYMLINK_NOFOLLOW)?;
    if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
        return renamed;
    }
    rustix::fs::linkat(old, old_name, new, new_name, AtFlags::empty())?;
    rustix::fs::unlinkat(old, old_name, AtFlags::empty())
}

fn explain(source: &Path, destination: &Path, errno: Errno) -> FsError {
    let unsuitable = |why| FsError::Unsuitable { path: source.to_owned(), why };
    match errno {
        Errno::EXIST => FsError::already_exists(destination),
        Errno::NOTEMPTY | Errno::ISDIR | Errno::NOTDIR => {
            FsError::os("replace", destination)(errno)
        }
        Errno::XDEV => unsuitable(
            "is on a different file system from its destination; copy it and remove the original",
        ),
        Errno::INVAL if destination.starts_with(source) => {
            unsuitable("cannot be moved below itself")
        }
        _ => FsError::os("rename", source)(errno),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::path::PathBuf;

    use exec_server_test_support::skipped;

    use super::*;

    fn root() -> (tempfile::TempDir, PathBuf) {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().canonicalize().unwrap();
        (root, path)
    }

    #[test]
    fn an_existing_file_is_replaced_only_on_request() {
        let (_root, root) = root();
        let (one, two) = (root.join("one"), root.join("two"));
        std::fs::write(&one, "1").unwrap();
        std::fs::write(&two, "2").unwrap();
        let kept = rename(&one, &two, Replace::No, Symlinks::Refuse).unwrap_err();
        assert!(matches!(&kept, FsError::Conflict { path, .. } if *path == two), "{kept}");
        assert_eq!(std::fs::read(&two).unwrap(), b"2");
        rename(&one, &two, Replace::Yes, Symlinks::Refuse).unwrap();
        assert_eq!(std::fs::read(&two).unwrap(), b"1");
        assert!(!one.exists());
        rename(&two, &one, Replace::No, Symlinks::Refuse).unwrap();
        assert!(rename(&two, &one, Replace::Yes, Symlinks::Follow).unwrap_err().is_not_found());
        rename(&one, &one, Replace::Yes, Symlinks::Follow).unwrap();
    }

    #[test]
    fn a_symlink_is_moved_or_replaced_but_not_followed() {
        let (_root, root) = root();
        let (link, file) = (root.join("link"), root.join("file"));
        std::fs::write(&file, "x").unwrap();
        symlink("file", &link).unwrap();
        rename(&link, &root.join("moved"), Replace::No, Symlinks::Follow).unwrap();
        assert_eq!(std::fs::read_link(root.join("moved")).unwrap(), Path::new("file"));
        rename(&file, &root.join("moved"), Replace::Yes, Symlinks::Follow).unwrap();
        assert!(root.join("moved").symlink_metadata().unwrap().is_file());

        symlink(".", root.join("here")).unwrap();
        let through = root.join("here/moved");
        let refused = rename(&through, &root.join("x"), Replace::Yes, Symlinks::Refuse);
        assert!(matches!(refused, Err(FsError::Symlink { .. })), "{refused:?}");
    }

    #[test]
    fn a_trailing_slash_requires_a_directory() {
        let (_root, root) = root();
        std::fs::write(root.join("file"), "").unwrap();
        std::fs::create_dir(root.join("directory")).unwrap();
        let refused =
            rename(&root.join("file"), &root.join("new/"), Replace::Yes, Symlinks::Follow);
        assert!(matches!(refused, Err(FsError::WrongKind { .. })), "{refused:?}");
        assert!(root.join("file").exists() && !root.join("new").exists());
        let refused =
            rename(&root.join("file/"), &root.join("new"), Replace::Yes, Symlinks::Follow);
        assert!(matches!(refused, Err(FsError::WrongKind { .. })), "{refused:?}");
        rename(&root.join("directory"), &root.join("new/"), Replace::Yes, Symlinks::Follow)
            .unwrap();
        assert!(root.join("new").is_dir());
    }

    #[test]
    fn errors_explain_an_impossible_move() {
        let (_root, root) = root();
        std::fs::create_dir_all(root.join("a/b")).unwrap();
        let below = rename(&root.join("a"), &root.join("a/b/c"), Replace::No, Symlinks::Follow);
        assert!(below.unwrap_err().to_string().ends_with("below itself"));
        std::fs::write(root.join("file"), "").unwrap();
        let over = rename(&root.join("file"), &root.join("a"), Replace::Yes, Symlinks::Follow);
        assert!(matches!(over, Err(FsError::Os { action: "replace", .. })), "{over:?}");

        let device = |path: &Path| rustix::fs::stat(path).unwrap().st_dev;
        let elsewhere = tempfile::tempdir_in("/dev/shm").ok();
        let elsewhere = elsewhere.filter(|other| device(other.path()) != device(&root));
        let Some(elsewhere) = elsewhere else {
            return skipped("a rename to another file system: /dev/shm is not one");
        };
        let away = elsewhere.path().join("file");
        let error = rename(&root.join("file"), &away, Replace::No, Symlinks::Follow);
        assert!(error.unwrap_err().to_string().contains("different file system"));
    }
}

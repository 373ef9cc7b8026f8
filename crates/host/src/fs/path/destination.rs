//! Finds where a write ends up: symlinks at the end of a path are followed to a name in an open
//! directory. A temporary file must be in that directory, and a missing file is created under that
//! name.

use std::ffi::OsStr;
use std::os::fd::AsFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use rustix::fs::AtFlags;
use rustix::io::Errno;

use super::kind::FileKind;
use super::resolve::{self, Identity, Parent, Symlinks};
use crate::fs::confinement::{self, RequiredAccess};
use crate::fs::error::FsError;
use crate::fs::write::condition::Condition;

/// The kernel's limit on symlinks in one path.
const MAX_LINKS: usize = 40;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::fs) enum LastLink {
    Followed,
    /// The path names the symlink itself.
    Kept,
}

impl LastLink {
    /// Like open(2) with `O_EXCL`, a write that must create its file treats a symlink as an
    /// existing file.
    pub(in crate::fs) fn under(condition: &Condition) -> Self {
        if condition.create_new { Self::Kept } else { Self::Followed }
    }
}

/// `None` if the path changed while it was followed.
pub(in crate::fs) fn find(
    path: &Path,
    symlinks: Symlinks,
    last: LastLink,
) -> Result<Option<Parent>, FsError> {
    if names_directory(path) {
        return Err(FsError::NamesDirectory { path: path.to_owned() });
    }
    if symlinks == Symlinks::Refuse || last == LastLink::Kept {
        return resolve::parent(path, symlinks, RequiredAccess::Write).map(Some);
    }
    let mut place = resolve::parent(path, symlinks, RequiredAccess::Read)
        .map_err(|error| as_write(path, error))?;
    for followed in 0..=MAX_LINKS {
        match rustix::fs::readlinkat(&place.directory, &place.name, Vec::new()) {
            Ok(target) => place = step(path, &place, OsStr::from_bytes(target.as_bytes()))?,
            Err(Errno::INVAL | Errno::NOENT) => {
                // Read access to the path does not imply write access to its destination.
                confinement::expect(
                    place.directory.as_fd(),
                    &place.name,
                    RequiredAccess::Write,
                    path,
                )?;
                let is_there = followed == 0 || leads_to(path, &place)?;
                return Ok(is_there.then_some(place));
            }
            Err(errno) => return Err(FsError::os("open", path)(errno)),
        }
    }
    Err(FsError::os("open", path)(Errno::LOOP))
}

fn step(path: &Path, from: &Parent, target: &OsStr) -> Result<Parent, FsError> {
    let name = last_component(target);
    if matches!(name, b"" | b"." | b"..") {
        return Err(not_a_file(path));
    }
    let above = match &target.as_bytes()[..target.len() - name.len()] {
        b"" => b".",
        above => above,
    };
    let above = Path::new(OsStr::from_bytes(above));
    let directory =
        resolve::directory_of_target(from.directory.as_fd(), above).map_err(|unresolved| {
            let action = "open the directory of";
            as_write(path, resolve::explain(action, path, Symlinks::Follow, unresolved))
        })?;
    let name = OsStr::from_bytes(name).to_owned();
    confinement::expect(directory.as_fd(), &name, RequiredAccess::Pass, path)
        .map_err(|error| as_write(path, error))?;
    Ok(Parent { directory, name })
}

/// Turns a denied read into a denied write: the error must not reveal how much of the path may be
/// read.
fn as_write(path: &Path, error: FsError) -> FsError {
    match error {
        FsError::Denied { .. } => FsError::denied(path, RequiredAccess::Write),
        other => other,
    }
}

/// Whether the kernel resolves `path` to `place`. Only the kernel knows where magic links
/// (below `/proc`) lead, and it refuses links that other users have planted
/// (`fs.protected_symlinks`).
fn leads_to(path: &Path, place: &Parent) -> Result<bool, FsError> {
    let here = rustix::fs::statat(&place.directory, &place.name, AtFlags::SYMLINK_NOFOLLOW);
    match (resolve::node(path, Symlinks::Follow, RequiredAccess::Write), here) {
        (Ok(node), Ok(here)) => {
            let there = Identity::of(node.as_fd()).map_err(FsError::os("stat", path))?;
            Ok(Identity::from(&here) == there)
        }
        (Err(error), Err(Errno::NOENT)) if error.is_not_found() => Ok(true),
        (Err(error), _) if !error.is_not_found() => Err(error),
        _ => Ok(false),
    }
}

/// Returns the text after the last slash. [`Path::file_name`] would skip a trailing slash or dot,
/// which marks a directory.
fn last_component(path: &OsStr) -> &[u8] {
    path.as_bytes().rsplit(|&byte| byte == b'/').next().unwrap_or_default()
}

fn not_a_file(path: &Path) -> FsError {
    FsError::WrongKind {
        path: path.to_owned(),
        found: FileKind::Directory,
        wanted: "a regular file",
    }
}

/// Whether the path ends in a slash, `.` or `..`, so it can only name a directory.
pub(in crate::fs) fn names_directory(path: &Path) -> bool {
    matches!(last_component(path.as_os_str()), b"" | b"." | b"..")
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn symlinks_are_followed_to_the_final_name() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path().canonicalize().unwrap();
        std::fs::create_dir_all(root.join("a/b")).unwrap();
        std::fs::write(root.join("a/b/file"), "").unwrap();
        symlink("a/b/file", root.join("relative")).unwrap();
        symlink(root.join("relative"), root.join("a/absolute")).unwrap();
        symlink("../../nothing", root.join("a/b/dangling")).unwrap();
        symlink("b/dangling", root.join("a/twice")).unwrap();
        symlink("loop", root.join("loop")).unwrap();
        symlink("a/b/", root.join("directory")).unwrap();
        symlink("missing/x", root.join("no_parent")).unwrap();

        let find = |path: &str| find(&root.join(path), Symlinks::Follow, LastLink::Followed);
        let place = |path: &str| {
            let place = find(path).unwrap().unwrap();
            let link =
                format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&place.directory));
            std::fs::read_link(link).unwrap().join(place.name)
        };
        assert_eq!(place("a/b/file"), root.join("a/b/file"));
        assert_eq!(place("relative"), root.join("a/b/file"));
        assert_eq!(place("a/absolute"), root.join("a/b/file"));
        assert_eq!(place("a/b/dangling"), root.join("nothing"));
        assert_eq!(place("a/twice"), root.join("nothing"));
        assert_eq!(place("new"), root.join("new"));
        let looped = find("loop").unwrap_err();
        assert!(matches!(looped, FsError::Unsuitable { .. }), "{looped}");
        let linked = find("directory").unwrap_err();
        assert!(matches!(linked, FsError::WrongKind { .. }), "{linked}");
        for directory in ["new/", "new/.", "a/.."] {
            let error = find(directory).unwrap_err();
            assert!(matches!(error, FsError::NamesDirectory { .. }), "{directory}: {error}");
        }
        assert!(find("no_parent").unwrap_err().is_not_found());
    }

    #[test]
    fn a_magic_link_is_not_resolved_by_its_text() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("gone");
        let file = std::fs::File::create(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let magic = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
        let error = find(Path::new(&magic), Symlinks::Follow, LastLink::Followed).unwrap_err();
        assert!(error.to_string().contains("a magic link"), "{error}");
    }
}

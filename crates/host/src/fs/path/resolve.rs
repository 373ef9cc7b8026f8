//! Resolves paths to open descriptors. A descriptor stays with its file, even if the name is moved
//! or replaced.
//!
//! A file is opened for reading or writing only once it is known to be a regular file or a
//! directory: opening a FIFO waits for its other end or wakes it, and opening a device may do
//! anything. Opening with `O_PATH` has no such effect.
//!
//! On kernels with `openat2`, magic links, such as `/proc/self/fd/3`, are not followed even with
//! [`Symlinks::Follow`]: those of this process may lead to files that have no other name, including
//! files of other clients.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path, PathBuf};
use std::sync::OnceLock;

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;

use super::confined_resolve::Unresolved;
use super::kind::FileKind;
use super::procfs;
use crate::fs::confinement::{self, Confinement, RequiredAccess};
use crate::fs::error::FsError;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Symlinks {
    #[default]
    Follow,
    /// No component may be a symlink, even if the path changes while it is resolved.
    Refuse,
}

/// A name in an open directory.
#[derive(Debug)]
pub(crate) struct Parent {
    pub(crate) directory: OwnedFd,
    pub(crate) name: OsString,
}

impl Parent {
    pub(in crate::fs) fn try_clone(&self, path: &Path) -> Result<Self, FsError> {
        Self::of(self.directory.as_fd(), &self.name, path)
    }

    /// Duplicates the descriptor of the directory.
    pub(in crate::fs) fn of(
        directory: BorrowedFd<'_>,
        name: &OsStr,
        path: &Path,
    ) -> Result<Self, FsError> {
        let directory = directory.try_clone_to_owned().map_err(|source| FsError::Os {
            action: "open the directory of",
            path: path.to_owned(),
            source,
        })?;
        Ok(Self { directory, name: name.to_owned() })
    }
}

/// Identifies a file or directory, whatever names it has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Identity {
    device: u64,
    inode: u64,
}

impl Identity {
    pub(crate) fn of(node: BorrowedFd<'_>) -> Result<Self, Errno> {
        rustix::fs::fstat(node).map(|stat| Self::from(&stat))
    }
}

impl From<&Stat> for Identity {
    fn from(stat: &Stat) -> Self {
        Self { device: stat.st_dev, inode: stat.st_ino }
    }
}

/// Opens the file at a path with `O_PATH`, which has no effect on the file.
pub(in crate::fs) fn node(
    path: &Path,
    symlinks: Symlinks,
    required: RequiredAccess,
) -> Result<OwnedFd, FsError> {
    open(path, OFlags::PATH, symlinks, required)
        .map_err(|unresolved| explain("open", path, symlinks, unresolved))
}

/// Like [`node`], but opens a symlink at the end itself instead of its target.
pub(in crate::fs) fn own_node(path: &Path, required: RequiredAccess) -> Result<OwnedFd, FsError> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW;
    open(path, flags, Symlinks::Follow, required)
        .map_err(|unresolved| explain("open", path, Symlinks::Follow, unresolved))
}

/// Opens a directory for listing.
pub(in crate::fs) fn directory(path: &Path, symlinks: Symlinks) -> Result<OwnedFd, FsError> {
    open(path, OFlags::RDONLY | OFlags::DIRECTORY, symlinks, RequiredAccess::Read)
        .map_err(|unresolved| explain("open the directory", path, symlinks, unresolved))
}

/// Opens a directory below an open one, by a relative path of any length.
pub(in crate::fs) fn directory_below(
    root: BorrowedFd<'_>,
    way: &Path,
    symlinks: Symlinks,
) -> Result<OwnedFd, Unresolved> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Some(confinement) = confinement::in_force() else {
        return Ok(directory_below_freely(root, way, symlinks)?);
    };
    let path = confinement::real_path(root)?.join(way);
    Ok(confinement.open(&path, flags, symlinks, RequiredAccess::Read)?.node)
}

fn directory_below_freely(
    root: BorrowedFd<'_>,
    way: &Path,
    symlinks: Symlinks,
) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let at_once = match symlinks {
        Symlinks::Follow => follow(root, way, flags),
        Symlinks::Refuse if has_openat2() => {
            rustix::fs::openat2(root, way, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS)
        }
        Symlinks::Refuse => return directory_below_by_components(root, way, symlinks),
    };
    match at_once {
        Err(Errno::NAMETOOLONG) => directory_below_by_components(root, way, symlinks),
        done => done,
    }
}

fn directory_below_by_components(
    root: BorrowedFd<'_>,
    way: &Path,
    symlinks: Symlinks,
) -> Result<OwnedFd, Errno> {
    let step = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut here: Option<OwnedFd> = None;
    for component in way.components() {
        let above = here.as_ref().map_or(root, AsFd::as_fd);
        let name = Path::new(component.as_os_str());
        here = Some(match symlinks {
            Symlinks::Follow => follow(above, name, step)?,
            Symlinks::Refuse => {
                rustix::fs::openat(above, name, step | OFlags::NOFOLLOW, Mode::empty())?
            }
        });
    }
    let here = here.as_ref().map_or(root, AsFd::as_fd);
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::openat(here, ".", flags, Mode::empty())
}

/// Opens the directory that has, or will have, the last component of a path as an entry. That
/// component is never followed. `required` applies to it.
pub(in crate::fs) fn parent(
    path: &Path,
    symlinks: Symlinks,
    required: RequiredAccess,
) -> Result<Parent, FsError> {
    let (Some(above), Some(name), false) = (path.parent(), path.file_name(), ends_in_dot(path))
    else {
        let why = "must end in the name of a file or directory, not in . or ..";
        return Err(FsError::Unsuitable { path: path.to_owned(), why });
    };
    let flags = OFlags::PATH | OFlags::DIRECTORY;
    let directory = match confinement::in_force() {
        None => open_freely(above, flags, symlinks).map_err(Unresolved::from),
        Some(confinement) => parent_within(&confinement, above, name, symlinks, required),
    };
    let directory = directory
        .map_err(|unresolved| explain("open the directory of", path, symlinks, unresolved))?;
    Ok(Parent { directory, name: name.to_owned() })
}

fn parent_within(
    confinement: &Confinement,
    above: &Path,
    name: &OsStr,
    symlinks: Symlinks,
    required: RequiredAccess,
) -> Result<OwnedFd, Unresolved> {
    let flags = OFlags::PATH | OFlags::DIRECTORY;
    let denied = Unresolved::Denied(required);
    let found =
        confinement.open(above, flags, symlinks, RequiredAccess::Pass).map_err(|unresolved| {
            if matches!(unresolved, Unresolved::Denied(_)) { denied } else { unresolved }
        })?;
    if confinement.has(&found.place.join(name), required) { Ok(found.node) } else { Err(denied) }
}

/// Whether the last component of the path is `.`. `Path` drops it, but a request to remove or
/// rename `a/.` does not mean the name `a`.
fn ends_in_dot(path: &Path) -> bool {
    let bytes = path.as_os_str().as_bytes();
    let end = bytes.iter().rposition(|byte| *byte != b'/').map_or(0, |last| last + 1);
    bytes[..end].ends_with(b"/.") || &bytes[..end] == b"."
}

/// Opens `above`, the directory part of the target of a symlink in `from`.
pub(in crate::fs) fn directory_of_target(
    from: BorrowedFd<'_>,
    above: &Path,
) -> Result<OwnedFd, Unresolved> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Some(confinement) = confinement::in_force() else { return Ok(follow(from, above, flags)?) };
    let path = confinement::real_path(from)?.join(above);
    Ok(confinement.open(&path, flags, Symlinks::Follow, RequiredAccess::Pass)?.node)
}

/// Returns the type of the target of the symlink `name`. `None` if the symlink leads to no file, or
/// to one that must not be revealed.
pub(in crate::fs) fn type_of_target(
    directory: BorrowedFd<'_>,
    name: &OsStr,
) -> Result<Option<FileType>, Errno> {
    let stat = match confinement::in_force() {
        None => rustix::fs::statat(directory, name, AtFlags::empty()).map_err(Unresolved::from),
        Some(confinement) => {
            let path = confinement::real_path(directory)?.join(name);
            confinement
                .open(&path, OFlags::PATH, Symlinks::Follow, RequiredAccess::Read)
                .and_then(|found| Ok(rustix::fs::fstat(found.node)?))
        }
    };
    match stat {
        Ok(stat) => Ok(Some(FileType::from_raw_mode(stat.st_mode))),
        Err(Unresolved::Os(Errno::NOENT | Errno::NOTDIR | Errno::LOOP)) => Ok(None),
        Err(Unresolved::Os(errno)) => Err(errno),
        Err(Unresolved::Denied(_) | Unresolved::KernelLink) => Ok(None),
    }
}

/// Returns the absolute path without symlinks, `.` and `..`. Every component must exist.
pub(in crate::fs) fn real_path(path: &Path) -> Result<PathBuf, FsError> {
    let Some(confinement) = confinement::in_force() else {
        // `canonicalize` would return the text of a magic link, which is not a path.
        node(path, Symlinks::Follow, RequiredAccess::Read)?;
        return std::fs::canonicalize(path).map_err(|source| FsError::Os {
            action: "resolve",
            path: path.to_owned(),
            source,
        });
    };
    let found = confinement
        .open(path, OFlags::PATH, Symlinks::Follow, RequiredAccess::Read)
        .map_err(|unresolved| explain("resolve", path, Symlinks::Follow, unresolved))?;
    Ok(found.place.into_owned())
}

/// Opens a regular file for reading or writing. `size` is the size from its metadata.
pub(in crate::fs) fn content(
    action: &'static str,
    path: &Path,
    node: BorrowedFd<'_>,
    size: u64,
    flags: OFlags,
) -> Result<OwnedFd, FsError> {
    if procfs::is_private(node, size).map_err(FsError::os(action, path))? {
        let why = "it shows the memory or state of the server itself";
        let source = io::Error::new(io::ErrorKind::PermissionDenied, why);
        return Err(FsError::Os { action, path: path.to_owned(), source });
    }
    reopen(node, flags).map_err(FsError::opening(action, path))
}

/// Opens the file again through a new descriptor, with access to its content. Unlike [`content`],
/// does not protect the private procfs files of this process.
///
/// Fails with `EAGAIN` if another process holds a lease on the file. If this call waited instead,
/// that process could block each open for as long as the kernel allows.
pub(in crate::fs) fn reopen(node: BorrowedFd<'_>, flags: OFlags) -> Result<OwnedFd, Errno> {
    procfs::open_own(node, flags | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK)
}

pub(in crate::fs) fn expect_kind(
    path: &Path,
    stat: &Stat,
    expected: FileKind,
    wanted: &'static str,
) -> Result<(), FsError> {
    let found = FileKind::from(FileType::from_raw_mode(stat.st_mode));
    if found == expected {
        return Ok(());
    }
    Err(FsError::WrongKind { path: path.to_owned(), found, wanted })
}

fn open(
    path: &Path,
    flags: OFlags,
    symlinks: Symlinks,
    required: RequiredAccess,
) -> Result<OwnedFd, Unresolved> {
    match confinement::in_force() {
        None => Ok(open_freely(path, flags, symlinks)?),
        Some(confinement) => Ok(confinement.open(path, flags, symlinks, required)?.node),
    }
}

fn open_freely(path: &Path, flags: OFlags, symlinks: Symlinks) -> Result<OwnedFd, Errno> {
    let mut flags = flags | OFlags::CLOEXEC;
    // `openat2` rejects flags that have no meaning with `O_PATH`; `openat` ignores them.
    flags.set(OFlags::NOCTTY, !flags.contains(OFlags::PATH));
    match symlinks {
        Symlinks::Follow => follow(CWD, path, flags),
        Symlinks::Refuse if has_openat2() => {
            rustix::fs::openat2(CWD, path, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS)
        }
        Symlinks::Refuse => open_by_components(path, flags),
    }
}

/// Opens a path through ordinary symlinks, and through magic links only if `openat2` is missing.
fn follow(at: BorrowedFd<'_>, path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
    if has_openat2() {
        let resolve = ResolveFlags::NO_MAGICLINKS;
        return rustix::fs::openat2(at, path, flags, Mode::empty(), resolve);
    }
    rustix::fs::openat(at, path, flags, Mode::empty())
}

/// Whether `openat2` works. Old kernels lack it, and container seccomp filters may block it with an
/// error that a file could produce as well.
pub(in crate::fs) fn has_openat2() -> bool {
    static HAS_OPENAT2: OnceLock<bool> = OnceLock::new();
    *HAS_OPENAT2.get_or_init(|| {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let answer = rustix::fs::openat2(CWD, "", flags, Mode::empty(), ResolveFlags::NO_SYMLINKS);
        shows_openat2(answer.map(drop))
    })
}

/// Whether this result for an empty name shows that `openat2` exists. The answer is cached for
/// good, so a temporary shortage of descriptors or memory must not be taken for a missing call.
fn shows_openat2(answer: Result<(), Errno>) -> bool {
    let by_the_call_itself = [Errno::NOENT, Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::INTR];
    answer.map_or_else(|errno| by_the_call_itself.contains(&errno), |()| true)
}

/// Opens each directory in the one before it, which is held open. So a component that is replaced
/// during the walk cannot redirect the path.
fn open_by_components(path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
    let step = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut here = rustix::fs::open("/", step, Mode::empty())?;
    let mut components = path.components().filter(|part| !matches!(part, Component::RootDir));
    let Some(mut current) = components.next() else {
        return rustix::fs::open("/", flags, Mode::empty());
    };
    for next in components {
        let name = current.as_os_str();
        here = rustix::fs::openat(&here, name, step, Mode::empty())
            .map_err(|errno| symlink_or(errno, here.as_fd(), current))?;
        current = next;
    }
    let last =
        rustix::fs::openat(&here, current.as_os_str(), flags | OFlags::NOFOLLOW, Mode::empty())
            .map_err(|errno| symlink_or(errno, here.as_fd(), current))?;
    // With `O_PATH` the symlink itself is opened, without an error.
    let stat = rustix::fs::fstat(&last)?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Symlink => Err(Errno::LOOP),
        _ => Ok(last),
    }
}

/// Returns `ELOOP` if the component is a symlink. With `O_DIRECTORY` the kernel reports a symlink
/// as `ENOTDIR`.
fn symlink_or(errno: Errno, directory: BorrowedFd<'_>, component: Component<'_>) -> Errno {
    if errno != Errno::NOTDIR {
        return errno;
    }
    let flags = AtFlags::SYMLINK_NOFOLLOW;
    match rustix::fs::statat(directory, component.as_os_str(), flags) {
        Ok(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::Symlink => Errno::LOOP,
        _ => errno,
    }
}

/// `ELOOP` has three meanings: a refused symlink, a magic link, or an endless chain of symlinks.
pub(in crate::fs) fn explain(
    action: &'static str,
    path: &Path,
    symlinks: Symlinks,
    unresolved: Unresolved,
) -> FsError {
    let kernel_link = || {
        let why = "leads through a magic link of the kernel, which is not followed";
        FsError::Unsuitable { path: path.to_owned(), why }
    };
    match (unresolved, symlinks) {
        (Unresolved::Denied(required), _) => FsError::denied(path, required),
        (Unresolved::KernelLink, _) => kernel_link(),
        (Unresolved::Os(Errno::LOOP), Symlinks::Refuse) => {
            FsError::Symlink { path: path.to_owned() }
        }
        (Unresolved::Os(Errno::LOOP), Symlinks::Follow) if !is_endless(path) => kernel_link(),
        (Unresolved::Os(errno), _) => FsError::os(action, path)(errno),
    }
}

/// Whether `ELOOP` means an endless chain. A confined thread reports magic links separately.
fn is_endless(path: &Path) -> bool {
    confinement::is_confined()
        || rustix::fs::statat(CWD, path, AtFlags::empty()).err() == Some(Errno::LOOP)
}

#[cfg(test)]
mod tests {
    use super::*;

    type Way = fn(&Path, OFlags) -> Result<OwnedFd, Errno>;

    const BOTH_WAYS: [(&str, Way); 2] = [
        ("openat2", |path, flags| {
            rustix::fs::openat2(CWD, path, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS)
        }),
        ("components", open_by_components),
    ];

    #[test]
    fn a_shortage_is_not_mistaken_for_an_old_kernel() {
        assert!(shows_openat2(Ok(())));
        for errno in [Errno::NOENT, Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::INTR] {
            assert!(shows_openat2(Err(errno)), "{errno}");
        }
        for errno in [Errno::NOSYS, Errno::PERM, Errno::ACCESS, Errno::INVAL, Errno::TOOBIG] {
            assert!(!shows_openat2(Err(errno)), "{errno}");
        }
    }

    #[test]
    fn a_parent_requires_a_final_name() {
        for unsuitable in ["/", "/tmp/..", "/tmp/.", "/tmp/./", "/.", ".", ".."] {
            let refused = parent(Path::new(unsuitable), Symlinks::Follow, RequiredAccess::Read);
            assert!(matches!(refused, Err(FsError::Unsuitable { .. })), "{unsuitable}");
        }
        for (path, name) in [("/tmp/a", "a"), ("/tmp/a/", "a"), ("/tmp/..a", "..a"), ("/a.", "a.")]
        {
            for symlinks in [Symlinks::Follow, Symlinks::Refuse] {
                let parent = parent(Path::new(path), symlinks, RequiredAccess::Read).unwrap();
                assert_eq!(parent.name, name, "{symlinks:?}");
            }
        }
    }

    #[test]
    fn opening_at_once_and_by_components_agree() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(root.path().join("a/b/c")).unwrap();
        std::os::unix::fs::symlink("b", root.path().join("a/link")).unwrap();
        let open_root = directory(root.path(), Symlinks::Follow).unwrap();
        for way in [directory_below_freely, directory_below_by_components] {
            let open = |path: &str, symlinks| {
                let directory = way(open_root.as_fd(), Path::new(path), symlinks)?;
                Identity::of(directory.as_fd())
            };
            let c = Ok(Identity::from(&rustix::fs::stat(root.path().join("a/b/c")).unwrap()));
            assert_eq!(open("a/b/c", Symlinks::Refuse), c);
            assert_eq!(open("a/b/c", Symlinks::Follow), c);
            assert_eq!(open("a/link/c", Symlinks::Follow), c);
            assert!(open("a/link/c", Symlinks::Refuse).is_err());
            assert_eq!(open("a/missing/c", Symlinks::Refuse), Err(Errno::NOENT));
        }
    }

    #[test]
    fn a_symlink_is_refused_anywhere_in_the_path() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path().canonicalize().unwrap();
        std::fs::create_dir_all(root.join("a/b")).unwrap();
        std::fs::write(root.join("a/b/file"), "x").unwrap();
        std::os::unix::fs::symlink("a", root.join("to_a")).unwrap();
        std::os::unix::fs::symlink("b", root.join("a/to_b")).unwrap();
        std::os::unix::fs::symlink("file", root.join("a/b/to_file")).unwrap();
        std::os::unix::fs::symlink("loop", root.join("loop")).unwrap();
        for (name, way) in BOTH_WAYS {
            let open = |path: &str| way(&root.join(path), OFlags::PATH | OFlags::CLOEXEC).map(drop);
            for sound in ["a/b/file", "a/b", "a/b/../b/file", "a/./b"] {
                assert_eq!(open(sound), Ok(()), "{name}: {sound}");
            }
            for link in
                ["to_a/b/file", "a/to_b/file", "a/b/to_file", "to_a", "loop", "to_a/../a/b/file"]
            {
                assert_eq!(open(link), Err(Errno::LOOP), "{name}: {link}");
            }
            assert_eq!(open("a/b/file/x"), Err(Errno::NOTDIR), "{name}");
            assert_eq!(open("a/missing/x"), Err(Errno::NOENT), "{name}");
            assert!(way(Path::new("/"), OFlags::PATH | OFlags::CLOEXEC).is_ok(), "{name}");
        }
    }
}

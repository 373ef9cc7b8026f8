//! Resolves paths to descriptors on a confined thread.
//!
//! A path without symlinks that stays within the grants takes one `openat2` beneath the descriptor
//! of the grant. Every other path is walked component by component, and each component is checked
//! against the policy before the disk is touched. So a path outside the grants gives the same error
//! whether or not it exists.

use std::borrow::Cow;
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags, PROC_SUPER_MAGIC, ResolveFlags, Stat};
use rustix::io::Errno;

use super::resolve::{self, Identity, Symlinks};
use crate::fs::confinement::{Confinement, RequiredAccess};

/// The kernel's limit on symlinks in one path.
const MAX_LINKS: usize = 40;

#[derive(Debug)]
pub(in crate::fs) struct Found<'p> {
    pub(in crate::fs) node: OwnedFd,
    /// The real path of `node`, which may itself be a symlink.
    pub(in crate::fs) place: Cow<'p, Path>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::fs) enum Unresolved {
    Os(Errno),
    Denied(RequiredAccess),
    /// The path goes through a magic link of procfs. The kernel follows such a link to a file that
    /// the link's text may not name.
    KernelLink,
}

impl From<Errno> for Unresolved {
    fn from(errno: Errno) -> Self {
        Self::Os(errno)
    }
}

impl Confinement {
    /// `flags` must contain `O_PATH`, or `O_DIRECTORY`, or both.
    pub(in crate::fs) fn open<'p>(
        &self,
        path: &'p Path,
        flags: OFlags,
        symlinks: Symlinks,
        required: RequiredAccess,
    ) -> Result<Found<'p>, Unresolved> {
        if let Some(at_once) = self.open_at_once(path, flags, required) {
            return at_once;
        }
        let mut walk = Walk {
            confinement: self,
            symlinks,
            here: rustix::fs::openat(&self.top, ".", PASSING | OFlags::DIRECTORY, Mode::empty())?,
            place: PathBuf::from("/"),
            above: Vec::new(),
            ahead: components(path.as_os_str()),
            followed: 0,
            required,
        };
        walk.expect(RequiredAccess::Pass)?;
        let keeps_last = flags.contains(OFlags::NOFOLLOW);
        let node = walk.go(keeps_last)?;
        walk.expect(required)?;
        Ok(Found { node: finish(node, flags)?, place: Cow::Owned(walk.place) })
    }

    /// Tries one `openat2`. Returns `None` if the path has to be walked. If the policy grants the
    /// required access to the path as written, its ancestors may be revealed too. The kernel makes
    /// sure that the path contains no symlinks, so the path as written is the real path.
    fn open_at_once<'p>(
        &self,
        path: &'p Path,
        flags: OFlags,
        required: RequiredAccess,
    ) -> Option<Result<Found<'p>, Unresolved>> {
        if !is_plain(path) || !self.has(path, required) {
            return None;
        }
        let (root, way) = self.root_of(path)?;
        let way = if way.as_os_str().is_empty() { Path::new(".") } else { way };
        let resolve =
            ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        let flags = flags | OFlags::CLOEXEC;
        match rustix::fs::openat2(root, way, flags, Mode::empty(), resolve) {
            Ok(node) => Some(Ok(Found { node, place: Cow::Borrowed(path) })),
            Err(Errno::LOOP | Errno::NAMETOOLONG | Errno::XDEV | Errno::AGAIN) => None,
            Err(errno) => Some(Err(errno.into())),
        }
    }
}

const PASSING: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

struct Walk<'c> {
    confinement: &'c Confinement,
    symlinks: Symlinks,
    here: OwnedFd,
    /// The path of `here`; at the end, the path of the result.
    place: PathBuf,
    /// The ancestors of `here`, to verify `..`.
    above: Vec<Identity>,
    /// Remaining components, in reverse.
    ahead: Vec<OsString>,
    followed: usize,
    /// The access that every refusal names, so that no refusal reveals how far the walk got.
    required: RequiredAccess,
}

impl Walk<'_> {
    fn go(&mut self, keeps_last: bool) -> Result<OwnedFd, Unresolved> {
        while let Some(name) = self.ahead.pop() {
            match name.as_bytes() {
                b"." => continue,
                b".." => {
                    self.up()?;
                    continue;
                }
                _ => {}
            }
            self.place.push(&name);
            self.expect(RequiredAccess::Pass)?;
            let node = rustix::fs::openat(&self.here, &name, PASSING, Mode::empty())?;
            let stat = rustix::fs::fstat(&node)?;
            let is_last = self.ahead.is_empty();
            match FileType::from_raw_mode(stat.st_mode) {
                FileType::Directory => {
                    self.above.push(Identity::of(self.here.as_fd())?);
                    self.here = node;
                }
                FileType::Symlink if is_last && keeps_last => return Ok(node),
                FileType::Symlink => self.follow(&name, node.as_fd(), &stat)?,
                _ if is_last => return Ok(node),
                _ => return Err(Errno::NOTDIR.into()),
            }
        }
        Ok(rustix::fs::openat(&self.here, ".", PASSING | OFlags::DIRECTORY, Mode::empty())?)
    }

    /// Fails if the directory was moved during the walk: then `..` leads to another directory.
    fn up(&mut self) -> Result<(), Unresolved> {
        let Some(left) = self.above.pop() else { return Ok(()) };
        let above =
            rustix::fs::openat(&self.here, "..", PASSING | OFlags::DIRECTORY, Mode::empty())?;
        if Identity::of(above.as_fd())? != left {
            return Err(Errno::AGAIN.into());
        }
        self.here = above;
        self.place.pop();
        Ok(())
    }

    /// `self.place` is the path of the link.
    fn follow(
        &mut self,
        name: &OsStr,
        link: BorrowedFd<'_>,
        stat: &Stat,
    ) -> Result<(), Unresolved> {
        if self.symlinks == Symlinks::Refuse || self.followed == MAX_LINKS {
            return Err(Errno::LOOP.into());
        }
        if is_of_kernel(self.here.as_fd(), name, link)? {
            return Err(Unresolved::KernelLink);
        }
        if is_planted(self.here.as_fd(), stat)? {
            return Err(Errno::ACCESS.into());
        }
        self.followed += 1;
        let target = rustix::fs::readlinkat(link, "", Vec::new())?;
        let target = OsString::from_vec(target.into_bytes());
        if target.as_bytes().starts_with(b"/") {
            let flags = PASSING | OFlags::DIRECTORY;
            self.here = rustix::fs::openat(&self.confinement.top, ".", flags, Mode::empty())?;
            self.place = PathBuf::from("/");
            self.above.clear();
        } else {
            self.place.pop();
        }
        self.ahead.extend(components(&target));
        Ok(())
    }

    fn expect(&self, required: RequiredAccess) -> Result<(), Unresolved> {
        match self.confinement.has(&self.place, required) {
            true => Ok(()),
            false => Err(Unresolved::Denied(self.required)),
        }
    }
}

fn finish(node: OwnedFd, flags: OFlags) -> Result<OwnedFd, Errno> {
    if flags.contains(OFlags::PATH) && !flags.contains(OFlags::DIRECTORY) {
        return Ok(node);
    }
    let stat = rustix::fs::fstat(&node)?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory if flags.contains(OFlags::PATH) => Ok(node),
        FileType::Directory => resolve::reopen(node.as_fd(), flags),
        _ => Err(Errno::NOTDIR),
    }
}

/// Whether `link` is a magic link. All magic links are in procfs.
fn is_of_kernel(
    directory: BorrowedFd<'_>,
    name: &OsStr,
    link: BorrowedFd<'_>,
) -> Result<bool, Errno> {
    if rustix::fs::fstatfs(link)?.f_type != PROC_SUPER_MAGIC {
        return Ok(false);
    }
    let (flags, resolve) = (OFlags::PATH | OFlags::CLOEXEC, ResolveFlags::NO_MAGICLINKS);
    let followed = rustix::fs::openat2(directory, name, flags, Mode::empty(), resolve);
    Ok(followed.err() == Some(Errno::LOOP))
}

/// Whether `fs.protected_symlinks` would make the kernel refuse the link: it is in a world-writable
/// sticky directory, such as /tmp, and belongs neither to this user nor to the directory's owner.
fn is_planted(directory: BorrowedFd<'_>, link: &Stat) -> Result<bool, Errno> {
    const STICKY_FOR_ALL: u32 = 0o1002;
    let directory = rustix::fs::fstat(directory)?;
    Ok(directory.st_mode & STICKY_FOR_ALL == STICKY_FOR_ALL
        && link.st_uid != rustix::process::geteuid().as_raw()
        && link.st_uid != directory.st_uid)
}

/// Returns the components of a path in reverse order. A trailing slash is treated as a trailing
/// dot: the component before it must be a directory.
fn components(path: &OsStr) -> Vec<OsString> {
    let bytes = path.as_bytes();
    let names = bytes.split(|byte| *byte == b'/').filter(|name| !name.is_empty());
    let dot = bytes.ends_with(b"/").then_some(&b"."[..]);
    let mut components: Vec<_> =
        names.chain(dot).map(|n| OsStr::from_bytes(n).to_owned()).collect();
    components.reverse();
    components
}

/// Whether the path is absolute, and no component is empty, `.` or `..`.
fn is_plain(path: &Path) -> bool {
    match path.as_os_str().as_bytes() {
        b"/" => true,
        [b'/', names @ ..] => {
            names.split(|byte| *byte == b'/').all(|name| !matches!(name, b"" | b"." | b".."))
        }
        _ => false,
    }
}

//! Confines a thread to a policy, from [`Confinement::enter`] until the thread ends.
//!
//! Two layers enforce the policy. Landlock, in the kernel, lets the thread open, create and remove
//! nothing outside the grants, even if this crate has a bug. [`resolve`](crate::fs::path::resolve)
//! checks the policy before it touches the disk. It covers metadata, links and permission bits,
//! which Landlock does not check, and rules that take away access inside a grant. It also gives a
//! path outside the grants the same error whether or not it exists.
//!
//! A thread or program that a confined thread starts stays confined forever. So a confined thread
//! must start neither.

use std::cell::OnceCell;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{CWD, FileType, Mode, OFlags};
use rustix::io::Errno;
use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};

use super::error::FsError;
use crate::fs::path::procfs;
use crate::fs::path::resolve::{self, Identity};
use crate::sandbox::landlock::{self, LandlockError, Ruleset};
use crate::sandbox::{Access, Grant, Mechanism, Policy, WITHOUT_VARIABLE};

/// The capabilities with which root acts as the owner of every file. All others are dropped.
const KEPT_BY_ROOT: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::FSETID);

thread_local! {
    static IN_FORCE: OnceCell<Arc<Confinement>> = const { OnceCell::new() };
}

/// A policy with the resources that enforce it: a ruleset, and descriptors of the granted
/// directories, opened once.
#[derive(Debug)]
pub struct Confinement {
    policy: Policy,
    ruleset: OwnedFd,
    /// The directory `/`.
    pub(super) top: OwnedFd,
    /// Sorted by path.
    roots: Vec<Root>,
}

/// A granted path, with the file, if any, that was there when the confinement was made.
#[derive(Debug)]
struct Root {
    path: PathBuf,
    found: Option<Identity>,
    /// The file belongs to the kernel (a character device, procfs, sysfs) or is `/`, so it is never
    /// replaced.
    is_lasting: bool,
    /// Set for directories only.
    directory: Option<OwnedFd>,
}

#[derive(Debug, thiserror::Error)]
pub enum ConfinementError {
    #[error(
        "cannot confine file operations to a sandbox: the kernel lacks openat2, or a seccomp filter blocks it"
    )]
    NoOpenat2,
    #[error("cannot confine file operations to a sandbox: {0}")]
    Landlock(#[from] LandlockError),
    #[error(
        "cannot confine file operations to a sandbox: Landlock is turned off; remove it from {WITHOUT_VARIABLE}"
    )]
    TurnedOff,
    #[error("cannot confine file operations to a sandbox: {source}")]
    Variable { source: io::Error },
    #[error("cannot confine a thread to a sandbox: {source}")]
    Restrict { source: io::Error },
    #[error("cannot confine file operations to a sandbox: cannot open {path}: {source}", path = .path.display())]
    Grant { path: PathBuf, source: io::Error },
    #[error("this thread is already confined to a sandbox")]
    Confined,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RequiredAccess {
    /// The existence of the path may be revealed: it is readable, or an ancestor of a readable
    /// path.
    Pass,
    Read,
    /// The content or metadata of the file changes.
    Write,
    /// The name is created as a directory.
    MakeDirectory,
    /// The name is removed, replaced, or created as anything but a directory. Rules for paths below
    /// the name do not move with it. So `Change` is refused if such a rule takes away access, even
    /// if nothing exists at the path of the rule yet.
    Change,
}

impl Confinement {
    /// Opens the granted paths, so it may block.
    pub fn new(policy: Policy) -> Result<Self, ConfinementError> {
        let is_turned_off = Mechanism::Landlock.is_turned_off();
        if is_turned_off.map_err(|source| ConfinementError::Variable { source })? {
            return Err(ConfinementError::TurnedOff);
        }
        Self::with_abi(policy, landlock::kernel_abi().map_err(|_| LandlockError::Missing)?)
    }

    fn with_abi(policy: Policy, landlock_abi: u32) -> Result<Self, ConfinementError> {
        if !resolve::has_openat2() {
            return Err(ConfinementError::NoOpenat2);
        }
        let grants = policy.grants();
        let ruleset = Ruleset::new(&grants, landlock_abi)?.into_fd()?;
        let open_top = |errno: Errno| failed(Path::new("/"), errno);
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let top = rustix::fs::open("/", flags, Mode::empty()).map_err(open_top)?;
        let mut roots = grants.into_iter().map(Root::open).collect::<Result<Vec<_>, _>>()?;
        roots.sort_by(|one, other| one.path.cmp(&other.path));
        Ok(Self { policy, ruleset, top, roots })
    }

    #[must_use]
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Confines this thread to the policy until it ends. After an error the thread must not be used
    /// for anything.
    pub fn enter(self: &Arc<Self>) -> Result<(), ConfinementError> {
        if is_confined() {
            return Err(ConfinementError::Confined);
        }
        restrict_this_thread(self.ruleset.as_fd())
            .map_err(|source| ConfinementError::Restrict { source })?;
        let entered = IN_FORCE.with(|in_force| in_force.set(Arc::clone(self)));
        entered.map_err(|_| ConfinementError::Confined)
    }

    /// Whether each granted path still has the file that [`new`](Self::new) found there, or still
    /// has none. The kernel's rules apply to the files, not to the names.
    #[must_use]
    pub fn is_current(&self) -> bool {
        self.roots.iter().all(Root::is_current)
    }

    pub(super) fn has(&self, place: &Path, required: RequiredAccess) -> bool {
        let access = self.policy.access(place);
        match required {
            RequiredAccess::Pass => access >= Access::Read || self.policy.leads_to_grant(place),
            RequiredAccess::Read => access >= Access::Read,
            RequiredAccess::Write => access == Access::Write,
            RequiredAccess::MakeDirectory => access == Access::Write && self.may_write_above(place),
            RequiredAccess::Change => {
                access == Access::Write
                    && self.may_write_above(place)
                    && !self.takes_away_below(place)
            }
        }
    }

    fn may_write_above(&self, place: &Path) -> bool {
        place.parent().is_some_and(|above| self.policy.access(above) == Access::Write)
    }

    /// Whether a rule strictly below a writable path takes away write access.
    fn takes_away_below(&self, place: &Path) -> bool {
        let rules = self.policy.rules();
        let after = rules.partition_point(|rule| *rule.path <= *place);
        let mut below = rules[after..].iter().take_while(|rule| rule.path.starts_with(place));
        below.any(|rule| rule.access < Access::Write)
    }

    /// Returns the nearest granted directory at or above `place`, and the path from it to `place`.
    pub(super) fn root_of<'p>(&self, place: &'p Path) -> Option<(BorrowedFd<'_>, &'p Path)> {
        // Ancestors of a path sort before it, so the last match is the nearest.
        let end = self.roots.partition_point(|root| *root.path <= *place);
        self.roots[..end].iter().rev().find_map(|root| {
            let directory = root.directory.as_ref()?;
            Some((directory.as_fd(), place.strip_prefix(&root.path).ok()?))
        })
    }
}

impl Root {
    fn open(grant: Grant) -> Result<Self, ConfinementError> {
        let path = grant.path;
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let node = match rustix::fs::openat(CWD, &path, flags, Mode::empty()) {
            Ok(node) => node,
            Err(Errno::NOENT | Errno::NOTDIR) => {
                return Ok(Self { path, found: None, is_lasting: false, directory: None });
            }
            Err(errno) => return Err(failed(&path, errno)),
        };
        let stat = rustix::fs::fstat(&node).map_err(|errno| failed(&path, errno))?;
        let file_type = FileType::from_raw_mode(stat.st_mode);
        let is_lasting = file_type == FileType::CharacterDevice
            || ["/proc", "/sys"].iter().any(|top| path.starts_with(top))
            || path == Path::new("/");
        let directory = (file_type == FileType::Directory).then_some(node);
        Ok(Self { path, found: Some(Identity::from(&stat)), is_lasting, directory })
    }

    fn is_current(&self) -> bool {
        let now = || rustix::fs::lstat(&self.path).ok();
        self.is_lasting || now().as_ref().map(Identity::from) == self.found
    }
}

fn failed(path: &Path, errno: Errno) -> ConfinementError {
    ConfinementError::Grant { path: path.to_owned(), source: errno.into() }
}

/// The handled access rights were fixed when the ruleset was made, so the kernel enforces all of
/// them or fails.
fn restrict_this_thread(ruleset: BorrowedFd<'_>) -> io::Result<()> {
    // Without `no_new_privs` only a privileged thread may restrict itself.
    rustix::thread::set_no_new_privs(true)?;
    drop_capabilities()?;
    Ok(landlock::restrict_self(ruleset)?)
}

/// Drops all capabilities but [`KEPT_BY_ROOT`]. Some would bypass the confinement: `CAP_PERFMON`
/// and `CAP_SYS_ADMIN` give access to the environment and memory map of every process in `/proc`,
/// even where Landlock denies it. Capabilities belong to the thread, so other threads keep theirs.
fn drop_capabilities() -> Result<(), Errno> {
    let current = capabilities(None)?;
    let kept = CapabilitySets {
        effective: current.effective & KEPT_BY_ROOT,
        permitted: current.permitted & KEPT_BY_ROOT,
        inheritable: CapabilitySet::empty(),
    };
    set_capabilities(None, kept)
}

#[must_use]
pub fn is_confined() -> bool {
    IN_FORCE.with(|in_force| in_force.get().is_some())
}

pub(super) fn in_force() -> Option<Arc<Confinement>> {
    IN_FORCE.with(|in_force| in_force.get().cloned())
}

/// Fails unless this thread has the required access to a name in an open directory. `path` is the
/// caller's path, for the error.
pub(super) fn expect(
    directory: BorrowedFd<'_>,
    name: &OsStr,
    required: RequiredAccess,
    path: &Path,
) -> Result<(), FsError> {
    let Some(confinement) = in_force() else { return Ok(()) };
    let place = real_path(directory).map_err(FsError::os("resolve the directory of", path))?;
    if confinement.has(&place.join(name), required) {
        return Ok(());
    }
    Err(FsError::denied(path, required))
}

/// Returns the current path of an open directory. For a removed directory, the kernel appends
/// ` (deleted)` to its last path.
pub(super) fn real_path(directory: BorrowedFd<'_>) -> Result<PathBuf, Errno> {
    let path = rustix::fs::readlink(procfs::own_link(directory), Vec::new())?;
    Ok(PathBuf::from(OsString::from_vec(path.into_bytes())))
}

/// Limits which entries of an open directory this thread may see. An unconfined thread sees all.
#[derive(Debug)]
pub(super) struct View(Option<Limits>);

#[derive(Debug)]
struct Limits {
    confinement: Arc<Confinement>,
    /// The path of the directory. `allows` appends an entry's name to it temporarily.
    place: PathBuf,
}

impl View {
    pub(super) fn of(directory: BorrowedFd<'_>) -> Result<Self, Errno> {
        let Some(confinement) = in_force() else { return Ok(Self(None)) };
        Ok(Self(Some(Limits { place: real_path(directory)?, confinement })))
    }

    pub(super) fn allows(&mut self, name: &OsStr, required: RequiredAccess) -> bool {
        let Some(Limits { confinement, place }) = &mut self.0 else { return true };
        place.push(name);
        let allows = confinement.has(place, required);
        place.pop();
        allows
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sandbox::Network;

    #[test]
    fn without_landlock_confinement_fails() {
        let refused = Confinement::with_abi(Policy::unrestricted(Network::Enabled), 0);
        let error = refused.map(drop).unwrap_err();
        assert!(matches!(error, ConfinementError::Landlock(LandlockError::Missing)), "{error}");
    }
}

//! A policy that a thread is kept to, from when it enters until it ends.
//!
//! Two things keep it. Landlock, in the kernel: outside of what was granted the thread opens, creates and removes nothing,
//! whatever a bug here may try. And [`resolve`](crate::fs::path::resolve), which asks before it looks: for what Landlock does not see
//! (metadata, links, permission bits), for what is taken away again inside of what was granted, and so that a path outside
//! gives the same answer whether there is something or not.
//!
//! A thread that a confined one starts is confined as well, for ever. Nobody may start any there, least of all programs.

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

/// What makes root the owner of all files, and nothing that reaches beyond files or makes devices.
const KEPT_BY_ROOT: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::FSETID);

thread_local! {
    static IN_FORCE: OnceCell<Arc<Confinement>> = const { OnceCell::new() };
}

/// A policy and what it takes to keep threads to it: descriptors of what it grants, opened once.
#[derive(Debug)]
pub struct Confinement {
    policy: Policy,
    /// A Landlock ruleset.
    ruleset: OwnedFd,
    /// The root directory.
    pub(super) top: OwnedFd,
    /// By path.
    roots: Vec<Root>,
}

/// Something that is granted, with what was there when the confinement was made.
#[derive(Debug)]
struct Root {
    path: PathBuf,
    found: Option<Identity>,
    /// It is of the kernel's making, as some of what every policy grants, and nobody puts anything else in its place.
    is_lasting: bool,
    /// Only of directories.
    directory: Option<OwnedFd>,
}

#[derive(Debug, thiserror::Error)]
pub enum ConfinementError {
    #[error(
        "the kernel has no openat2, or a filter forbids it, so that work on files cannot be kept to a sandbox"
    )]
    NoOpenat2,
    #[error("work on files cannot be kept to a sandbox: {0}")]
    Landlock(#[from] LandlockError),
    #[error(
        "work on files cannot be kept to a sandbox: Landlock is turned off by {WITHOUT_VARIABLE}"
    )]
    TurnedOff,
    #[error("work on files cannot be kept to a sandbox: {source}")]
    Variable { source: io::Error },
    #[error("a thread cannot be kept to a sandbox: {source}")]
    Restrict { source: io::Error },
    #[error("work on files cannot be kept to a sandbox, because {path} cannot be opened: {source}", path = .path.display())]
    Grant { path: PathBuf, source: io::Error },
    #[error("this thread is confined already")]
    Confined,
}

/// What an operation needs of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RequiredAccess {
    /// That it may be known: it can be read, or is above something that can.
    Pass,
    Read,
    /// The content or the metadata of what has the name changes.
    Write,
    /// The name is made, and stands for a directory.
    MakeDirectory,
    /// The name is removed, made as something else than a directory, or given to something else. A rule for what is below it
    /// stays behind: so if that takes anything away, also from what does not exist yet, this is refused.
    Change,
}

impl Confinement {
    /// Opens what the policy grants, so it may block.
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

    /// From here on, and until its end, this thread does nothing with files but what the policy allows. Should this fail the thread
    /// is of no use for anything.
    pub fn enter(self: &Arc<Self>) -> Result<(), ConfinementError> {
        if is_confined() {
            return Err(ConfinementError::Confined);
        }
        restrict_this_thread(self.ruleset.as_fd())
            .map_err(|source| ConfinementError::Restrict { source })?;
        let entered = IN_FORCE.with(|in_force| in_force.set(Arc::clone(self)));
        entered.map_err(|_| ConfinementError::Confined)
    }

    /// Whether what is granted is still what it was when this was made. The kernel goes by that, and not by names.
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

    /// Whether a rule for something strictly below a place that may be written allows less there.
    fn takes_away_below(&self, place: &Path) -> bool {
        let rules = self.policy.rules();
        let after = rules.partition_point(|rule| *rule.path <= *place);
        let mut below = rules[after..].iter().take_while(|rule| rule.path.starts_with(place));
        below.any(|rule| rule.access < Access::Write)
    }

    /// The directory of the nearest grant, and the way from it to `place`.
    pub(super) fn root_of<'p>(&self, place: &'p Path) -> Option<(BorrowedFd<'_>, &'p Path)> {
        // What is above a path comes before it, so the last that fits is the nearest.
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

/// What the ruleset handles was settled when it was made, so this is all or nothing.
fn restrict_this_thread(ruleset: BorrowedFd<'_>) -> io::Result<()> {
    // Without it only a privileged thread may restrict itself.
    rustix::thread::set_no_new_privs(true)?;
    drop_capabilities()?;
    Ok(landlock::restrict_self(ruleset)?)
}

/// Some of root's capabilities count before Landlock is asked: with `CAP_PERFMON` or `CAP_SYS_ADMIN` the environment and the memory map
/// of every process can be read in `/proc`. They are of the thread, so other threads keep theirs.
fn drop_capabilities() -> Result<(), Errno> {
    let current = capabilities(None)?;
    let kept = CapabilitySets {
        effective: current.effective & KEPT_BY_ROOT,
        permitted: current.permitted & KEPT_BY_ROOT,
        inheritable: CapabilitySet::empty(),
    };
    set_capabilities(None, kept)
}

/// Whether this thread is kept to a policy. If it is, it must start neither threads nor programs.
#[must_use]
pub fn is_confined() -> bool {
    IN_FORCE.with(|in_force| in_force.get().is_some())
}

/// What this thread is kept to.
pub(super) fn in_force() -> Option<Arc<Confinement>> {
    IN_FORCE.with(|in_force| in_force.get().cloned())
}

/// Fails unless this thread may do so much to a name in an open directory. `path` is what the caller asked for.
pub(super) fn expect(
    directory: BorrowedFd<'_>,
    name: &OsStr,
    required: RequiredAccess,
    path: &Path,
) -> Result<(), FsError> {
    let Some(confinement) = in_force() else { return Ok(()) };
    let place = real_path(directory).map_err(FsError::os("look at the directory of", path))?;
    if confinement.has(&place.join(name), required) {
        return Ok(());
    }
    Err(FsError::denied(path, required))
}

/// Where an open directory is at the moment. One that was removed has a name that leads nowhere.
pub(super) fn real_path(directory: BorrowedFd<'_>) -> Result<PathBuf, Errno> {
    let path = rustix::fs::readlink(procfs::own_link(directory), Vec::new())?;
    Ok(PathBuf::from(OsString::from_vec(path.into_bytes())))
}

/// What this thread may know of the entries of an open directory. A thread that is not confined may know everything.
#[derive(Debug)]
pub(super) struct View(Option<Limits>);

#[derive(Debug)]
struct Limits {
    confinement: Arc<Confinement>,
    /// The directory, and for a moment an entry of it.
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
    fn without_landlock_there_is_no_confinement() {
        let refused = Confinement::with_abi(Policy::unrestricted(Network::Enabled), 0);
        let error = refused.map(drop).unwrap_err();
        assert!(matches!(error, ConfinementError::Landlock(LandlockError::Missing)), "{error}");
    }
}

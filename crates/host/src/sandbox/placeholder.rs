//! Directories that stand where something is missing that a process must not create.
//!
//! Only what exists can be mounted over. So an empty directory is made, which says by its mode that it is ours, and it is removed
//! when the last process that needs it has ended. Who needs it holds a shared lock on it; only an exclusive one allows to remove it. One
//! that was left behind, because its keeper was killed, is taken over by the next.
//!
//! A process in a sandbox can hold such a lock too. It can thereby keep a placeholder from going away, or hinder another start in the same
//! place, which then fails; it cannot make one go away too early.

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::thread;
use std::time::Duration;

use rustix::fs::{
    AtFlags, CWD, FileType, FlockOperation, Mode, OFlags, ResolveFlags, Stat, flock, fstat,
    mkdirat, openat, openat2, statat, unlinkat,
};
use rustix::io::Errno;

use super::plan::{Cover, Mount};
use super::requester::Requester;
use super::step::{SandboxStep, StepFailure};

/// Sticky, and nobody can write it: no other program makes an empty directory like that. The mask of this process may take away
/// who can read it, which tells nothing.
const MODE: Mode = Mode::from_raw_mode(0o1555);
const STICKY: u32 = 0o1000;
const WRITABLE: u32 = 0o222;

/// How often to look again while somebody else makes or removes it.
const ATTEMPTS: u32 = 500;
const PAUSE: Duration = Duration::from_millis(1);

/// A file, whatever its name is by now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    device: u64,
    inode: u64,
}

impl Identity {
    pub(super) fn of(status: &Stat) -> Self {
        Self { device: status.st_dev, inode: status.st_ino }
    }
}

/// The placeholders that one process needs. They are removed on drop, if nobody else needs them.
#[derive(Debug, Default)]
pub(crate) struct Placeholders {
    /// By their mounts, as those below.
    held: Vec<Held>,
    /// Mounts of the plan for which there is no place, and none can be made.
    impossible: Vec<usize>,
}

#[derive(Debug)]
struct Held {
    mount: usize,
    parent: OwnedFd,
    name: Box<OsStr>,
    /// Has the lock.
    directory: OwnedFd,
    identity: Identity,
}

impl Placeholders {
    /// Makes or takes over one for each cover that needs it.
    ///
    /// What is missing is judged anew: what the plan saw may have been another's placeholder, which is gone by now.
    pub(crate) fn hold(mounts: &[Mount], requester: Requester<'_>) -> Result<Self, StepFailure> {
        let mut placeholders = Self::default();
        for (index, mount) in mounts.iter().enumerate() {
            let Mount::Cover(cover @ Cover { is_directory: true, .. }) = mount else {
                continue;
            };
            match place(index, &cover.path, requester) {
                Ok(Found::Other) => {}
                Ok(Found::Ours(held)) => placeholders.held.push(held),
                Ok(Found::NoPlace) => placeholders.impossible.push(index),
                Err(errno) => {
                    let mount = u32::try_from(index).unwrap_or(u32::MAX);
                    return Err(SandboxStep::Placeholder { mount }.failed(errno));
                }
            }
        }
        Ok(placeholders)
    }

    /// Nothing is there, and nobody who runs as this user can make anything there.
    pub(super) fn is_impossible(&self, mount: usize) -> bool {
        self.impossible.binary_search(&mount).is_ok()
    }

    pub(super) fn identity(&self, mount: usize) -> Option<Identity> {
        let place = self.held.binary_search_by_key(&mount, |held| held.mount).ok()?;
        self.held.get(place).map(|held| held.identity)
    }
}

impl Drop for Placeholders {
    fn drop(&mut self) {
        for held in self.held.drain(..).rev() {
            held.remove();
        }
    }
}

impl Held {
    fn remove(self) {
        let alone = flock(&self.directory, FlockOperation::NonBlockingLockExclusive).is_ok();
        if alone && is_still(&self.parent, &self.name, self.identity) {
            // Fails if it is not empty, and then it is not ours any more.
            let _ = unlinkat(&self.parent, &*self.name, AtFlags::REMOVEDIR);
        }
    }
}

enum Found {
    /// Something that is not a placeholder.
    Other,
    Ours(Held),
    NoPlace,
}

fn place(mount: usize, path: &Path, requester: Requester<'_>) -> Result<Found, Errno> {
    let (Some(above), Some(name)) = (path.parent(), path.file_name()) else {
        return Ok(Found::Other);
    };
    let parent = open_directory(above)?;
    requester.still_waits()?;
    for _ in 0..ATTEMPTS {
        match statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(status) if !looks_like_ours(&status) => return Ok(Found::Other),
            Ok(_) => {
                if let Some((directory, identity)) = lock(&parent, name)? {
                    let name = name.into();
                    return Ok(Found::Ours(Held { mount, parent, name, directory, identity }));
                }
                // Not right after it was made: somebody has to remove it.
                requester.still_waits()?;
                wait_a_little();
            }
            Err(Errno::NOENT) => match mkdirat(&parent, name, MODE) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(Errno::ROFS) => return Ok(Found::NoPlace),
                // Whoever owns the parent could change its mode and then make anything there.
                Err(Errno::ACCESS | Errno::PERM) if !is_own(&parent)? => {
                    return Ok(Found::NoPlace);
                }
                Err(errno) => return Err(errno),
            },
            Err(errno) => return Err(errno),
        }
    }
    Err(Errno::AGAIN)
}

#[expect(clippy::disallowed_methods, reason = "a wait for the lock itself might never end")]
fn wait_a_little() {
    thread::sleep(PAUSE);
}

/// `None` if it is being removed, or was.
fn lock(parent: &OwnedFd, name: &OsStr) -> Result<Option<(OwnedFd, Identity)>, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let directory = match openat(parent, name, flags, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(None),
        opened => opened?,
    };
    match flock(&directory, FlockOperation::NonBlockingLockShared) {
        Err(Errno::WOULDBLOCK | Errno::INTR) => return Ok(None),
        locked => locked?,
    }
    let identity = Identity::of(&fstat(&directory)?);
    Ok(is_still(parent, name, identity).then_some((directory, identity)))
}

fn is_own(directory: &OwnedFd) -> Result<bool, Errno> {
    Ok(fstat(directory)?.st_uid == rustix::process::geteuid().as_raw())
}

fn is_still(parent: &OwnedFd, name: &OsStr, identity: Identity) -> bool {
    statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)
        .is_ok_and(|status| Identity::of(&status) == identity && looks_like_ours(&status))
}

/// Also if another user's server has made it: it must not go while we need it.
fn looks_like_ours(status: &Stat) -> bool {
    FileType::from_raw_mode(status.st_mode) == FileType::Directory
        && status.st_mode & (STICKY | WRITABLE) == STICKY
}

/// Symlinks are not followed: the policy speaks of real paths, so one has come there since.
fn open_directory(path: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    open_real(path, flags)
}

/// Opens a path that has no symlink in it.
pub(super) fn open_real(path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
    loop {
        match openat2(CWD, path, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS) {
            // The kernel saw a rename at the same time and could not tell where it was.
            Err(Errno::AGAIN | Errno::INTR) => {}
            opened => return opened,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::fd::AsFd;
    use std::os::unix::fs::PermissionsExt;

    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    use super::*;
    use crate::sandbox::plan::CoverKind;

    fn covers(paths: &[&Path]) -> Vec<Mount> {
        let cover = |path: &&Path| {
            let path = path.to_path_buf();
            Mount::Cover(Cover {
                path,
                kind: CoverKind::ReadOnly,
                is_directory: true,
                missing: true,
            })
        };
        paths.iter().map(cover).collect()
    }

    fn hold(mounts: &[Mount]) -> Result<Placeholders, StepFailure> {
        let (ours, _theirs) = pair();
        Placeholders::hold(mounts, Requester::at(ours.as_fd()))
    }

    fn pair() -> (OwnedFd, OwnedFd) {
        socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap()
    }

    #[test]
    fn the_last_one_who_needs_it_removes_it() {
        let workspace = tempfile::tempdir().unwrap();
        let path = workspace.path().join(".git");
        let first = hold(&covers(&[&path])).unwrap();
        let second = hold(&covers(&[&path])).unwrap();
        assert_eq!(first.identity(0), second.identity(0));
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o1555);
        drop(first);
        assert!(path.exists());
        drop(second);
        assert!(!path.exists());
    }

    #[test]
    fn one_that_was_left_behind_is_taken_over() {
        let workspace = tempfile::tempdir().unwrap();
        let path = workspace.path().join(".codex");
        // As if its keeper had been killed: the lock goes, the directory stays.
        hold(&covers(&[&path])).unwrap().held.clear();
        assert!(path.exists());
        drop(hold(&covers(&[&path])).unwrap());
        assert!(!path.exists());
    }

    #[test]
    fn what_somebody_else_made_stays() {
        let workspace = tempfile::tempdir().unwrap();
        let (real, filled) = (workspace.path().join("real"), workspace.path().join("filled"));
        fs::create_dir(&real).unwrap();
        let placeholders = hold(&covers(&[&real, &filled])).unwrap();
        assert_eq!(placeholders.identity(0), None);
        fs::set_permissions(&filled, fs::Permissions::from_mode(0o755)).unwrap();
        fs::write(filled.join("file"), "").unwrap();
        drop(placeholders);
        assert!(real.exists() && filled.join("file").exists());
    }

    #[test]
    fn a_symlink_above_is_refused() {
        let workspace = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("/tmp", workspace.path().join("link")).unwrap();
        let path = workspace.path().join("link/.git");
        let failure = hold(&covers(&[&path])).map(|_| ()).unwrap_err();
        assert_eq!(failure.step, SandboxStep::Placeholder { mount: 0 });
        assert_eq!(failure.errno, libc::ELOOP);
    }

    #[test]
    fn one_whose_lock_is_kept_from_us_is_refused() {
        let workspace = tempfile::tempdir().unwrap();
        let path = workspace.path().join(".git");
        let placeholder = hold(&covers(&[&path])).unwrap();
        flock(&placeholder.held[0].directory, FlockOperation::LockExclusive).unwrap();
        let failure = hold(&covers(&[&path])).map(|_| ()).unwrap_err();
        assert_eq!(failure.errno, libc::EAGAIN);
    }

    #[test]
    fn none_is_made_that_nobody_waits_for() {
        let workspace = tempfile::tempdir().unwrap();
        let path = workspace.path().join(".git");
        let (ours, theirs) = pair();
        drop(theirs);
        let held = Placeholders::hold(&covers(&[&path]), Requester::at(ours.as_fd()));
        assert_eq!(held.map(|_| ()).unwrap_err().errno, libc::ECANCELED);
        assert!(!path.exists());
    }
}

//! Directories that stand where something is missing that a process must not create.
//!
//! Only what exists can be mounted over. So an empty directory is made, which says by its mode that it is ours, and it is removed
//! when the last process that needs it has ended. Who needs it holds a shared lock on it; only an exclusive one allows to remove it. One
//! that was left behind, because its keeper was killed, is taken over by the next.
//!
//! Whoever can open it can hold such a lock too: other users, and processes in a sandbox. A shared one keeps a placeholder from going
//! away until it is given back. An exclusive one would hinder the next start, so that gives up on the lock and sees to it that nobody
//! removes the directory any more, by putting a file into it: then it stays for good. Nobody makes one go away too early.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::rc::Rc;
use std::thread;
use std::time::Duration;

use rustix::fs::{
    AtFlags, FileType, FlockOperation, Mode, OFlags, Stat, fchmod, flock, fstat, mkdirat, openat,
    statat, unlinkat,
};
use rustix::io::Errno;

use super::descriptor_room::DescriptorRoom;
use super::start_cancellation::StartCancellation;
use crate::sandbox::kernel::open_real::open_real;
use crate::sandbox::plan::{Cover, Mount};
use crate::sandbox::report::step::{SandboxStep, StepFailure};

/// Sticky, and nobody can write it: no other program makes an empty directory like that. The mask of this process may take away
/// who can read it, which tells nothing.
const MODE: Mode = Mode::from_raw_mode(0o1555);
const STICKY: u32 = 0o1000;
const WRITABLE: u32 = 0o222;
/// Of one that stays.
const PLAIN_MODE: Mode = Mode::from_raw_mode(0o755);

/// In one that stays.
const NOTE: &str = "README";
const NOTE_TEXT: &str = "exec-server has made this directory so that no process in a sandbox could make it. Another process\n\
    kept it locked, so it was not removed. It can be removed by hand.\n";

/// How often to look again while somebody else makes or removes it, which takes a moment.
const ATTEMPTS: u32 = 250;
const PAUSE: Duration = Duration::from_millis(1);
/// The same for one that is left as it is if it stays locked.
const ATTEMPTS_FOR_OTHERS: u32 = 10;

/// A file, whatever its name is by now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::sandbox) struct Identity {
    device: u64,
    inode: u64,
}

impl Identity {
    pub(in crate::sandbox) fn of(status: &Stat) -> Self {
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
    parent: Rc<OwnedFd>,
    name: Box<OsStr>,
    /// Has the lock.
    directory: OwnedFd,
    identity: Identity,
}

impl Placeholders {
    /// Makes or takes over one for each cover that needs it.
    ///
    /// What is missing is judged anew: what the plan saw may have been another's placeholder, which is gone by now.
    pub(crate) fn hold(
        mounts: &[Mount],
        cancellation: StartCancellation<'_>,
    ) -> Result<Self, StepFailure> {
        // One for each, one for its parent.
        let room = DescriptorRoom::for_more(mounts.len().saturating_mul(2));
        Self::hold_in(&room, mounts, cancellation)
    }

    fn hold_in(
        room: &DescriptorRoom,
        mounts: &[Mount],
        cancellation: StartCancellation<'_>,
    ) -> Result<Self, StepFailure> {
        let mut parents = HashMap::new();
        let mut placeholders = Self::default();
        for (index, mount) in mounts.iter().enumerate() {
            let Mount::Cover(Cover { is_directory: true, path, .. }) = mount else {
                continue;
            };
            match find(path, &mut parents, room, cancellation) {
                Ok(Found::Other) => {}
                Ok(Found::Placeholder { parent, directory, identity }) => {
                    let name = path.file_name().unwrap_or_default().into();
                    let held = Held { mount: index, parent, name, directory, identity };
                    placeholders.held.push(held);
                }
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
    pub(in crate::sandbox) fn is_impossible(&self, mount: usize) -> bool {
        self.impossible.binary_search(&mount).is_ok()
    }

    pub(in crate::sandbox) fn identity(&self, mount: usize) -> Option<Identity> {
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
    /// Something that is not a placeholder, or is not to be treated as one.
    Other,
    Placeholder {
        parent: Rc<OwnedFd>,
        directory: OwnedFd,
        identity: Identity,
    },
    NoPlace,
}

type Parents<'a> = HashMap<&'a Path, Rc<OwnedFd>>;

fn find<'a>(
    path: &'a Path,
    parents: &mut Parents<'a>,
    room: &DescriptorRoom,
    cancellation: StartCancellation<'_>,
) -> Result<Found, Errno> {
    let (Some(above), Some(name)) = (path.parent(), path.file_name()) else {
        return Ok(Found::Other);
    };
    let parent = match parents.get(above) {
        Some(parent) => Rc::clone(parent),
        None => {
            let parent = Rc::new(room.put_away(open_directory(above)?));
            parents.insert(above, Rc::clone(&parent));
            parent
        }
    };
    cancellation.check()?;
    for attempt in 0..ATTEMPTS {
        match statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(status) if !looks_like_one(&status) => return Ok(Found::Other),
            Ok(_) => {
                match lock(&parent, name) {
                    Ok(Some((directory, identity))) => {
                        let directory = room.put_away(directory);
                        return Ok(Found::Placeholder { parent, directory, identity });
                    }
                    // None of ours, which their makers can read.
                    Err(Errno::ACCESS) => return Ok(Found::Other),
                    Err(errno) => return Err(errno),
                    Ok(None) if attempt >= ATTEMPTS_FOR_OTHERS => {
                        if is_left_to_others(&parent, name)? {
                            return Ok(Found::Other);
                        }
                    }
                    Ok(None) => {}
                }
                // Not right after it was made: somebody has to remove it.
                cancellation.check()?;
                wait_a_little();
            }
            Err(Errno::NOENT) => match make(&parent, name) {
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
    make_it_stay(&parent, name)?;
    Ok(Found::Other)
}

#[expect(clippy::disallowed_methods, reason = "a wait for the lock itself might never end")]
fn wait_a_little() {
    thread::sleep(PAUSE);
}

fn make(parent: &OwnedFd, name: &OsStr) -> Result<(), Errno> {
    // The lock takes a descriptor. Without one it would stay behind, so it is not made.
    let reserve = openat(parent, ".", OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    mkdirat(parent, name, MODE)?;
    drop(reserve);
    Ok(())
}

/// `None` if it is being removed, or was.
fn lock(parent: &OwnedFd, name: &OsStr) -> Result<Option<(OwnedFd, Identity)>, Errno> {
    let Some(directory) = open_named(parent, name)? else { return Ok(None) };
    match flock(&directory, FlockOperation::NonBlockingLockShared) {
        Err(Errno::WOULDBLOCK | Errno::INTR) => return Ok(None),
        locked => locked?,
    }
    let identity = Identity::of(&fstat(&directory)?);
    Ok(is_still(parent, name, identity).then_some((directory, identity)))
}

/// Nobody removes a directory that is not empty, so this needs no lock: either it is gone before the file is in it, or it stays.
/// Fails with [`Errno::AGAIN`] if it is another user's, or gone.
fn make_it_stay(parent: &OwnedFd, name: &OsStr) -> Result<(), Errno> {
    let directory = open_named(parent, name)?.ok_or(Errno::AGAIN)?;
    let status = fstat(&directory)?;
    if looks_like_one(&status) {
        fchmod(&directory, PLAIN_MODE).map_err(|errno| match errno {
            Errno::PERM => Errno::AGAIN,
            errno => errno,
        })?;
        leave_a_note(&directory)?;
    }
    let is_there = statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)
        .is_ok_and(|named| Identity::of(&named) == Identity::of(&status));
    if is_there { Ok(()) } else { Err(Errno::AGAIN) }
}

/// What counts is that something is there. Whatever has the name already was chosen by whoever holds the lock, and is not touched.
fn leave_a_note(directory: &OwnedFd) -> Result<(), Errno> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    match openat(directory, NOTE, flags, Mode::from_raw_mode(0o644)) {
        Ok(note) => {
            let _ = std::fs::File::from(note).write_all(NOTE_TEXT.as_bytes());
            Ok(())
        }
        Err(Errno::EXIST) => Ok(()),
        Err(Errno::NOENT) => Err(Errno::AGAIN),
        Err(errno) => Err(errno),
    }
}

fn open_named(parent: &OwnedFd, name: &OsStr) -> Result<Option<OwnedFd>, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match openat(parent, name, flags, Mode::empty()) {
        Err(Errno::NOENT) => Ok(None),
        opened => opened.map(Some),
    }
}

fn is_own(directory: &OwnedFd) -> Result<bool, Errno> {
    Ok(fstat(directory)?.st_uid == rustix::process::geteuid().as_raw())
}

fn is_still(parent: &OwnedFd, name: &OsStr, identity: Identity) -> bool {
    statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)
        .is_ok_and(|status| Identity::of(&status) == identity && looks_like_one(&status))
}

/// Also if another user's server has made it: it must not go while we need it.
fn looks_like_one(status: &Stat) -> bool {
    FileType::from_raw_mode(status.st_mode) == FileType::Directory
        && status.st_mode & (STICKY | WRITABLE) == STICKY
}

/// Everybody can make one in `/tmp`, and only its owner and root can take it away. Nobody's project is there, so that root leaves it
/// as it is.
fn is_left_to_others(parent: &OwnedFd, name: &OsStr) -> Result<bool, Errno> {
    let is_sticky = fstat(parent)?.st_mode & STICKY != 0;
    let status = statat(parent, name, AtFlags::SYMLINK_NOFOLLOW);
    let is_foreign = |status: Stat| status.st_uid != rustix::process::geteuid().as_raw();
    Ok(is_sticky && status.is_ok_and(is_foreign))
}

/// Symlinks are not followed: the policy speaks of real paths, so one has come there since.
fn open_directory(path: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    open_real(path, flags)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::fd::AsFd;
    use std::os::unix::fs::PermissionsExt;

    use exec_server_test_support::skipped;
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
        Placeholders::hold(mounts, StartCancellation::at(ours.as_fd()))
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

    /// As a process in a sandbox, or another user, can.
    fn lock_away(path: &Path) -> fs::File {
        let directory = fs::File::open(path).unwrap();
        flock(&directory, FlockOperation::LockExclusive).unwrap();
        directory
    }

    #[test]
    fn one_whose_lock_is_kept_from_us_is_used_and_stays() {
        let workspace = tempfile::tempdir().unwrap();
        let path = workspace.path().join(".git");
        hold(&covers(&[&path])).unwrap().held.clear();
        let attacker = lock_away(&path);
        let first = hold(&covers(&[&path])).unwrap();
        drop(attacker);
        let second = hold(&covers(&[&path])).unwrap();
        drop((first, second));
        assert!(fs::read_to_string(path.join(NOTE)).unwrap().contains("can be removed"));
    }

    /// Whoever took the lock to remove it may be slow.
    #[test]
    fn one_that_is_to_stay_cannot_be_removed_by_who_began_to() {
        let workspace = tempfile::tempdir().unwrap();
        let path = workspace.path().join(".git");
        let held = hold(&covers(&[&path])).unwrap();
        let remover = &held.held[0];
        flock(&remover.directory, FlockOperation::LockExclusive).unwrap();
        assert!(is_still(&remover.parent, &remover.name, remover.identity));
        drop(hold(&covers(&[&path])).unwrap());
        let removed = unlinkat(&remover.parent, &*remover.name, AtFlags::REMOVEDIR);
        assert_eq!(removed, Err(Errno::NOTEMPTY));
    }

    #[test]
    fn one_of_another_user_goes_with_the_last_who_needs_it_and_in_tmp_is_not_changed() {
        if !rustix::process::geteuid().is_root() {
            return skipped("only root can remove what is another user's");
        }
        let workspace = tempfile::tempdir().unwrap();
        let path = workspace.path().join(".git");
        let theirs = hold(&covers(&[&path])).unwrap();
        std::os::unix::fs::chown(&path, Some(54321), None).unwrap();
        let ours = hold(&covers(&[&path])).unwrap();
        assert!(ours.identity(0).is_some(), "its owner must not remove it meanwhile");
        drop(theirs);
        assert!(path.exists());
        drop(ours);
        assert!(!path.exists());

        fs::create_dir(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o1555)).unwrap();
        std::os::unix::fs::chown(&path, Some(54321), None).unwrap();
        fs::set_permissions(workspace.path(), fs::Permissions::from_mode(0o1777)).unwrap();
        let _attacker = lock_away(&path);
        let placeholders = hold(&covers(&[&path])).unwrap();
        assert_eq!(placeholders.identity(0), None);
        assert!(!path.join(NOTE).exists());
    }

    /// Whoever keeps the lock also chooses what has the name of the note.
    #[test]
    fn whatever_has_the_name_of_the_note_is_not_touched() {
        type Plant<'a> = &'a dyn Fn(&Path) -> std::io::Result<()>;
        let workspace = tempfile::tempdir().unwrap();
        let precious = workspace.path().join("precious");
        fs::write(&precious, "precious").unwrap();
        let plant: [Plant<'_>; 4] = [
            &|note| fs::hard_link(&precious, note),
            &|note| std::os::unix::fs::symlink(&precious, note),
            &|note| fs::create_dir(note),
            &|note| {
                let fifo = FileType::Fifo;
                Ok(rustix::fs::mknodat(rustix::fs::CWD, note, fifo, Mode::from_raw_mode(0o600), 0)?)
            },
        ];
        for (number, plant) in plant.into_iter().enumerate() {
            let path = workspace.path().join(number.to_string());
            fs::create_dir(&path).unwrap();
            plant(&path.join(NOTE)).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o1555)).unwrap();
            let _attacker = lock_away(&path);
            let placeholders = hold(&covers(&[&path])).unwrap();
            assert_eq!(placeholders.identity(0), None, "{number}");
            assert_eq!(fs::read(&precious).unwrap(), b"precious", "{number}");
        }
    }

    #[test]
    fn a_start_that_runs_out_of_descriptors_leaves_nothing() {
        use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
        let workspace = tempfile::tempdir().unwrap();
        let before = getrlimit(Resource::Nofile);
        let paths: Vec<_> = (0..12).map(|n| workspace.path().join(format!("m{n}"))).collect();
        let paths: Vec<&Path> = paths.iter().map(std::path::PathBuf::as_path).collect();
        let mounts = covers(&paths);
        let mut failures = 0;
        // Every number of descriptors that can be left when a placeholder is made.
        for limit in 10..40 {
            let (ours, theirs) = pair();
            let low = Rlimit { current: Some(limit), maximum: before.maximum };
            setrlimit(Resource::Nofile, low).unwrap();
            let room = DescriptorRoom::none();
            let held = Placeholders::hold_in(&room, &mounts, StartCancellation::at(ours.as_fd()));
            setrlimit(Resource::Nofile, before).unwrap();
            failures += usize::from(held.is_err());
            drop((held, theirs));
            let left = workspace.path().read_dir().unwrap().count();
            assert_eq!(left, 0, "with a limit of {limit}");
        }
        assert!((1..30).contains(&failures), "{failures}");
    }

    #[test]
    fn none_is_made_that_nobody_waits_for() {
        let workspace = tempfile::tempdir().unwrap();
        let path = workspace.path().join(".git");
        let (ours, theirs) = pair();
        drop(theirs);
        let held = Placeholders::hold(&covers(&[&path]), StartCancellation::at(ours.as_fd()));
        assert_eq!(held.map(|_| ()).unwrap_err().errno, libc::ECANCELED);
        assert!(!path.exists());
    }
}

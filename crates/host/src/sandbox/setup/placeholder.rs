//! Placeholder directories at missing paths that a process must not create.
//!
//! A mount needs an existing mount point. So an empty directory with a recognizable mode is
//! created, and removed when the last process that needs it has ended. Every process that needs it
//! holds a shared lock on it; removing it requires an exclusive lock. If a keeper is killed and
//! leaves a placeholder behind, the next keeper takes it over.
//!
//! Any process that can open the directory can hold such a lock too: processes of other users, and
//! processes in a sandbox. A shared lock delays the removal until it is released. An exclusive lock
//! would block the next start, so the start gives up on the lock and makes the directory permanent
//! by creating a file in it: then keepers no longer remove it. No process can cause a premature
//! removal.

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

/// Sticky, without write permission: no other program creates an empty directory like that. The
/// umask of this process may remove read permissions, which are not part of the pattern.
const MODE: Mode = Mode::from_raw_mode(0o1555);
const STICKY: u32 = 0o1000;
const WRITABLE: u32 = 0o222;
/// The mode of a placeholder that stays.
const PLAIN_MODE: Mode = Mode::from_raw_mode(0o755);

const NOTE: &str = "README";
const NOTE_TEXT: &str = "exec-server created this directory so that no process in a sandbox could create it. Another process\n\
    held a lock on it, so it was not removed. It can be removed by hand.\n";

/// The number of attempts while another process creates or removes the directory, which takes a
/// moment.
const ATTEMPTS: u32 = 250;
const PAUSE: Duration = Duration::from_millis(1);
/// The number of attempts before a locked placeholder of another user may be left alone.
const ATTEMPTS_FOR_OTHERS: u32 = 10;

/// Identifies a file regardless of its name.
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

/// The placeholders that one process needs. Dropping this removes those that no other process
/// needs.
#[derive(Debug, Default)]
pub(crate) struct Placeholders {
    /// Sorted by mount index, as is `impossible`.
    held: Vec<Held>,
    /// Mounts of the plan whose path does not exist and cannot be created.
    impossible: Vec<usize>,
}

#[derive(Debug)]
struct Held {
    mount: usize,
    parent: Rc<OwnedFd>,
    name: Box<OsStr>,
    /// Holds the lock.
    directory: OwnedFd,
    identity: Identity,
}

impl Placeholders {
    /// Creates or takes over a placeholder for each cover that needs one.
    ///
    /// Checks again whether a path is missing: the plan may have seen a placeholder of another
    /// process that has been removed since.
    pub(crate) fn hold(
        mounts: &[Mount],
        cancellation: StartCancellation<'_>,
    ) -> Result<Self, StepFailure> {
        // One descriptor for each directory and one for its parent.
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

    /// Whether the path does not exist and no process of this user can create it.
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
            // Fails if the directory is not empty; then it is no longer a placeholder.
            let _ = unlinkat(&self.parent, &*self.name, AtFlags::REMOVEDIR);
        }
    }
}

enum Found {
    /// No placeholder is held: something else is there, the placeholder was made permanent, or a
    /// locked placeholder of another user is left alone.
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
                    // Not a placeholder of this user: those are readable.
                    Err(Errno::ACCESS) => return Ok(Found::Other),
                    Err(errno) => return Err(errno),
                    Ok(None) if attempt >= ATTEMPTS_FOR_OTHERS => {
                        if is_left_to_others(&parent, name)? {
                            return Ok(Found::Other);
                        }
                    }
                    Ok(None) => {}
                }
                // Cancellation is not checked right after creating the directory: a failure would
                // leave it behind.
                cancellation.check()?;
                wait_a_little();
            }
            Err(Errno::NOENT) => match make(&parent, name) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(Errno::ROFS) => return Ok(Found::NoPlace),
                // The owner of the parent could change its mode and then create the path.
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
    // The lock needs a descriptor. Without one the directory would be left behind, so a descriptor
    // is reserved first.
    let reserve = openat(parent, ".", OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    mkdirat(parent, name, MODE)?;
    drop(reserve);
    Ok(())
}

/// Returns `None` if the directory was removed or replaced, or if another process holds an
/// exclusive lock on it, for example to remove it.
fn lock(parent: &OwnedFd, name: &OsStr) -> Result<Option<(OwnedFd, Identity)>, Errno> {
    let Some(directory) = open_named(parent, name)? else { return Ok(None) };
    match flock(&directory, FlockOperation::NonBlockingLockShared) {
        Err(Errno::WOULDBLOCK | Errno::INTR) => return Ok(None),
        locked => locked?,
    }
    let identity = Identity::of(&fstat(&directory)?);
    Ok(is_still(parent, name, identity).then_some((directory, identity)))
}

/// Makes a placeholder permanent. This needs no lock, since no keeper can remove a directory that
/// is not empty: either it is removed before the file is created, or it stays. Fails with
/// [`Errno::AGAIN`] if it belongs to another user or was removed.
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

/// Any entry makes the directory non-empty, so an existing entry with the name of the note
/// suffices. It may come from the attacker that holds the lock, so it is not touched.
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

/// Whether this is a placeholder, including one created by another user's server: it must not be
/// removed while this process needs it.
fn looks_like_one(status: &Stat) -> bool {
    FileType::from_raw_mode(status.st_mode) == FileType::Directory
        && status.st_mode & (STICKY | WRITABLE) == STICKY
}

/// Whether the directory belongs to another user in a sticky directory such as `/tmp`. Any user can
/// create a placeholder there, and only its owner and root can remove it. `/tmp` is not a project,
/// so root leaves the placeholder alone.
fn is_left_to_others(parent: &OwnedFd, name: &OsStr) -> Result<bool, Errno> {
    let is_sticky = fstat(parent)?.st_mode & STICKY != 0;
    let status = statat(parent, name, AtFlags::SYMLINK_NOFOLLOW);
    let is_foreign = |status: Stat| status.st_uid != rustix::process::geteuid().as_raw();
    Ok(is_sticky && status.is_ok_and(is_foreign))
}

/// A symlink is an error: policies name real paths, so the symlink was created after the policy was
/// resolved.
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
    fn the_last_holder_removes_a_placeholder() {
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
    fn a_placeholder_left_behind_is_taken_over() {
        let workspace = tempfile::tempdir().unwrap();
        let path = workspace.path().join(".codex");
        // As if its keeper had been killed: the lock is released, the directory stays.
        hold(&covers(&[&path])).unwrap().held.clear();
        assert!(path.exists());
        drop(hold(&covers(&[&path])).unwrap());
        assert!(!path.exists());
    }

    #[test]
    fn directories_that_are_not_placeholders_stay() {
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
    fn a_symlink_above_is_an_error() {
        let workspace = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("/tmp", workspace.path().join("link")).unwrap();
        let path = workspace.path().join("link/.git");
        let failure = hold(&covers(&[&path])).map(|_| ()).unwrap_err();
        assert_eq!(failure.step, SandboxStep::Placeholder { mount: 0 });
        assert_eq!(failure.errno, libc::ELOOP);
    }

    /// Locks the directory as a sandboxed process or another user could.
    fn lock_away(path: &Path) -> fs::File {
        let directory = fs::File::open(path).unwrap();
        flock(&directory, FlockOperation::LockExclusive).unwrap();
        directory
    }

    #[test]
    fn a_placeholder_locked_by_another_process_is_used_and_stays() {
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

    /// The process that took the lock to remove the directory may be slow.
    #[test]
    fn a_permanent_placeholder_survives_a_removal_in_progress() {
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
    fn root_removes_placeholders_of_other_users_except_in_sticky_directories() {
        if !rustix::process::geteuid().is_root() {
            return skipped("only root can remove files of other users");
        }
        let workspace = tempfile::tempdir().unwrap();
        let path = workspace.path().join(".git");
        let theirs = hold(&covers(&[&path])).unwrap();
        std::os::unix::fs::chown(&path, Some(54321), None).unwrap();
        let ours = hold(&covers(&[&path])).unwrap();
        assert!(ours.identity(0).is_some(), "its owner must not remove it while it is needed");
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

    /// The process that holds the lock can also plant a file with the name of the note.
    #[test]
    fn an_existing_file_with_the_name_of_the_note_is_not_touched() {
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
    fn a_start_that_runs_out_of_descriptors_leaves_no_placeholder() {
        use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
        let workspace = tempfile::tempdir().unwrap();
        let before = getrlimit(Resource::Nofile);
        let paths: Vec<_> = (0..12).map(|n| workspace.path().join(format!("m{n}"))).collect();
        let paths: Vec<&Path> = paths.iter().map(std::path::PathBuf::as_path).collect();
        let mounts = covers(&paths);
        let mut failures = 0;
        // Tries every number of remaining descriptors at the creation of a placeholder.
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
    fn a_cancelled_start_creates_no_placeholder() {
        let workspace = tempfile::tempdir().unwrap();
        let path = workspace.path().join(".git");
        let (ours, theirs) = pair();
        drop(theirs);
        let held = Placeholders::hold(&covers(&[&path]), StartCancellation::at(ours.as_fd()));
        assert_eq!(held.map(|_| ()).unwrap_err().errno, libc::ECANCELED);
        assert!(!path.exists());
    }
}

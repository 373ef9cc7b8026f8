//! A temporary file in the directory of its final name. Only this process writes it. It is removed
//! when dropped, unless it was published or can be resumed.
//!
//! A killed process leaves its staged files behind, as `.NAME.WORD.tmp`. WORD is a hash of NAME and
//! the resume key, so the next staged file for NAME replaces or continues an abandoned one. If the
//! file of that name is in use, or is not a staged file of this user, a write with a resume key
//! fails, and any other gets a random WORD. A staged file is in use while it is locked; the kernel
//! releases the lock when the process ends, for whatever reason.

use std::collections::hash_map::RandomState;
use std::ffi::{OsStr, OsString};
use std::hash::{BuildHasher as _, Hasher as _};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::Path;

use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use sha2::{Digest as _, Sha256};

use super::claim;
use crate::fs::confinement::{self, RequiredAccess};
use crate::fs::error::FsError;
use crate::fs::path::kind::FileKind;
use crate::fs::path::resolve::{self, Identity, Parent};
use crate::fs::tree::rename::without_replacing;

#[derive(Debug)]
pub(in crate::fs) struct StagedFile {
    /// The final directory and name.
    parent: Parent,
    name: OsString,
    file: OwnedFd,
    fate: Fate,
}

/// The fate of the temporary name on drop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Removed,
    /// The file can be resumed.
    Kept,
    /// The file has its final name. A file that now has the temporary name belongs to another
    /// writer.
    Published,
    /// Another program has removed the temporary name, or given it to another file.
    Lost,
}

/// The temporary name contains at most this many bytes of the final name, and fewer than a hundred
/// other bytes.
const MAX_STEM_BYTES: usize = 100;

impl StagedFile {
    /// `mode` is subject to the umask.
    pub(in crate::fs) fn create(path: &Path, parent: Parent, mode: Mode) -> Result<Self, FsError> {
        // Resumable staged files never have an empty key.
        let usual = temporary_name(&parent.name, &word_of(&parent.name, ""));
        confinement::expect(parent.directory.as_fd(), &usual, RequiredAccess::Change, path)?;
        if let Some(file) = create_in_place_of_abandoned(&parent, &usual, mode) {
            return Ok(Self { parent, name: usual, file, fate: Fate::Removed });
        }
        let (name, file) = claim::persist(path, || {
            let name = temporary_name(&parent.name, &random_word());
            confinement::expect(parent.directory.as_fd(), &name, RequiredAccess::Change, path)?;
            match create(&parent, &name, mode) {
                Ok(file) => Ok(Some((name, file))),
                Err(Errno::EXIST) => Ok(None),
                Err(errno) => Err(FsError::os("create a temporary file for", path)(errno)),
            }
        })?;
        Ok(Self { parent, name, file, fate: Fate::Removed })
    }

    /// Opens the staged file of this key, or creates it. It stays in place when dropped.
    pub(in crate::fs) fn resume(
        path: &Path,
        parent: Parent,
        key: &str,
        mode: Mode,
    ) -> Result<Self, FsError> {
        let name = temporary_name(&parent.name, &word_of(&parent.name, key));
        confinement::expect(parent.directory.as_fd(), &name, RequiredAccess::Change, path)?;
        let file = claim::persist(path, || open_or_create(path, &parent, &name, mode))?;
        Ok(Self { parent, name, file, fate: Fate::Kept })
    }

    pub(in crate::fs) fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    pub(in crate::fs) fn parent(&self) -> &Parent {
        &self.parent
    }

    pub(in crate::fs) fn remove_when_dropped(&mut self) {
        self.fate = Fate::Removed;
    }

    /// The file may have been given to the owner of the file to be replaced, but must belong to
    /// this user to be resumed.
    pub(in crate::fs) fn take_back_ownership(&self) {
        if matches!(self.fate, Fate::Published | Fate::Lost) {
            return;
        }
        let _ = rustix::fs::fchown(&self.file, Some(rustix::process::geteuid()), None);
        let _ = rustix::fs::fchmod(&self.file, Mode::RUSR | Mode::WUSR);
    }

    /// Renames the file to its final name, durably. With `create_new` it fails with `EEXIST` if the
    /// final name exists.
    pub(in crate::fs) fn publish(&mut self, create_new: bool) -> Result<(), NotPublished> {
        // A rename works by name only. Another user with write access to the directory may have
        // replaced the file.
        if !self.has_its_name()? {
            self.fate = Fate::Lost;
            return Err(NotPublished::Replaced);
        }
        let directory = self.parent.directory.as_fd();
        if create_new {
            without_replacing(directory, &self.name, directory, &self.parent.name)?;
        } else {
            rustix::fs::renameat(directory, &self.name, directory, &self.parent.name)?;
        }
        self.fate = Fate::Published;
        // Unlocked before the sync, which takes time: other writers may want to lock the file under
        // its final name.
        let _ = rustix::fs::flock(&self.file, FlockOperation::NonBlockingUnlock);
        Ok(sync_directory(directory)?)
    }

    /// Whether the temporary name still leads to this file. Checked only before the rename: after
    /// it, the next writer may legitimately have replaced the file.
    fn has_its_name(&self) -> Result<bool, Errno> {
        match rustix::fs::statat(&self.parent.directory, &self.name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(named) => Ok(Identity::from(&named) == Identity::of(self.file.as_fd())?),
            Err(Errno::NOENT) => Ok(false),
            Err(errno) => Err(errno),
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
pub(in crate::fs) enum NotPublished {
    Os(Errno),
    /// Another program has replaced or removed the temporary file.
    Replaced,
}

impl From<Errno> for NotPublished {
    fn from(errno: Errno) -> Self {
        Self::Os(errno)
    }
}

impl Drop for StagedFile {
    fn drop(&mut self) {
        if self.fate == Fate::Removed {
            let _ = rustix::fs::unlinkat(&self.parent.directory, &self.name, AtFlags::empty());
        }
    }
}

fn create(parent: &Parent, name: &OsStr, mode: Mode) -> Result<OwnedFd, Errno> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(&parent.directory, name, flags, mode)
}

/// `None` if the name is in use, or is not a staged file of this user, or no file can be created.
/// In the last case, the attempt with another name reports the error.
fn create_in_place_of_abandoned(parent: &Parent, name: &OsStr, mode: Mode) -> Option<OwnedFd> {
    let file = match create(parent, name, mode) {
        Err(Errno::EXIST) => {
            remove_abandoned(parent, name)?;
            create(parent, name, mode).ok()?
        }
        created => created.ok()?,
    };
    match lock(parent, name, &file) {
        Ok(has_name) => has_name.then_some(file),
        // Another writer took the file for abandoned before it was locked, and is about to remove
        // it.
        Err(Errno::WOULDBLOCK) => None,
        // The file system has no locks, so no file there is taken for abandoned.
        Err(_) => Some(file),
    }
}

/// Invariant: the usual staged file of a name is removed only under its lock, so a locked one keeps
/// its name.
fn remove_abandoned(parent: &Parent, name: &OsStr) -> Option<()> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let node = rustix::fs::openat(&parent.directory, name, flags, Mode::empty()).ok()?;
    expect_own(Path::new(name), &node).ok()?;
    let file = resolve::reopen(node.as_fd(), OFlags::WRONLY).ok()?;
    let is_abandoned = lock(parent, name, &file).ok()?;
    if is_abandoned {
        rustix::fs::unlinkat(&parent.directory, name, AtFlags::empty()).ok()?;
    }
    Some(())
}

/// Locks a staged file. Returns whether it still has its name: the previous lock holder may have
/// published or removed it.
fn lock(parent: &Parent, name: &OsStr, file: &OwnedFd) -> Result<bool, Errno> {
    rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive)?;
    let locked = Identity::of(file.as_fd())?;
    let named = rustix::fs::statat(&parent.directory, name, AtFlags::SYMLINK_NOFOLLOW);
    Ok(named.is_ok_and(|named| Identity::from(&named) == locked))
}

/// `None` if another writer published, removed or created the staged file in the meantime.
fn open_or_create(
    path: &Path,
    parent: &Parent,
    name: &OsStr,
    mode: Mode,
) -> Result<Option<OwnedFd>, FsError> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let opened = match rustix::fs::openat(&parent.directory, name, flags, Mode::empty()) {
        Ok(node) => {
            expect_own(&path.with_file_name(name), &node)?;
            resolve::reopen(node.as_fd(), OFlags::WRONLY)
        }
        Err(Errno::NOENT) => match create(parent, name, mode) {
            Err(Errno::EXIST) => return Ok(None),
            created => created,
        },
        Err(errno) => Err(errno),
    };
    let file = opened.map_err(FsError::opening("open the temporary file of", path))?;
    match lock(parent, name, &file) {
        // If it has lost its name, it may be the finished file, which must not be written.
        Ok(has_name) => Ok(has_name.then_some(file)),
        Err(Errno::WOULDBLOCK) => {
            let is = "is being written by another request with the same resume key".to_owned();
            Err(FsError::Conflict { path: path.to_owned(), is })
        }
        Err(errno) => Err(FsError::os("lock the temporary file of", path)(errno)),
    }
}

/// Fails unless this is a regular file of this user with only one name. In a directory where other
/// users can write, the file may belong to one of them, or be a hard link to another file of this
/// user.
fn expect_own(staged_file: &Path, node: &OwnedFd) -> Result<(), FsError> {
    let stat = rustix::fs::fstat(node).map_err(FsError::os("stat", staged_file))?;
    resolve::expect_kind(staged_file, &stat, FileKind::Regular, "a temporary file")?;
    if stat.st_uid != rustix::process::geteuid().as_raw() || stat.st_nlink != 1 {
        let why = "is not a temporary file of this server; use another resume key";
        return Err(FsError::Unsuitable { path: staged_file.to_owned(), why });
    }
    Ok(())
}

fn sync_directory(directory: BorrowedFd<'_>) -> Result<(), Errno> {
    let directory = match resolve::reopen(directory, OFlags::RDONLY | OFlags::DIRECTORY) {
        Ok(directory) => directory,
        // The directory may be writable but not readable. Then it cannot be synced.
        Err(Errno::ACCESS) => return Ok(()),
        Err(errno) => return Err(errno),
    };
    match rustix::fs::fsync(directory) {
        // Some file systems cannot sync a directory.
        Err(Errno::INVAL) => Ok(()),
        synced => synced,
    }
}

fn temporary_name(name: &OsStr, word: &str) -> OsString {
    let bytes = name.as_bytes();
    let stem = match name.to_str() {
        Some(text) => &bytes[..text.floor_char_boundary(MAX_STEM_BYTES)],
        None => &bytes[..bytes.len().min(MAX_STEM_BYTES)],
    };
    let mut staged_file = Vec::with_capacity(stem.len() + word.len() + 6);
    staged_file.push(b'.');
    staged_file.extend_from_slice(stem);
    staged_file.push(b'.');
    staged_file.extend_from_slice(word.as_bytes());
    staged_file.extend_from_slice(b".tmp");
    OsString::from_vec(staged_file)
}

/// The word need not be secret: a name that another program guessed and took is simply not used.
fn random_word() -> String {
    const LETTERS: &[u8; 36] = b"abcdefghijklmnopqrstuvwxyz0123456789";
    let mut number = RandomState::new().build_hasher().finish();
    let mut word = String::with_capacity(6);
    for _ in 0..6 {
        word.push(char::from(LETTERS[(number % 36) as usize]));
        number /= 36;
    }
    word
}

/// Names with the same first hundred bytes get different words too. The word is longer than any
/// random word.
fn word_of(name: &OsStr, key: &str) -> String {
    let mut hash = Sha256::new();
    hash.update(name.as_bytes());
    hash.update([0]);
    hash.update(key.as_bytes());
    hash.finalize().iter().take(10).map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::Symlinks;

    fn staged_file(path: &Path) -> StagedFile {
        let parent = resolve::parent(path, Symlinks::Follow, RequiredAccess::Change).unwrap();
        StagedFile::create(path, parent, Mode::from_raw_mode(0o600)).unwrap()
    }

    #[test]
    fn a_file_created_at_the_last_moment_is_not_replaced() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("file");
        let mut late = staged_file(&path);
        std::fs::write(&path, "first").unwrap();
        assert_eq!(late.publish(true), Err(NotPublished::Os(Errno::EXIST)));
        assert_eq!(std::fs::read(&path).unwrap(), b"first");
        late.publish(false).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"");
        drop(late);
        assert_eq!(std::fs::read_dir(root.path()).unwrap().count(), 1);
    }

    fn names(root: &Path) -> Vec<OsString> {
        let entries = std::fs::read_dir(root).unwrap();
        let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    }

    #[test]
    fn the_next_staged_file_replaces_an_abandoned_one() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("file");
        let first = staged_file(&path);
        let usual = first.name.clone();
        drop(first);
        assert_eq!(names(root.path()), [] as [&str; 0]);

        std::fs::write(root.path().join(&usual), "left behind").unwrap();
        let mut next = staged_file(&path);
        assert_eq!(names(root.path()), [usual]);
        assert_eq!(rustix::fs::fstat(&next.file).unwrap().st_size, 0);
        next.publish(false).unwrap();
        drop(next);
        assert_eq!(names(root.path()), ["file"]);
    }

    #[test]
    fn a_staged_file_in_use_stays() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("file");
        let (one, mut two) = (staged_file(&path), staged_file(&path));
        assert_ne!(one.name, two.name);
        assert_eq!(names(root.path()).len(), 2);
        two.publish(false).unwrap();
        drop(two);
        assert_eq!(names(root.path()), [one.name.clone(), "file".into()]);
    }

    #[test]
    fn foreign_files_are_left_alone() {
        let root = tempfile::tempdir().unwrap();
        let (path, precious) = (root.path().join("file"), root.path().join("precious"));
        let usual = root.path().join(&staged_file(&path).name);
        std::fs::write(&precious, "x").unwrap();
        let plant: [&dyn Fn() -> std::io::Result<()>; 3] = [
            &|| std::os::unix::fs::symlink(&precious, &usual),
            &|| std::fs::hard_link(&precious, &usual),
            &|| std::fs::create_dir(&usual),
        ];
        for plant in plant {
            plant().unwrap();
            let planted = rustix::fs::lstat(&usual).unwrap().st_ino;
            assert_ne!(usual.file_name().unwrap(), staged_file(&path).name);
            assert_eq!(rustix::fs::lstat(&usual).unwrap().st_ino, planted);
            std::fs::remove_file(&usual).or_else(|_| std::fs::remove_dir(&usual)).unwrap();
        }
        assert_eq!(std::fs::read(&precious).unwrap(), b"x");
    }

    /// Each writer publishes its content and leaves nothing behind, however often one takes
    /// another's file for abandoned.
    #[test]
    fn staged_files_of_one_name_do_not_interfere() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("file");
        std::thread::scope(|threads| {
            for _ in 0..8 {
                threads.spawn(|| {
                    for _ in 0..200 {
                        staged_file(&path).publish(false).unwrap();
                    }
                });
            }
        });
        assert_eq!(names(root.path()), ["file"]);
    }

    #[test]
    fn a_file_that_replaced_the_staged_one_is_not_published() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("file");
        std::fs::write(&path, "old").unwrap();
        for is_removed in [false, true] {
            let mut swapped = staged_file(&path);
            let name = root.path().join(&swapped.name);
            std::fs::remove_file(&name).unwrap();
            if !is_removed {
                std::os::unix::fs::symlink("/etc/passwd", &name).unwrap();
            }
            assert_eq!(swapped.publish(false), Err(NotPublished::Replaced));
            drop(swapped);
            assert_eq!(std::fs::read(&path).unwrap(), b"old");
            assert_eq!(name.is_symlink(), !is_removed, "the other program's file stays");
        }
    }

    #[test]
    fn temporary_names_fit_and_differ() {
        let long = "ü".repeat(127) + "x";
        let longer = "ü".repeat(127) + "y";
        let name = temporary_name(OsStr::new(&long), &word_of(OsStr::new(&long), "key"));
        assert!(name.to_str().is_some() && name.len() < 143, "{name:?}");
        assert_ne!(name, temporary_name(OsStr::new(&longer), &word_of(OsStr::new(&longer), "key")));
        assert_ne!(word_of(OsStr::new("a"), "bc"), word_of(OsStr::new("ab"), "c"));
        assert_eq!(temporary_name(OsStr::new("name"), "abc123"), ".name.abc123.tmp");
        assert_ne!(random_word(), random_word());
        let not_text = OsStr::from_bytes(&[0xff; 200]);
        assert_eq!(temporary_name(not_text, "w").len(), MAX_STEM_BYTES + 7);
    }
}

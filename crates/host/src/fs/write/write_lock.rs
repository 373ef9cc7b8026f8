//! Serializes the writers of this process on each file, so that none of them changes a file between
//! another's check and the write that depends on it. Other programs are not affected.
//!
//! A writer locks two subjects: the place of a file (a name in a directory) while it checks or
//! replaces the name, and its content (an inode), because an inode may have several names.
//!
//! Invariant: names are locked in sorted order and before content, so writers cannot deadlock.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::path::Path;
use std::sync::{Arc, Condvar, LazyLock, Mutex, MutexGuard, PoisonError};

use rustix::fs::Stat;

use crate::fs::error::FsError;
use crate::fs::path::resolve::{Identity, Parent};

/// Released when dropped.
#[derive(Debug)]
pub(in crate::fs) struct WriteLock {
    subject: Subject,
    turn: Arc<Turn>,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Subject {
    Name { directory: Identity, name: OsString },
    Content(Identity),
}

#[derive(Debug, Default)]
struct Turn {
    taken: Mutex<bool>,
    free: Condvar,
}

/// Counts holders and waiters under the lock of the table. An entry without users is removed.
#[derive(Debug, Default)]
struct Entry {
    turn: Arc<Turn>,
    users: usize,
}

/// This mutex is never held while a writer waits for its turn.
static TABLE: LazyLock<Mutex<HashMap<Subject, Entry>>> = LazyLock::new(Mutex::default);

impl WriteLock {
    pub(in crate::fs) fn name(parent: &Parent, path: &Path) -> Result<Self, FsError> {
        Self::name_in(parent.directory.as_fd(), &parent.name, path)
    }

    pub(in crate::fs) fn name_in(
        directory: BorrowedFd<'_>,
        name: &OsStr,
        path: &Path,
    ) -> Result<Self, FsError> {
        Ok(Self::acquire(Subject::name(directory, name, path)?))
    }

    /// Locks two names, which may be the same.
    pub(in crate::fs) fn names(names: [(&Parent, &Path); 2]) -> Result<Vec<Self>, FsError> {
        let mut subjects = Vec::with_capacity(names.len());
        for (parent, path) in names {
            subjects.push(Subject::name(parent.directory.as_fd(), &parent.name, path)?);
        }
        subjects.sort();
        subjects.dedup();
        Ok(subjects.into_iter().map(Self::acquire).collect())
    }

    pub(in crate::fs) fn content(stat: &Stat) -> Self {
        Self::acquire(Subject::Content(Identity::from(stat)))
    }

    fn acquire(subject: Subject) -> Self {
        let turn = {
            let mut table = lock(&TABLE);
            let entry = table.entry(subject.clone()).or_default();
            entry.users += 1;
            Arc::clone(&entry.turn)
        };
        let mut taken = lock(&turn.taken);
        while *taken {
            taken = turn.free.wait(taken).unwrap_or_else(PoisonError::into_inner);
        }
        *taken = true;
        drop(taken);
        Self { subject, turn }
    }
}

impl Drop for WriteLock {
    fn drop(&mut self) {
        *lock(&self.turn.taken) = false;
        let mut table = lock(&TABLE);
        let Some(entry) = table.get_mut(&self.subject) else { return };
        entry.users -= 1;
        if entry.users == 0 {
            table.remove(&self.subject);
        } else {
            self.turn.free.notify_one();
        }
    }
}

impl Subject {
    fn name(directory: BorrowedFd<'_>, name: &OsStr, path: &Path) -> Result<Self, FsError> {
        let directory =
            Identity::of(directory).map_err(FsError::os("stat the directory of", path))?;
        Ok(Self::Name { directory, name: name.to_owned() })
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::fs::confinement::RequiredAccess;
    use crate::fs::path::resolve::{self, Symlinks};
    use crate::fs::write::claim::Claim;
    use crate::fs::{self, CancelFlag, RemoveOptions};

    fn parent_of(path: &Path) -> Parent {
        resolve::parent(path, Symlinks::Follow, RequiredAccess::Change).unwrap()
    }

    #[test]
    fn writers_take_turns_and_leave_no_entry() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("contended");
        let inside = AtomicUsize::new(0);
        std::thread::scope(|threads| {
            for _ in 0..8 {
                threads.spawn(|| {
                    let parent = parent_of(&path);
                    for _ in 0..500 {
                        let _lock = WriteLock::name(&parent, &path).unwrap();
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                        std::thread::yield_now();
                        inside.fetch_sub(1, Ordering::SeqCst);
                    }
                });
            }
        });
        let parent = parent_of(&path);
        let subject = Subject::name(parent.directory.as_fd(), &parent.name, &path).unwrap();
        assert!(!lock(&TABLE).contains_key(&subject));
    }

    #[test]
    fn a_file_replaced_during_the_wait_is_not_claimed() {
        let root = tempfile::tempdir().unwrap();
        let (path, other) = (root.path().join("file"), root.path().join("other"));
        std::fs::write(&path, "old").unwrap();
        std::fs::write(&other, "new").unwrap();
        let old = rustix::fs::stat(&path).unwrap();
        let held = WriteLock::content(&old);
        std::thread::scope(|threads| {
            let claim = threads.spawn(|| Claim::take(&path, &parent_of(&path)).unwrap());
            let subject = Subject::Content(Identity::from(&old));
            while lock(&TABLE)[&subject].users < 2 {
                std::thread::yield_now();
            }
            std::fs::rename(&other, &path).unwrap();
            drop(held);
            assert!(claim.join().unwrap().is_none());
        });
        assert!(Claim::take(&path, &parent_of(&path)).unwrap().is_some());
    }

    #[test]
    fn every_change_of_a_name_waits_for_its_writer() {
        let root = tempfile::tempdir().unwrap();
        let [path, other, link] = ["file", "other", "link"].map(|name| root.path().join(name));
        std::fs::write(&other, "new").unwrap();
        std::os::unix::fs::symlink("other", &link).unwrap();
        let all = RemoveOptions { recursive: true, force: false, symlinks: Symlinks::Follow };
        let never = CancelFlag::never();
        let remove = || fs::remove(&path, &all, &never);
        let copy = || fs::copy(&other, &path, false, &never);
        let copy_link = || fs::copy(&link, &path, false, &never);
        let rename = || fs::rename(&other, &path, fs::Replace::Yes, Symlinks::Follow);
        let changes: [&(dyn Fn() -> Result<(), FsError> + Sync); 4] =
            [&copy, &remove, &copy_link, &rename];
        for (index, change) in changes.into_iter().enumerate() {
            let parent = parent_of(&path);
            let subject = Subject::name(parent.directory.as_fd(), &parent.name, &path).unwrap();
            let before = rustix::fs::lstat(&path).map(|stat| stat.st_ino);
            let held = WriteLock::name(&parent, &path).unwrap();
            std::thread::scope(|threads| {
                let changed = threads.spawn(change);
                while lock(&TABLE)[&subject].users < 2 {
                    std::thread::yield_now();
                }
                let now = rustix::fs::lstat(&path).map(|stat| stat.st_ino);
                assert_eq!(now, before, "{index}");
                drop(held);
                changed.join().unwrap().unwrap();
            });
            let now = rustix::fs::lstat(&path).map(|stat| stat.st_ino);
            assert_ne!(now, before, "{index}");
        }
    }

    #[test]
    fn a_copy_waits_for_a_writer_of_another_name_of_the_file() {
        let root = tempfile::tempdir().unwrap();
        let [path, other, source] = ["file", "other", "source"].map(|name| root.path().join(name));
        std::fs::write(&path, "old").unwrap();
        std::fs::hard_link(&path, &other).unwrap();
        std::fs::write(&source, "new").unwrap();
        let old = rustix::fs::stat(&path).unwrap();
        let held = WriteLock::content(&old);
        std::thread::scope(|threads| {
            let copied = threads.spawn(|| fs::copy(&source, &other, false, &CancelFlag::never()));
            while lock(&TABLE)[&Subject::Content(Identity::from(&old))].users < 2 {
                std::thread::yield_now();
            }
            assert_eq!(std::fs::read(&path).unwrap(), b"old");
            drop(held);
            copied.join().unwrap().unwrap();
        });
        assert_eq!(std::fs::read(&path).unwrap(), b"new");
    }

    #[test]
    fn other_files_are_not_blocked() {
        let root = tempfile::tempdir().unwrap();
        let (slow, other) = (root.path().join("slow"), root.path().join("other"));
        let _held = WriteLock::name(&parent_of(&slow), &slow).unwrap();
        drop(WriteLock::name(&parent_of(&other), &other).unwrap());
    }

    #[test]
    fn opposite_renames_do_not_deadlock() {
        let root = tempfile::tempdir().unwrap();
        let (one, two) = (root.path().join("one"), root.path().join("two"));
        std::thread::scope(|threads| {
            for (from, to) in [(&one, &two), (&two, &one)] {
                threads.spawn(move || {
                    let (source, destination) = (parent_of(from), parent_of(to));
                    for _ in 0..2_000 {
                        let names = [(&source, from.as_path()), (&destination, to.as_path())];
                        assert_eq!(WriteLock::names(names).unwrap().len(), 2);
                    }
                });
            }
        });
        let same = parent_of(&one);
        assert_eq!(WriteLock::names([(&same, &one), (&same, &one)]).unwrap().len(), 1);
    }
}

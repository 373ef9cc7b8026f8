//! Promises about directories and trees, kept against the real file system.

#![expect(clippy::unwrap_used, reason = "a step that fails fails its test")]

#[path = "../support/as_nobody.rs"]
mod as_nobody;
mod copy;
mod copy_tree;
mod create_directory;
mod read_directory;
mod remove;
mod walk;

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, OFlags};
use rustix::thread::{Gid, Uid};

use crate::as_nobody::as_nobody;

/// A directory without symlinks in its path.
struct Scratch {
    path: PathBuf,
    _directory: tempfile::TempDir,
}

impl Scratch {
    fn new() -> Self {
        Self::of(tempfile::tempdir().unwrap())
    }

    /// For what would keep a disk busy.
    fn in_memory() -> Self {
        Self::of(tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap())
    }

    fn of(directory: tempfile::TempDir) -> Self {
        let path = directory.path().canonicalize().unwrap();
        Self { path, _directory: directory }
    }

    fn at(&self, name: impl AsRef<Path>) -> PathBuf {
        self.path.join(name)
    }

    fn directory(&self, name: impl AsRef<Path>) -> PathBuf {
        let path = self.at(name);
        std::fs::create_dir_all(&path).unwrap();
        path
    }

    fn file(&self, name: impl AsRef<Path>, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.at(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, content).unwrap();
        path
    }

    fn symlink(&self, target: impl AsRef<Path>, name: impl AsRef<Path>) -> PathBuf {
        let path = self.at(name);
        std::os::unix::fs::symlink(target, &path).unwrap();
        path
    }

    fn fifo(&self, name: impl AsRef<Path>) -> PathBuf {
        let path = self.at(name);
        rustix::fs::mknodat(CWD, &path, FileType::Fifo, Mode::RWXU, 0).unwrap();
        path
    }
}

fn exists(path: impl AsRef<Path>) -> bool {
    path.as_ref().symlink_metadata().is_ok()
}

fn mode(path: impl AsRef<Path>) -> u32 {
    rustix::fs::lstat(path.as_ref()).unwrap().st_mode & 0o7777
}

fn set_mode(path: impl AsRef<Path>, mode: u32) {
    rustix::fs::chmod(path.as_ref(), Mode::from_raw_mode(mode)).unwrap();
}

fn inode(path: impl AsRef<Path>) -> u64 {
    rustix::fs::lstat(path.as_ref()).unwrap().st_ino
}

/// A chain of directories that is longer than any path may be; returns the lowest.
fn chain(top: &Path, name: &str, depth: usize) -> OwnedFd {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut here = rustix::fs::open(top, flags, Mode::empty()).unwrap();
    for _ in 0..depth {
        rustix::fs::mkdirat(&here, name, Mode::RWXU).unwrap();
        here = rustix::fs::openat(&here, name, flags, Mode::empty()).unwrap();
    }
    here
}

fn file_in(directory: &OwnedFd, name: impl AsRef<OsStr>, content: &[u8]) {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let file = rustix::fs::openat(directory, name.as_ref(), flags, Mode::RWXU).unwrap();
    assert_eq!(rustix::io::write(&file, content), Ok(content.len()));
}

/// Lets `nobody` own a directory.
fn give_away(path: &Path) {
    if rustix::process::geteuid().is_root() {
        let (uid, gid) = (Uid::from_raw(65_534), Gid::from_raw(65_534));
        rustix::fs::chownat(CWD, path, Some(uid), Some(gid), rustix::fs::AtFlags::SYMLINK_NOFOLLOW)
            .unwrap();
    }
}

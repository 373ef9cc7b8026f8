//! Directories and trees on the real file system.

#![expect(clippy::unwrap_used, reason = "a failed step fails its test")]

mod copy;
mod copy_tree;
mod create_directory;
mod read_directory;
mod remove;
mod walk;

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::path::Path;

use exec_server_test_support::NOBODY;
use rustix::fs::{Mode, OFlags};

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

/// Creates `depth` directories of this name, each in the one before. Their path may be longer than
/// the kernel accepts. Returns the deepest.
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

fn give_away(path: &Path) {
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::lchown(path, Some(NOBODY), Some(NOBODY)).unwrap();
    }
}

//! Opening paths that must not lead through a symlink.

use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat2};
use rustix::io::Errno;

/// Opens a path that has no symlink in it.
pub(in crate::sandbox) fn open_real(path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
    loop {
        match openat2(CWD, path, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS) {
            // The kernel saw a rename at the same time and could not tell where it was.
            Err(Errno::AGAIN | Errno::INTR) => {}
            opened => return opened,
        }
    }
}

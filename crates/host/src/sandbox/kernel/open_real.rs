//! Opens paths that must not lead through a symlink.

use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat2};
use rustix::io::Errno;

pub(in crate::sandbox) fn open_real(path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
    loop {
        match openat2(CWD, path, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS) {
            // Interrupted by a signal or a concurrent rename.
            Err(Errno::AGAIN | Errno::INTR) => {}
            opened => return opened,
        }
    }
}

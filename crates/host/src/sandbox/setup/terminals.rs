//! Private terminals of a sandbox. The sandbox can reach no other terminals, and no process outside
//! can reach these.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{FileType, Mode, OFlags, fstat, openat};
use rustix::io::Errno;
use rustix::mount::MountAttrFlags;

use super::mount_call::{attach, clone_tree, new_mount};
use super::mounts::open_place;

/// A private terminal file system, mounted over the shared one.
#[derive(Debug)]
pub(crate) struct OwnTerminals {
    directory: OwnedFd,
    multiplexer: OwnedFd,
}

impl OwnTerminals {
    /// Returns `None` if this host does not allow the mount: then the program cannot create
    /// terminals. Terminals of others are out of reach in any case.
    pub(crate) fn mount() -> Option<Self> {
        Self::try_mount().ok()
    }

    /// Returns the two places that the program may open: a directory with everything in it, and a
    /// device.
    pub(crate) fn places(&self) -> [BorrowedFd<'_>; 2] {
        [self.directory.as_fd(), self.multiplexer.as_fd()]
    }

    fn try_mount() -> Result<Self, Errno> {
        let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NOEXEC;
        let options = [("ptmxmode", "0666"), ("mode", "0620")];
        let directory = new_mount("devpts", &options, attributes)?;
        attach(&directory, open_place(Path::new("/dev/pts"))?)?;
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let multiplexer = openat(&directory, c"ptmx", flags, Mode::empty())?;
        let usual_place = open_place(Path::new("/dev/ptmx"))?;
        // If it is not a device, it is a symlink to `/dev/pts/ptmx`, which is already private.
        let kind = FileType::from_raw_mode(fstat(&usual_place)?.st_mode);
        if kind == FileType::CharacterDevice {
            attach(clone_tree(&multiplexer)?, usual_place)?;
        }
        Ok(Self { directory, multiplexer })
    }
}

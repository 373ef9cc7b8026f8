//! Terminals that a sandbox has for itself: it cannot reach others, nor can others reach them.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{FileType, Mode, OFlags, fstat, openat};
use rustix::io::Errno;
use rustix::mount::MountAttrFlags;

use super::mount_call::{attach, clone_tree, new_mount};
use super::mounts::open_place;

/// A file system with terminals of its own, where that of everybody was.
#[derive(Debug)]
pub(crate) struct OwnTerminals {
    directory: OwnedFd,
    multiplexer: OwnedFd,
}

impl OwnTerminals {
    /// `None` if this host does not let us: then the program can make no terminals. Those of others it cannot have in any case.
    pub(crate) fn mount() -> Option<Self> {
        Self::try_mount().ok()
    }

    /// What the program may open, with all that is in it.
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
        // Otherwise it is a symlink to the former.
        let kind = FileType::from_raw_mode(fstat(&usual_place)?.st_mode);
        if kind == FileType::CharacterDevice {
            attach(clone_tree(&multiplexer)?, usual_place)?;
        }
        Ok(Self { directory, multiplexer })
    }
}

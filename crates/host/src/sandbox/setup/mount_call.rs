//! Mount system calls: those of `rustix`, and the one that it lacks.
//!
//! All functions take descriptors, so that no name is looked up twice.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::io::{Errno, Result};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, OpenTreeFlags, fsconfig_create,
    fsconfig_set_string, fsmount, fsopen, move_mount, open_tree,
};

/// Returns a detached copy of the mounts at and below `place`.
pub(in crate::sandbox) fn clone_tree(place: impl AsFd) -> Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_RECURSIVE
        | OpenTreeFlags::AT_EMPTY_PATH;
    open_tree(place, c"", flags)
}

/// Creates a new, detached file system.
pub(in crate::sandbox) fn new_mount(
    kind: &str,
    options: &[(&str, &str)],
    attributes: MountAttrFlags,
) -> Result<OwnedFd> {
    let context = fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)?;
    for (key, value) in options {
        fsconfig_set_string(context.as_fd(), *key, *value)?;
    }
    fsconfig_create(context.as_fd())?;
    fsmount(context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)
}

pub(in crate::sandbox) fn attach(mount: impl AsFd, place: impl AsFd) -> Result<()> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    move_mount(mount, c"", place, c"", flags)
}

/// Sets attributes on a mount and on all mounts below it.
pub(in crate::sandbox) fn set_attributes(
    mount: impl AsFd,
    attributes: MountAttrFlags,
) -> Result<()> {
    change(mount, attributes, 0)
}

/// Stops the propagation of mounts in both directions.
pub(in crate::sandbox) fn make_private(mount: impl AsFd, attributes: MountAttrFlags) -> Result<()> {
    change(mount, attributes, libc::MS_PRIVATE)
}

fn change(mount: impl AsFd, attributes: MountAttrFlags, propagation: libc::c_ulong) -> Result<()> {
    let change = libc::mount_attr {
        attr_set: attributes.bits().into(),
        attr_clr: 0,
        propagation,
        userns_fd: 0,
    };
    // SAFETY: the path is empty and NUL-terminated, and the structure has the given length.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_fd().as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH | libc::AT_RECURSIVE,
            &raw const change,
            size_of::<libc::mount_attr>(),
        )
    };
    if result == -1 {
        return Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL));
    }
    Ok(())
}

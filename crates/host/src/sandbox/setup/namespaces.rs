//! Entering new namespaces, with the same user and groups as before.
//!
//! Whoever may administer mounts needs no user namespace: root stays root over the same files, and what makes root dangerous is
//! dropped later, by `lockdown`. Anybody else becomes the owner of a new user namespace, in which only one user and one group exist.

use std::fs;
use std::io;

use rustix::io::Errno;
use rustix::process::{DumpableBehavior, getegid, geteuid, set_dumpable_behavior};
use rustix::thread::{CapabilitySet, UnshareFlags, capabilities, unshare_unsafe};

use super::network_namespace::NetworkNamespaceFds;
use crate::sandbox::report::step::{SandboxStep, StepFailure};

const OF_EACH: UnshareFlags =
    UnshareFlags::NEWNS.union(UnshareFlags::NEWPID).union(UnshareFlags::NEWIPC);

/// Moves the calling process into new mount and IPC namespaces, and its next children into a new PID namespace.
pub(crate) fn enter(new_network: bool) -> Result<(), StepFailure> {
    let network = if new_network { UnshareFlags::NEWNET } else { UnshareFlags::empty() };
    enter_owned(OF_EACH | network)
}

/// The same in a network namespace that exists already.
pub(crate) fn enter_with(network: &NetworkNamespaceFds) -> Result<(), StepFailure> {
    let failed = |errno| SandboxStep::Namespaces.failed(errno);
    network.join().map_err(failed)?;
    // SAFETY: the table of descriptors stays shared.
    unsafe { unshare_unsafe(OF_EACH) }.map_err(failed)
}

pub(in crate::sandbox) fn enter_new_network() -> Result<(), StepFailure> {
    enter_owned(UnshareFlags::NEWNET)
}

pub(in crate::sandbox) fn administers_mounts() -> Result<bool, Errno> {
    Ok(capabilities(None)?.effective.contains(CapabilitySet::SYS_ADMIN))
}

/// Together with a user namespace that owns the others, if one is needed.
fn enter_owned(namespaces: UnshareFlags) -> Result<(), StepFailure> {
    let failed = |errno| SandboxStep::Namespaces.failed(errno);
    if administers_mounts().map_err(failed)? {
        // SAFETY: the table of descriptors stays shared.
        return unsafe { unshare_unsafe(namespaces) }.map_err(failed);
    }
    // Nobody has a number in a new user namespace, so they are asked for before.
    let (user, group) = (geteuid().as_raw(), getegid().as_raw());
    // SAFETY: as above.
    unsafe { unshare_unsafe(namespaces | UnshareFlags::NEWUSER) }.map_err(failed)?;
    map_ids(user, group).map_err(|error| {
        SandboxStep::IdMaps.failed(Errno::from_io_error(&error).unwrap_or(Errno::IO))
    })
}

/// Names a user and a group in the new user namespace as they are outside.
fn map_ids(user: u32, group: u32) -> io::Result<()> {
    // The files in /proc of a process that cannot be dumped belong to root. Until it is undone, another process of this user could
    // trace us, but only one without a sandbox, which may do as much by itself.
    set_dumpable_behavior(DumpableBehavior::Dumpable)?;
    let mapped = write_maps(user, group);
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    mapped
}

fn write_maps(user: u32, group: u32) -> io::Result<()> {
    // Without this a group that denies access could be given up, so the kernel demands it.
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/uid_map", format!("{user} {user} 1"))?;
    fs::write("/proc/self/gid_map", format!("{group} {group} 1"))
}

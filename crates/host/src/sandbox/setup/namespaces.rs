//! Enters new namespaces, with the same user and groups as before.
//!
//! A process that may administer mounts needs no user namespace: root stays root over the same
//! files, and `lockdown` drops the dangerous capabilities later. Any other process becomes the
//! owner of a new user namespace, in which only one user and one group exist.

use std::fs;
use std::io;

use rustix::io::Errno;
use rustix::process::{DumpableBehavior, getegid, geteuid, set_dumpable_behavior};
use rustix::thread::{CapabilitySet, UnshareFlags, capabilities, unshare_unsafe};

use super::network_namespace::NetworkNamespaceFds;
use crate::sandbox::report::step::{SandboxStep, StepFailure};

const OF_EACH: UnshareFlags =
    UnshareFlags::NEWNS.union(UnshareFlags::NEWPID).union(UnshareFlags::NEWIPC);

/// Moves the calling process into new mount and IPC namespaces and, with `new_network`, into a new
/// network namespace. Moves its next children into a new PID namespace.
pub(crate) fn enter(new_network: bool) -> Result<(), StepFailure> {
    let network = if new_network { UnshareFlags::NEWNET } else { UnshareFlags::empty() };
    enter_owned(OF_EACH | network)
}

pub(crate) fn enter_with(network: &NetworkNamespaceFds) -> Result<(), StepFailure> {
    let failed = |errno| SandboxStep::Namespaces.failed(errno);
    network.join().map_err(failed)?;
    // SAFETY: the descriptor table stays shared.
    unsafe { unshare_unsafe(OF_EACH) }.map_err(failed)
}

pub(in crate::sandbox) fn enter_new_network() -> Result<(), StepFailure> {
    enter_owned(UnshareFlags::NEWNET)
}

pub(in crate::sandbox) fn administers_mounts() -> Result<bool, Errno> {
    Ok(capabilities(None)?.effective.contains(CapabilitySet::SYS_ADMIN))
}

/// Enters the namespaces, with a new user namespace that owns them if one is needed.
fn enter_owned(namespaces: UnshareFlags) -> Result<(), StepFailure> {
    let failed = |errno| SandboxStep::Namespaces.failed(errno);
    if administers_mounts().map_err(failed)? {
        // SAFETY: the descriptor table stays shared.
        return unsafe { unshare_unsafe(namespaces) }.map_err(failed);
    }
    // A new user namespace maps no ids, so the ids are read first.
    let (user, group) = (geteuid().as_raw(), getegid().as_raw());
    // SAFETY: as above.
    unsafe { unshare_unsafe(namespaces | UnshareFlags::NEWUSER) }.map_err(failed)?;
    map_ids(user, group).map_err(|error| {
        SandboxStep::IdMaps.failed(Errno::from_io_error(&error).unwrap_or(Errno::IO))
    })
}

/// Maps a user and a group in the new user namespace to the same ids outside.
fn map_ids(user: u32, group: u32) -> io::Result<()> {
    // The files in /proc of a process that is not dumpable belong to root. While this process is
    // dumpable, processes of this user that run outside every sandbox could trace it, but they
    // would gain nothing.
    set_dumpable_behavior(DumpableBehavior::Dumpable)?;
    let mapped = write_maps(user, group);
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    mapped
}

fn write_maps(user: u32, group: u32) -> io::Result<()> {
    // The kernel requires this: otherwise a process could drop a group that denies it access.
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/uid_map", format!("{user} {user} 1"))?;
    fs::write("/proc/self/gid_map", format!("{group} {group} 1"))
}

//! What a server does to its own process.

use std::io;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Keeps processes of the same user from reading our memory and environment (`/proc/PID/mem`,
/// `environ`, ptrace): the children we start are such processes.
#[cfg(target_os = "linux")]
pub fn protect_own_memory() -> io::Result<()> {
    use rustix::process::{DumpableBehavior, set_dumpable_behavior};
    Ok(set_dumpable_behavior(DumpableBehavior::NotDumpable)?)
}

#[cfg(not(target_os = "linux"))]
pub fn protect_own_memory() -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Allows as many descriptors as the system lets us have. Children keep the limit that was in force
/// when the launcher was made.
pub fn raise_descriptor_limit() -> io::Result<()> {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    Ok(setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })?)
}

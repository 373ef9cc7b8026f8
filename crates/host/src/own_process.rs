//! Settings of the server's own process.

use std::io;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Keeps other processes of the same user from reading this process's memory and environment
/// (`/proc/PID/mem`, `environ`, ptrace). The processes that the server starts run as the same user.
#[cfg(target_os = "linux")]
pub fn protect_own_memory() -> io::Result<()> {
    use rustix::process::{DumpableBehavior, set_dumpable_behavior};
    Ok(set_dumpable_behavior(DumpableBehavior::NotDumpable)?)
}

#[cfg(not(target_os = "linux"))]
pub fn protect_own_memory() -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Raises the soft descriptor limit to the hard limit. Programs started through a spawner get the
/// limit that was in force when their launcher was created.
pub fn raise_descriptor_limit() -> io::Result<()> {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    Ok(setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })?)
}

/// Ignores SIGXFSZ, so that a write beyond the file size limit fails instead of ending the process.
/// Programs started through a spawner get the signal as usual.
pub fn survive_file_size_limit() {
    // SAFETY: ignoring a signal installs no code.
    unsafe {
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
    }
}

/// Whether this process ignores SIGHUP, as under `nohup`. Call it before a handler is installed.
#[must_use]
pub fn hangup_is_ignored() -> bool {
    // SAFETY: all zeroes are a valid value of this plain structure.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: without a new action the call only stores the current one in `action`.
    let asked = unsafe { libc::sigaction(libc::SIGHUP, std::ptr::null(), &raw mut action) };
    asked == 0 && action.sa_sigaction == libc::SIG_IGN
}

/// Returns freed memory to the system. Otherwise glibc keeps it for later allocations.
pub fn return_freed_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: only touches memory owned by the allocator, under the allocator's locks.
    unsafe {
        libc::malloc_trim(0);
    }
}

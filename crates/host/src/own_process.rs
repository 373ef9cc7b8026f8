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

/// A file that grows beyond the limit of the system is an error for whoever writes it, and not the end of this process.
/// Children get the signal as usual.
pub fn survive_file_size_limit() {
    // SAFETY: ignoring a signal installs no code.
    unsafe {
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
    }
}

/// Whether this process ignores SIGHUP: `nohup` started it. Ask before a handler is installed.
#[must_use]
pub fn hangup_is_ignored() -> bool {
    // SAFETY: all zeroes are a valid value of this plain structure.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: without a new action it only writes the current one.
    let asked = unsafe { libc::sigaction(libc::SIGHUP, std::ptr::null(), &raw mut action) };
    asked == 0 && action.sa_sigaction == libc::SIG_IGN
}

/// Gives memory back to the system that was freed: glibc keeps what threads had in use, for threads to come.
pub fn return_freed_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it only touches what the allocator owns, under the allocator's locks.
    unsafe {
        libc::malloc_trim(0);
    }
}

//! Runs work as a user who is subject to permission checks.

use rustix::io::Errno;
use rustix::thread::{Gid, Uid};

use crate::skipped;

/// The user and group `nobody`, which own nothing.
pub const NOBODY: u32 = 65_534;

/// Runs the work on the calling thread or, if this process is root, on a thread that becomes
/// `nobody`: the kernel keeps credentials per thread. Skips the work if that thread may not change
/// its credentials.
pub fn as_nobody(work: impl FnOnce() + Send) {
    if !rustix::process::geteuid().is_root() {
        return work();
    }
    let thread = || match become_nobody() {
        Ok(()) => work(),
        Err(error) => skipped(format_args!("cannot become nobody: {error}")),
    };
    std::thread::scope(|scope| scope.spawn(thread).join())
        .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
}

/// Drops root privileges of the calling thread permanently.
///
/// # Errors
///
/// If the thread may not change its credentials.
pub fn become_nobody() -> Result<(), Errno> {
    let (gid, uid) = (Gid::from_raw(NOBODY), Uid::from_raw(NOBODY));
    rustix::thread::set_thread_groups(&[])?;
    rustix::thread::set_thread_res_gid(gid, gid, gid)?;
    rustix::thread::set_thread_res_uid(uid, uid, uid)
}

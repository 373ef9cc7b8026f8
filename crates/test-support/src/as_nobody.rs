//! Work as a user whom permissions bind.

use rustix::io::Errno;
use rustix::thread::{Gid, Uid};

use crate::skipped;

/// The user and the group that own nothing.
pub const NOBODY: u32 = 65_534;

/// Runs `work` as a user whom permissions bind, on a thread of its own. The kernel keeps credentials for each thread,
/// so a test that runs as root needs no other process. Skips the work if this process may not change them.
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

/// Gives up what root may do, for the calling thread and for good.
///
/// # Errors
///
/// If this thread may not.
pub fn become_nobody() -> Result<(), Errno> {
    let (gid, uid) = (Gid::from_raw(NOBODY), Uid::from_raw(NOBODY));
    rustix::thread::set_thread_groups(&[])?;
    rustix::thread::set_thread_res_gid(gid, gid, gid)?;
    rustix::thread::set_thread_res_uid(uid, uid, uid)
}

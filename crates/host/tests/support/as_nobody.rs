//! Work as somebody whom permissions bind.

use exec_server_test_support::skipped;
use rustix::thread::{Gid, Uid};

/// Runs as a user whom permissions bind. The kernel keeps credentials for each thread, so a test that runs as root needs no
/// other process. False if this one may not change them.
#[must_use]
pub(crate) fn as_nobody(work: impl FnOnce() + Send) -> bool {
    if !rustix::process::geteuid().is_root() {
        work();
        return true;
    }
    let ran = std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let (gid, uid) = (Gid::from_raw(65_534), Uid::from_raw(65_534));
            rustix::thread::set_thread_groups(&[]).is_ok()
                && rustix::thread::set_thread_res_gid(gid, gid, gid).is_ok()
                && rustix::thread::set_thread_res_uid(uid, uid, uid).is_ok()
                && {
                    work();
                    true
                }
        });
        thread.join()
    });
    let ran = ran.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    if !ran {
        skipped("no other user to be");
    }
    ran
}

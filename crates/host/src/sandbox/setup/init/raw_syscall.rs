//! The two system calls of init that `rustix` lacks.
//!
//! `libc::syscall` writes `errno` when a call fails. Neither of these can fail, so the `errno` of the keeper stays as it is.

use std::ptr;

/// 64 signals.
const KERNEL_SIGSET_LEN: usize = 8;

/// Closes the descriptors `first..=last`.
///
/// # Safety
/// Nothing may use a descriptor of that range afterwards.
pub(super) unsafe fn close_range(first: u32, last: u32) {
    if first <= last {
        // SAFETY: the caller answers for the descriptors. The call cannot fail: the range is valid.
        unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
    }
}

/// The kernel then collects dead children by itself.
pub(super) fn ignore_child_deaths() {
    // The kernel's `sigaction` begins with the handler; the rest may be zero.
    let ignored: [usize; 8] = [libc::SIG_IGN, 0, 0, 0, 0, 0, 0, 0];
    // SAFETY: the array is larger than the structure. Dispositions are this process's own, and the call cannot fail.
    unsafe {
        libc::syscall(
            libc::SYS_rt_sigaction,
            libc::SIGCHLD,
            ignored.as_ptr(),
            ptr::null_mut::<libc::c_void>(),
            KERNEL_SIGSET_LEN,
        )
    };
}

//! The two system calls of init that `rustix` lacks.
//!
//! `libc::syscall` writes `errno` when a call fails. Neither of these calls can fail, so the
//! `errno` of the keeper stays unchanged.

use std::ptr;

/// Bytes for 64 signals.
const KERNEL_SIGSET_LEN: usize = 8;

/// Closes the descriptors `first..=last`.
///
/// # Safety
/// Nothing may use a descriptor of that range afterwards.
pub(super) unsafe fn close_range(first: u32, last: u32) {
    if first <= last {
        // SAFETY: the caller guarantees that the descriptors are unused. The call cannot fail: the
        // range is valid.
        unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
    }
}

/// Ignores `SIGCHLD`, so that the kernel reaps dead children.
pub(super) fn ignore_child_deaths() {
    // The kernel's `sigaction` begins with the handler; the rest may be zero.
    let ignored: [usize; 8] = [libc::SIG_IGN, 0, 0, 0, 0, 0, 0, 0];
    // SAFETY: the array is larger than the structure. Signal dispositions are not shared with the
    // keeper, and the call cannot fail.
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

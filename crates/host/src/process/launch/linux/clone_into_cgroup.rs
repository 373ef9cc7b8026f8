//! `clone3` for a child that starts in a cgroup and shares the caller's memory.
//!
//! The C library has no wrapper for it, and a child with a separate stack could not return from a
//! wrapper. So the system call and the child's first steps are a few instructions of assembly.

use std::ffi::c_void;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

use rustix::io::Errno;

use crate::child_stack::ChildStack;

const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

/// Starts `run(argument)` in a new process. Returns `Ok(None)` if this kernel, its filters or this
/// processor do not support the call.
///
/// # Safety
/// As for `clone` with the same flags: they must include `CLONE_VM` and `CLONE_VFORK`, the stack
/// must be big enough for `run`, and `pidfd` receives one descriptor.
pub(super) unsafe fn clone_into_cgroup(
    run: extern "C" fn(*mut c_void) -> libc::c_int,
    argument: *mut c_void,
    stack: &ChildStack,
    flags: libc::c_int,
    cgroup: BorrowedFd<'_>,
    pidfd: &mut RawFd,
) -> Result<Option<i32>, Errno> {
    let (bottom, len) = stack.range();
    let is_sibling = flags & libc::CLONE_PARENT != 0;
    let arguments = libc::clone_args {
        flags: u64::from(flags.cast_unsigned()) | CLONE_INTO_CGROUP,
        pidfd: std::ptr::from_mut(pidfd).addr() as u64,
        child_tid: 0,
        parent_tid: 0,
        // A sibling inherits the caller's exit signal.
        exit_signal: if is_sibling { 0 } else { libc::SIGCHLD as u64 },
        stack: bottom.addr() as u64,
        stack_size: len as u64,
        tls: 0,
        set_tid: 0,
        set_tid_size: 0,
        cgroup: cgroup.as_raw_fd() as u64,
    };
    // SAFETY: the caller meets the requirements of `clone`.
    let result = unsafe { clone3(&arguments, run, argument) };
    match i32::try_from(result) {
        Ok(pid) if pid > 0 => Ok(Some(pid)),
        Ok(negative) => match Errno::from_raw_os_error(-negative) {
            Errno::NOSYS | Errno::TOOBIG | Errno::PERM | Errno::INVAL => Ok(None),
            errno => Err(errno),
        },
        Err(_) => Err(Errno::OVERFLOW),
    }
}

#[cfg(target_arch = "x86_64")]
unsafe fn clone3(
    arguments: &libc::clone_args,
    run: extern "C" fn(*mut c_void) -> libc::c_int,
    argument: *mut c_void,
) -> isize {
    let result: isize;
    // SAFETY: the parent jumps to label 2, so for it this is an ordinary system call. Only the
    // child runs the instructions before the label. It runs on its own stack, which begins at the
    // end of the given range, and never reaches the label.
    unsafe {
        std::arch::asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "xor ebp, ebp",
            "mov rdi, r13",
            "call r12",
            "mov edi, eax",
            "mov eax, {exit}",
            "syscall",
            "ud2",
            "2:",
            exit = const libc::SYS_exit_group,
            inlateout("rax") libc::SYS_clone3 as isize => result,
            in("rdi") std::ptr::from_ref(arguments),
            in("rsi") size_of::<libc::clone_args>(),
            in("r12") run,
            in("r13") argument,
            lateout("rcx") _,
            lateout("r11") _,
        );
    }
    result
}

#[cfg(target_arch = "aarch64")]
unsafe fn clone3(
    arguments: &libc::clone_args,
    run: extern "C" fn(*mut c_void) -> libc::c_int,
    argument: *mut c_void,
) -> isize {
    let result: isize;
    // SAFETY: as for x86_64.
    unsafe {
        std::arch::asm!(
            "svc #0",
            "cbnz x0, 2f",
            "mov x29, xzr",
            "mov x0, x21",
            "blr x20",
            "mov x8, {exit}",
            "svc #0",
            "brk #1",
            "2:",
            exit = const libc::SYS_exit_group,
            in("x8") libc::SYS_clone3,
            inlateout("x0") std::ptr::from_ref(arguments) as isize => result,
            in("x1") size_of::<libc::clone_args>(),
            in("x20") run,
            in("x21") argument,
        );
    }
    result
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
unsafe fn clone3(
    _arguments: &libc::clone_args,
    _run: extern "C" fn(*mut c_void) -> libc::c_int,
    _argument: *mut c_void,
) -> isize {
    -(libc::ENOSYS as isize)
}

//! The code that runs in the init process.
//!
//! It shares the keeper's memory and runs concurrently, so it must not touch anything that is
//! thread-local or guarded by a lock: `errno`, which a failing call of the C library would write,
//! and the allocator. This is enforced:
//!
//! * `no_implicit_prelude` takes the names of all crates, the standard prelude and its macros out
//!   of scope. `std::`, `libc::`, `Vec`, `Box`, `String` and `format!` do not compile here. The
//!   prelude is that of `core`.
//! * The only imports are `core`, `rustix` and `raw_syscall`. A test in the parent module rejects
//!   every other path.
//! * `rustix` makes system calls without the C library. Where it does not, an assertion below fails
//!   to compile.
//! * Descriptors are wrapped in `ManuallyDrop`: dropping an `OwnedFd` calls `close` of the C
//!   library.
//! * Lints reject arithmetic and indexing that could panic.
#![no_implicit_prelude]
#![deny(clippy::arithmetic_side_effects, clippy::indexing_slicing, clippy::expect_used)]
#![deny(clippy::panic, clippy::unreachable, clippy::unwrap_used)]

use ::core::ffi::{c_int, c_void};
use ::core::mem::ManuallyDrop;
use ::core::prelude::rust_2024::*;
use ::rustix::fd::{AsFd, BorrowedFd, RawFd};
use ::rustix::fs::{CWD, Mode, OFlags, openat};
use ::rustix::io::Errno;
use ::rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, fsconfig_create, fsmount, fsopen,
    move_mount,
};
use ::rustix::net::{RecvFlags, SendFlags, recv, send};
use ::rustix::process::{Signal, WaitOptions, set_parent_process_death_signal, wait};
use ::rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};

use super::raw_syscall::{close_range, ignore_child_deaths};

/// The `Errno` of `rustix` is as large as that of the C library only if `rustix` uses the C
/// library. With its feature `use-libc`, or on an architecture without native support, this code
/// would write the `errno` of the keeper.
const _: () = ::core::assert!(size_of::<Errno>() < size_of::<c_int>());

/// The one message that init receives.
pub(super) const PROGRAM_IS_GONE: [u8; 1] = *b"g";

pub(super) const REPORT_LEN: usize = 5;

/// The arguments of init.
#[derive(Clone, Copy)]
pub(super) struct Duty {
    /// The socket to the keeper.
    pub(super) line: RawFd,
    pub(super) fresh_proc: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Setup,
    Proc,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Failure {
    pub(super) step: Step,
    pub(super) errno: i32,
}

/// The entry point, for `clone`. `duty` points to a [`Duty`] that is never freed.
pub(super) extern "C" fn run(duty: *mut c_void) -> c_int {
    // SAFETY: the caller passes a `Duty` that lives forever.
    let duty = unsafe { *duty.cast::<Duty>() };
    // SAFETY: this process has a copy of the descriptor, and no code here closes it.
    let line = unsafe { BorrowedFd::borrow_raw(duty.line) };
    let ready = prepare(duty);
    let _ = send(line, &encode_report(ready), SendFlags::NOSIGNAL);
    if ready.is_err() {
        return 1;
    }
    let mut message = PROGRAM_IS_GONE;
    match recv(line, &mut message, RecvFlags::empty()) {
        Ok((1, _)) => {}
        // The keeper has closed its end, or is dead.
        Ok(_) | Err(_) => return 1,
    }
    // SIGCHLD is ignored, so the kernel reaps orphans. The call fails once there are no children.
    while wait(WaitOptions::empty()).is_ok() {}
    0
}

fn prepare(duty: Duty) -> Result<(), Failure> {
    let failed = |errno: Errno| Failure { step: Step::Setup, errno: errno.raw_os_error() };
    // The keeper may die while init does not read the line. Init is its child and never calls exec,
    // so the death signal suffices.
    set_parent_process_death_signal(Some(Signal::KILL)).map_err(failed)?;
    close_all_but(duty.line);
    ignore_child_deaths();
    if duty.fresh_proc {
        mount_proc().map_err(|errno| Failure { step: Step::Proc, errno: errno.raw_os_error() })?;
        close_all_but(duty.line);
    }
    let none = CapabilitySet::empty();
    let nothing = CapabilitySets { effective: none, permitted: none, inheritable: none };
    set_capabilities(None, nothing).map_err(failed)
}

/// Mounts `/proc`, which shows the namespace of the process that mounts it. It is read-only:
/// writable files in it change settings of the kernel. The descriptors stay open.
fn mount_proc() -> Result<(), Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let target = ManuallyDrop::new(openat(CWD, c"/proc", flags, Mode::empty())?);
    let attributes = MountAttrFlags::MOUNT_ATTR_RDONLY
        | MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    let context = ManuallyDrop::new(fsopen(c"proc", FsOpenFlags::FSOPEN_CLOEXEC)?);
    fsconfig_create(context.as_fd())?;
    let mount =
        ManuallyDrop::new(fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes)?);
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    move_mount(mount.as_fd(), c"", target.as_fd(), c"", flags)
}

/// Closes all descriptors above 2 except the line, such as the keeper's socket and the program's
/// input and output.
fn close_all_but(line: RawFd) {
    let line = line.cast_unsigned();
    // SAFETY: this process uses no descriptor except the line.
    unsafe {
        close_range(3, line.saturating_sub(1));
        close_range(line.saturating_add(1), u32::MAX);
    }
}

/// Encodes the step in one byte, which is 0 for success, followed by the errno.
fn encode_report(outcome: Result<(), Failure>) -> [u8; REPORT_LEN] {
    let (step, errno) = match outcome {
        Ok(()) => (0, 0),
        Err(Failure { step: Step::Setup, errno }) => (1, errno),
        Err(Failure { step: Step::Proc, errno }) => (2, errno),
    };
    let [a, b, c, d] = errno.to_ne_bytes();
    [step, a, b, c, d]
}

pub(super) fn decode_report([step, errno @ ..]: [u8; REPORT_LEN]) -> Result<(), Failure> {
    let errno = i32::from_ne_bytes(errno);
    match step {
        0 => Ok(()),
        2 => Err(Failure { step: Step::Proc, errno }),
        _ => Err(Failure { step: Step::Setup, errno }),
    }
}

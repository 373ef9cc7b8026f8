//! The first process of a PID namespace: adopts orphans and does nothing else.
//!
//! When it dies the kernel kills everything in the namespace. So a tree ends by its end, and it ends itself when the keeper does.
//!
//! It shares the keeper's memory and runs beside it, on a stack of its own, so that no memory has to be copied for it. In return it must
//! not touch what belongs to a thread, `errno` above all, which a failing call of the C library would write. So it uses the calls
//! of `rustix`, which go to the kernel without the C library, and otherwise calls that cannot fail. The memory is not dumpable, so nobody in the namespace can
//! look into it or steer it.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::ptr;

use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::MountAttrFlags;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair,
};
use rustix::process::{Pid, Signal, WaitOptions};
use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};

use super::mount_call::{attach, new_mount};
use super::step::{FAILURE_LEN, SandboxStep, StepFailure, from_bytes, to_bytes};

/// Only where `rustix` goes through the C library is its `Errno` as big as that one's. With its feature `use-libc`, or on an architecture
/// that it makes no calls of its own for, what runs here would write the `errno` of the keeper.
const _: () = assert!(size_of::<Errno>() < size_of::<libc::c_int>());

/// Enough for a handful of system calls in a debug build.
const STACK_LEN: usize = 64 << 10;

/// What it is told. Before that it has said whether it came up.
const PROGRAM_IS_GONE: [u8; 1] = *b"g";

/// 64 signals.
const KERNEL_SIGSET_LEN: usize = 8;

/// A running init, the sibling of whoever started it. It dies when this is dropped.
#[derive(Debug)]
pub(crate) struct Init {
    pid: Pid,
    line: OwnedFd,
}

impl Init {
    /// Starts it in the caller's namespaces, as a further child of the caller's parent.
    pub(crate) fn start(fresh_proc: bool) -> Result<Self, StepFailure> {
        let failed = |errno| SandboxStep::Init.failed(errno);
        let (line, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .map_err(failed)?;
        let duty = Duty { line: theirs.as_raw_fd(), fresh_proc };
        let pid = run_beside(duty).map_err(failed)?;
        drop(theirs);
        let init = Self { pid, line };
        init.hear_report()?;
        Ok(init)
    }

    pub(crate) fn pid(&self) -> Pid {
        self.pid
    }

    /// From now on it ends as soon as nothing is left to look after.
    pub(crate) fn program_is_gone(&self) {
        let _ = send(&self.line, &PROGRAM_IS_GONE, SendFlags::NOSIGNAL);
    }

    fn hear_report(&self) -> Result<(), StepFailure> {
        let mut report = [0; FAILURE_LEN];
        let received = recv(&self.line, &mut report, RecvFlags::empty());
        match received {
            Ok((FAILURE_LEN, FAILURE_LEN)) => decode_report(&report),
            Ok(_) => Err(SandboxStep::Init.failed(Errno::CHILD)),
            Err(errno) => Err(SandboxStep::Init.failed(errno)),
        }
    }
}

#[derive(Clone, Copy)]
struct Duty {
    line: RawFd,
    fresh_proc: bool,
}

fn run_beside(duty: Duty) -> Result<Pid, Errno> {
    // Invariant: neither is ever freed. The process uses them as long as it lives, which may be longer than the keeper does.
    let duty: &'static mut Duty = Box::leak(Box::new(duty));
    let stack: &'static mut [MaybeUninit<u8>] = Box::leak(Box::new_uninit_slice(STACK_LEN));
    // SAFETY: the stack is big enough, aligned by `clone` itself (it rounds down), and used by nobody else, as is `duty`; both
    // live for ever.
    let pid = unsafe {
        libc::clone(
            run,
            stack.as_mut_ptr().add(STACK_LEN).cast(),
            libc::CLONE_VM | libc::CLONE_PARENT | libc::SIGCHLD,
            ptr::from_mut(duty).cast(),
        )
    };
    Pid::from_raw(pid).filter(|_| pid > 0).ok_or_else(|| {
        Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::AGAIN)
    })
}

extern "C" fn run(duty: *mut libc::c_void) -> libc::c_int {
    // SAFETY: `run_beside` passes a `Duty` that lives for ever.
    let duty = unsafe { *duty.cast::<Duty>() };
    // SAFETY: this process has a copy of the descriptor, and nothing here closes it.
    let line = unsafe { BorrowedFd::borrow_raw(duty.line) };
    let ready = prepare(duty);
    let _ = send(line, &encode_report(ready), SendFlags::NOSIGNAL);
    if ready.is_err() {
        return 1;
    }
    let mut message = PROGRAM_IS_GONE;
    match recv(line, &mut message, RecvFlags::empty()) {
        Ok((1, _)) => {}
        // The keeper is gone.
        Ok(_) | Err(_) => return 1,
    }
    // Orphans vanish by themselves, since SIGCHLD is ignored; this returns when there are none.
    while rustix::process::wait(WaitOptions::empty()).is_ok() {}
    0
}

fn prepare(duty: Duty) -> Result<(), StepFailure> {
    let failed = |errno| SandboxStep::Init.failed(errno);
    // The keeper may die while nobody listens to the line. Init is its child and never executes anything, so this suffices.
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).map_err(failed)?;
    close_all_but(duty.line);
    ignore_child_deaths();
    if duty.fresh_proc {
        mount_proc().map_err(|errno| SandboxStep::Proc.failed(errno))?;
    }
    let none = CapabilitySet::empty();
    let nothing = CapabilitySets { effective: none, permitted: none, inheritable: none };
    set_capabilities(None, nothing).map_err(failed)
}

/// Who mounts it decides whose processes it shows. Read-only: what can be written there is the kernel's and not a file.
fn mount_proc() -> Result<(), Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let place = rustix::fs::openat(CWD, c"/proc", flags, Mode::empty())?;
    let attributes = MountAttrFlags::MOUNT_ATTR_RDONLY
        | MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    attach(new_mount("proc", &[], attributes)?.as_fd(), place)
}

/// The keeper's socket and the program's input and output must not stay open here.
fn close_all_but(line: RawFd) {
    let line = line.cast_unsigned();
    for (first, last) in [(3, line.saturating_sub(1)), (line + 1, libc::c_uint::MAX)] {
        if first <= last {
            // SAFETY: nothing in this process uses a descriptor of that range, and the call cannot fail: the range is valid.
            unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
        }
    }
}

/// The kernel then collects the dead by itself.
fn ignore_child_deaths() {
    // The kernel's `sigaction` begins with the handler; the rest may be zero.
    let mut ignored = [0_usize; 8];
    ignored[0] = libc::SIG_IGN;
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

/// No step has the number 0.
fn encode_report(outcome: Result<(), StepFailure>) -> [u8; FAILURE_LEN] {
    match outcome {
        Ok(()) => to_bytes([0, 0], 0),
        Err(StepFailure { step, errno }) => to_bytes(step.encode(), errno),
    }
}

fn decode_report(report: &[u8; FAILURE_LEN]) -> Result<(), StepFailure> {
    match from_bytes(report) {
        ([0, 0], _) => Ok(()),
        (step, errno) => {
            let step = SandboxStep::decode(step).unwrap_or(SandboxStep::Init);
            Err(StepFailure { step, errno })
        }
    }
}

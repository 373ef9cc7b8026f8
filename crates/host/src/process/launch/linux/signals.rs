//! The signal setup shared by the spawner and the keepers: all signals are blocked, none is handled
//! or ignored, and the deaths of children are read from a descriptor.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};

/// Enough for 64 signals.
const KERNEL_SIGSET_LEN: usize = 8;

/// Becomes readable when a child dies. A copy inherited across `fork` reports the reader's own
/// children (signalfd looks at the process that polls or reads it).
#[derive(Debug)]
pub(super) struct ChildDeaths {
    fd: OwnedFd,
}

impl ChildDeaths {
    pub(super) fn watch() -> io::Result<Self> {
        let mut set = empty_set();
        // SAFETY: `set` is an initialised signal set, and the call creates a new descriptor.
        let fd = unsafe {
            libc::sigaddset(&raw mut set, libc::SIGCHLD);
            libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK)
        };
        if fd == -1 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor was just created and has no other owner.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Self { fd })
    }

    /// Discards the notifications so far. Call it before `wait4`, so that a later death is reported
    /// again.
    pub(super) fn clear(&self) {
        let mut record = [0; size_of::<libc::signalfd_siginfo>()];
        let _ = rustix::io::read(&self.fd, &mut record);
    }
}

impl AsFd for ChildDeaths {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Blocks every signal. Only KILL and STOP reach the spawner and the keepers, which must outlive
/// the processes they look after. For example, a service manager's TERM to the whole cgroup must
/// not end them before the server.
pub(super) fn block_all() {
    let mut set = MaybeUninit::uninit();
    // SAFETY: `sigfillset` initialises the set; neither call can fail with these arguments.
    unsafe {
        libc::sigfillset(set.as_mut_ptr());
        libc::sigprocmask(libc::SIG_SETMASK, set.as_ptr(), std::ptr::null_mut());
    }
}

/// Restores the default dispositions, which children inherit: Rust's runtime ignores SIGPIPE,
/// `nohup` SIGHUP.
pub(super) fn reset_dispositions() {
    for number in 1..=libc::SIGRTMAX() {
        set_disposition(number, libc::SIG_DFL);
    }
}

/// Ignores every signal but CHLD, for a program that must outlive its child even if both are
/// signalled.
pub(super) fn ignore_all() {
    for number in (1..=libc::SIGRTMAX()).filter(|number| *number != libc::SIGCHLD) {
        set_disposition(number, libc::SIG_IGN);
    }
}

fn set_disposition(number: libc::c_int, handler: libc::sighandler_t) {
    // The kernel's `sigaction` begins with the handler on every supported architecture; the rest
    // may be zero.
    let mut action = [0_usize; 8];
    action[0] = handler;
    // SAFETY: `action` is larger than the structure, and this process has no signal handlers in
    // use. The system call is made directly because the C library would refuse to change the two
    // signals that it reserves for itself. KILL and STOP fail without effect.
    unsafe {
        libc::syscall(
            libc::SYS_rt_sigaction,
            number,
            action.as_ptr(),
            std::ptr::null_mut::<libc::c_void>(),
            KERNEL_SIGSET_LEN,
        )
    };
}

pub(super) fn empty_set() -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: `sigemptyset` initialises the set and cannot fail.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        set.assume_init()
    }
}

//! The init process of a PID namespace: it only adopts orphans.
//!
//! When init dies, the kernel kills everything in the namespace. So ending init ends the tree, and
//! init dies with the keeper.
//!
//! It shares the keeper's memory and runs concurrently on its own stack, so that no memory is
//! copied for it. The memory is not dumpable, so no process in the namespace can read it or control
//! init. [`process`] is the code that runs there, and documents its restrictions and how they are
//! enforced; this module runs in the keeper.

mod process;
mod raw_syscall;

use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr;

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair,
};
use rustix::process::Pid;

use self::process::{Duty, Failure, PROGRAM_IS_GONE, REPORT_LEN, Step, decode_report};
use crate::child_stack::ChildStack;
use crate::sandbox::report::step::{SandboxStep, StepFailure};

/// Enough for a handful of system calls in a debug build.
const STACK_LEN: usize = 64 << 10;

/// A running init, a sibling of the process that started it. Dropping this ends it.
#[derive(Debug)]
pub(crate) struct Init {
    pid: Pid,
    line: OwnedFd,
}

impl Init {
    /// Starts init as the first process of the caller's new PID namespace.
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

    /// Tells init that the program has exited. Init then exits once it has no children left.
    pub(crate) fn program_is_gone(&self) {
        let _ = send(&self.line, &PROGRAM_IS_GONE, SendFlags::NOSIGNAL);
    }

    fn hear_report(&self) -> Result<(), StepFailure> {
        let mut report = [0; REPORT_LEN];
        match recv(&self.line, &mut report, RecvFlags::empty()) {
            Ok((REPORT_LEN, REPORT_LEN)) => decode_report(report).map_err(StepFailure::from),
            Ok(_) => Err(SandboxStep::Init.failed(Errno::CHILD)),
            Err(errno) => Err(SandboxStep::Init.failed(errno)),
        }
    }
}

impl From<Failure> for StepFailure {
    fn from(Failure { step, errno }: Failure) -> Self {
        let step = match step {
            Step::Setup => SandboxStep::Init,
            Step::Proc => SandboxStep::Proc,
        };
        Self { step, errno }
    }
}

fn run_beside(duty: Duty) -> Result<Pid, Errno> {
    let stack = ChildStack::new(STACK_LEN)?;
    // Invariant: neither this nor the stack of a running init is ever freed. Init uses them for its
    // whole life, which may be longer than the keeper's.
    let duty: &'static mut Duty = Box::leak(Box::new(duty));
    // SAFETY: the stack is large enough. Stack and `duty` are used by nothing else and live
    // forever.
    let pid = unsafe {
        libc::clone(
            process::run,
            stack.top(),
            libc::CLONE_VM | libc::CLONE_PARENT | libc::SIGCHLD,
            ptr::from_mut(duty).cast(),
        )
    };
    let Some(pid) = Pid::from_raw(pid).filter(|_| pid > 0) else {
        return Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::AGAIN));
    };
    stack.leak();
    Ok(pid)
}

#[cfg(test)]
mod tests {
    /// `no_implicit_prelude` still allows paths that name a crate with a leading `::` or that start
    /// in this crate.
    #[test]
    fn init_imports_only_core_rustix_and_its_own_system_calls() {
        const ALLOWED: [&str; 3] = ["::core::", "::rustix::", "super::raw_syscall::"];
        let source = include_str!("process.rs");
        let code: Vec<&str> =
            source.lines().map(str::trim).filter(|line| !line.starts_with("//")).collect();
        assert!(code.contains(&"#![no_implicit_prelude]"));
        for line in code {
            if let Some(import) = line.strip_prefix("use ") {
                assert!(ALLOWED.iter().any(|allowed| import.starts_with(allowed)), "{line}");
            } else {
                for path in
                    ["::std::", "::alloc::", "::libc::", "crate::", "super::", "extern crate"]
                {
                    let line = line.replace("pub(in crate::sandbox)", "");
                    assert!(!line.contains(path), "{line}");
                }
            }
        }
    }
}

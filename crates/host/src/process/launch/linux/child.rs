//! The few steps between the keeper's fork and the program's exec.
//!
//! The child borrows the keeper's memory until it execs (`CLONE_VM | CLONE_VFORK`): nothing is
//! copied, and a failure is simply written where the keeper finds it. In return the child allocates
//! nothing, takes no lock and cannot be interrupted: all signals are blocked until the last step.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;

use rustix::process::{Pid, WaitOptions};

use super::signals;
use super::wire::{Request, Stage};

/// Enough for a handful of system calls in a debug build.
const STACK_LEN: usize = 64 << 10;
const PATH_MAX: usize = libc::PATH_MAX as usize;

/// A start that failed, and how far it had come.
#[derive(Clone, Copy, Debug)]
pub(super) struct Failure {
    pub(super) stage: Stage,
    pub(super) errno: i32,
}

/// Starts the program with `stdio` as its 0, 1 and 2 and as the leader of its own session.
pub(super) fn start(
    request: &Request<'_>,
    stdio: &[OwnedFd; 3],
) -> Result<(Pid, OwnedFd), Failure> {
    let strings = &request.strings;
    let argv = pointers(&strings.argv);
    let env = pointers(&strings.env);
    let mut plan = Plan {
        program: strings.program,
        search_path: strings.search_path.map(|path| path.strip_suffix(b"\0").unwrap_or(path)),
        cwd: strings.cwd,
        argv: &argv,
        env: &env,
        stdio: [stdio[0].as_raw_fd(), stdio[1].as_raw_fd(), stdio[2].as_raw_fd()],
        terminal: request.terminal,
        signal_mask: signals::empty_set(),
        candidate: [0; PATH_MAX],
        failure: None,
    };
    let mut stack: Vec<MaybeUninit<u8>> = Vec::with_capacity(STACK_LEN);
    let mut pidfd: RawFd = -1;
    // SAFETY: the stack is big enough, aligned by `clone` itself (it rounds down), and outlives the
    // child's use of it, as do `plan` and everything it points to: with CLONE_VFORK this call returns
    // only once the child has exec'd or is gone. CLONE_PIDFD stores one descriptor.
    let pid = unsafe {
        libc::clone(
            run,
            stack.as_mut_ptr().add(STACK_LEN).cast(),
            libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_PIDFD | libc::SIGCHLD,
            (&raw mut plan).cast(),
            &raw mut pidfd,
        )
    };
    let Some(pid) = (pid > 0).then(|| Pid::from_raw(pid)).flatten() else {
        return Err(Failure { stage: Stage::Fork, errno: last_errno() });
    };
    // SAFETY: `clone` succeeded, so it stored a new descriptor that is ours alone.
    let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
    let Some(failure) = plan.failure else {
        return Ok((pid, pidfd));
    };
    let _ = rustix::process::waitpid(Some(pid), WaitOptions::empty());
    Err(failure)
}

struct Plan<'a> {
    program: &'a [u8],
    search_path: Option<&'a [u8]>,
    cwd: &'a [u8],
    argv: &'a [*const libc::c_char],
    env: &'a [*const libc::c_char],
    stdio: [RawFd; 3],
    terminal: bool,
    signal_mask: libc::sigset_t,
    candidate: [u8; PATH_MAX],
    failure: Option<Failure>,
}

/// Invariant: every string ends with its NUL.
fn pointers(strings: &[&[u8]]) -> Vec<*const libc::c_char> {
    strings.iter().map(|string| string.as_ptr().cast()).chain([ptr::null()]).collect()
}

extern "C" fn run(plan: *mut libc::c_void) -> libc::c_int {
    // SAFETY: `start` passes its plan and is suspended while this runs.
    let plan = unsafe { &mut *plan.cast::<Plan<'_>>() };
    // SAFETY: this is the child of `start`.
    plan.failure = Some(unsafe { become_program(plan) });
    127
}

/// Returns only when it failed.
///
/// # Safety
/// Only for the fresh child: it replaces descriptors, session and directory of the process.
unsafe fn become_program(plan: &mut Plan<'_>) -> Failure {
    let failed = |stage| Failure { stage, errno: last_errno() };
    // SAFETY: plain system calls on numbers and NUL-terminated strings that outlive them. The
    // keeper's own 0, 1 and 2 are open, so `stdio` are all above 2 and no `dup2` hits another.
    unsafe {
        if libc::setsid() == -1 {
            return failed(Stage::Setup);
        }
        for (number, fd) in (0..).zip(plan.stdio) {
            if libc::dup2(fd, number) == -1 {
                return failed(Stage::Setup);
            }
        }
        if plan.terminal && libc::ioctl(0, libc::TIOCSCTTY, 0) == -1 {
            return failed(Stage::Setup);
        }
        if libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, 0) == -1 {
            return failed(Stage::Setup);
        }
        if libc::chdir(plan.cwd.as_ptr().cast()) == -1 {
            return failed(Stage::WorkingDirectory);
        }
        libc::sigprocmask(libc::SIG_SETMASK, &raw const plan.signal_mask, ptr::null_mut());
    }
    Failure { stage: Stage::Exec, errno: execute(plan) }
}

/// Tries what `execvp` would, in its order, and returns the error it would report.
fn execute(plan: &mut Plan<'_>) -> i32 {
    let Some(search_path) = plan.search_path else {
        return execve(plan.program, plan.argv, plan.env);
    };
    let mut denied = false;
    for directory in search_path.split(|byte| *byte == b':') {
        let Some(candidate) = join(&mut plan.candidate, directory, plan.program) else {
            continue;
        };
        match execve(candidate, plan.argv, plan.env) {
            libc::EACCES => denied = true,
            libc::ENOENT | libc::ENOTDIR | libc::ENAMETOOLONG => {}
            libc::ENODEV | libc::ESTALE | libc::ETIMEDOUT => {}
            errno => return errno,
        }
    }
    if denied { libc::EACCES } else { libc::ENOENT }
}

/// `directory/program` in `buffer`, if it fits; an empty directory is the current one.
fn join<'a>(buffer: &'a mut [u8], directory: &[u8], program: &[u8]) -> Option<&'a [u8]> {
    let separator: &[u8] = if directory.is_empty() { b"" } else { b"/" };
    let mut len = 0;
    for part in [directory, separator, program] {
        buffer.get_mut(len..len + part.len())?.copy_from_slice(part);
        len += part.len();
    }
    buffer.get(..len)
}

fn execve(path: &[u8], argv: &[*const libc::c_char], env: &[*const libc::c_char]) -> i32 {
    // SAFETY: the path ends with its NUL, the arrays with a null pointer, and their strings live in
    // the request.
    unsafe { libc::execve(path.as_ptr().cast(), argv.as_ptr(), env.as_ptr()) };
    last_errno()
}

fn last_errno() -> i32 {
    io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn candidates_are_joined_as_execvp_does() {
        let mut buffer = [0; 16];
        assert_eq!(join(&mut buffer, b"/bin", b"ls\0"), Some(&b"/bin/ls\0"[..]));
        assert_eq!(join(&mut buffer, b"", b"ls\0"), Some(&b"ls\0"[..]));
        assert_eq!(join(&mut buffer, b"/a/long/directory", b"ls\0"), None);
    }
}

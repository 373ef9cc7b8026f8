//! The steps between the keeper's fork and the program's exec.
//!
//! The child shares the keeper's memory until it execs (`CLONE_VM | CLONE_VFORK`): nothing is
//! copied, and a failure is simply written where the keeper finds it. In return the child allocates
//! nothing, takes no lock and cannot be interrupted: all signals are blocked until just before the
//! exec.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;

use rustix::process::{Pid, WaitOptions};

use super::clone_into_cgroup::clone_into_cgroup;
use super::signals;
use super::wire::{Request, Stage, Strings};
use crate::child_stack::ChildStack;
use crate::process::limits::{Limits, oom_score, rlimits};
use crate::sandbox::report::step::StepFailure;
use crate::sandbox::setup::lockdown::Lockdown;

/// Enough for a handful of system calls in a debug build.
const STACK_LEN: usize = 64 << 10;
const PATH_MAX: usize = libc::PATH_MAX as usize;

#[derive(Clone, Copy, Debug)]
pub(super) struct Failure {
    pub(super) stage: Stage,
    pub(super) errno: i32,
}

impl From<StepFailure> for Failure {
    fn from(StepFailure { step, errno }: StepFailure) -> Self {
        Self { stage: Stage::Sandbox(step), errno }
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Parent {
    Caller,
    /// The caller is about to end; its own parent becomes the parent.
    ParentOfCaller,
}

#[derive(Debug)]
pub(super) struct Start<'a> {
    pub(super) strings: &'a Strings<'a>,
    pub(super) terminal: bool,
    pub(super) stdio: &'a [OwnedFd; 3],
    /// The program's descriptors from 3 on. Invariant: in this process, all their numbers are
    /// higher than those that they get in the program.
    pub(super) inherited: &'a [OwnedFd],
    pub(super) lockdown: Option<&'a Lockdown>,
    pub(super) ignores_signals: bool,
    pub(super) parent: Parent,
    /// The limits that the kernel enforces for each process.
    pub(super) limits: Option<&'a Limits>,
    /// The cgroup to start in. `None`: the caller's.
    pub(super) cgroup: Option<BorrowedFd<'a>>,
}

/// Starts the program as the leader of its own session.
pub(super) fn start(what: &Start<'_>) -> Result<(Pid, OwnedFd), Failure> {
    let argv = pointers(&what.strings.argv);
    let env = pointers(&what.strings.env);
    let descriptors: Vec<RawFd> =
        what.stdio.iter().chain(what.inherited).map(AsRawFd::as_raw_fd).collect();
    let mut steps = Steps {
        session: Session::New { terminal: what.terminal },
        descriptors: &descriptors,
        ignores_signals: what.ignores_signals,
        limits: what.limits,
        ..Steps::new(what.strings, &argv, &env, what.lockdown)
    };
    let stack = ChildStack::new(STACK_LEN)
        .map_err(|errno| Failure { stage: Stage::Fork, errno: errno.raw_os_error() })?;
    let mut pidfd: RawFd = -1;
    let sibling = match what.parent {
        Parent::Caller => 0,
        Parent::ParentOfCaller => libc::CLONE_PARENT,
    };
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_PIDFD | sibling;
    let argument = (&raw mut steps).cast();
    let born_inside = match what.cgroup {
        Some(cgroup) => {
            // SAFETY: as below.
            let born =
                unsafe { clone_into_cgroup(run, argument, &stack, flags, cgroup, &mut pidfd) };
            born.map_err(|errno| Failure { stage: Stage::Limits, errno: errno.raw_os_error() })?
        }
        None => None,
    };
    let pid = born_inside.unwrap_or_else(|| {
        steps.cgroup = what.cgroup.map(|cgroup| cgroup.as_raw_fd());
        // SAFETY: the stack is big enough. It outlives the child's use of it, as do `steps` and
        // everything it points to: with CLONE_VFORK this call returns only once the child has
        // exec'd or ended. CLONE_PIDFD stores one descriptor.
        unsafe {
            let argument = (&raw mut steps).cast();
            libc::clone(run, stack.top(), flags | libc::SIGCHLD, argument, &raw mut pidfd)
        }
    });
    let Some(pid) = (pid > 0).then(|| Pid::from_raw(pid)).flatten() else {
        return Err(Failure { stage: Stage::Fork, errno: last_errno() });
    };
    // SAFETY: `clone` succeeded, so it stored a new descriptor that has no other owner.
    let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
    let Some(failure) = steps.failure else {
        return Ok((pid, pidfd));
    };
    if matches!(what.parent, Parent::Caller) {
        let _ = rustix::process::waitpid(Some(pid), WaitOptions::empty());
    }
    Err(failure)
}

/// Runs the program in the calling process, which already has its session and descriptors. Returns
/// only on failure.
pub(super) fn become_program_here(request: &Request<'_>, lockdown: &Lockdown) -> Failure {
    let argv = pointers(&request.strings.argv);
    let env = pointers(&request.strings.env);
    let mut steps = Steps {
        limits: request.limits.as_ref(),
        ..Steps::new(&request.strings, &argv, &env, Some(lockdown))
    };
    // SAFETY: the caller gives up this process to the program.
    unsafe { become_program(&mut steps) }
}

struct Steps<'a> {
    program: &'a [u8],
    search_path: Option<&'a [u8]>,
    cwd: &'a [u8],
    argv: &'a [*const libc::c_char],
    env: &'a [*const libc::c_char],
    session: Session,
    /// The descriptors that become 0, 1, 2 and so on. The exec closes all others.
    descriptors: &'a [RawFd],
    lockdown: Option<&'a Lockdown>,
    ignores_signals: bool,
    limits: Option<&'a Limits>,
    /// The cgroup to enter, if the child did not start in it.
    cgroup: Option<RawFd>,
    signal_mask: libc::sigset_t,
    candidate: [u8; PATH_MAX],
    failure: Option<Failure>,
}

#[derive(Clone, Copy)]
enum Session {
    New { terminal: bool },
    Same,
}

impl<'a> Steps<'a> {
    fn new(
        strings: &Strings<'a>,
        argv: &'a [*const libc::c_char],
        env: &'a [*const libc::c_char],
        lockdown: Option<&'a Lockdown>,
    ) -> Self {
        Self {
            program: strings.program,
            search_path: strings.search_path.map(|path| path.strip_suffix(b"\0").unwrap_or(path)),
            cwd: strings.cwd,
            argv,
            env,
            session: Session::Same,
            descriptors: &[0, 1, 2],
            lockdown,
            ignores_signals: false,
            limits: None,
            cgroup: None,
            signal_mask: signals::empty_set(),
            candidate: [0; PATH_MAX],
            failure: None,
        }
    }
}

/// Invariant: every string ends with its NUL.
fn pointers(strings: &[&[u8]]) -> Vec<*const libc::c_char> {
    strings.iter().map(|string| string.as_ptr().cast()).chain([ptr::null()]).collect()
}

extern "C" fn run(steps: *mut libc::c_void) -> libc::c_int {
    // SAFETY: `start` passes its steps and is suspended while this runs.
    let steps = unsafe { &mut *steps.cast::<Steps<'_>>() };
    // SAFETY: this is the child of `start`.
    steps.failure = Some(unsafe { become_program(steps) });
    127
}

/// Returns only on failure.
///
/// # Safety
/// The caller must have no further use for the calling process: its descriptors, session and
/// directory are replaced.
unsafe fn become_program(steps: &mut Steps<'_>) -> Failure {
    let failed = |stage| Failure { stage, errno: last_errno() };
    // SAFETY: plain system calls on numbers and NUL-terminated strings that outlive them. The
    // keeper's own 0, 1 and 2 are open, so each of `descriptors` is above its target (or equal to
    // it), and no `dup2` overwrites another.
    unsafe {
        // The score is raised while /proc is still writable, and before the program has children,
        // which inherit it.
        if let Session::New { .. } = steps.session {
            oom_score::raise_own();
        }
        if let Some(cgroup) = steps.cgroup
            && !enter_cgroup(cgroup)
        {
            return failed(Stage::Limits);
        }
        if let Session::New { .. } = steps.session
            && libc::setsid() == -1
        {
            return failed(Stage::Setup);
        }
        for (number, fd) in (0..).zip(steps.descriptors) {
            if libc::dup2(*fd, number) == -1 {
                return failed(Stage::Setup);
            }
        }
        if let Session::New { terminal: true } = steps.session
            && libc::ioctl(0, libc::TIOCSCTTY, 0) == -1
        {
            return failed(Stage::Setup);
        }
        if let Some(Err(failure)) = steps.lockdown.map(Lockdown::give_up_rights) {
            return failure.into();
        }
        if !close_on_exec(steps.descriptors.len()) {
            return failed(Stage::Setup);
        }
        if libc::chdir(steps.cwd.as_ptr().cast()) == -1 {
            return failed(Stage::WorkingDirectory);
        }
        if let Some(Err(errno)) = steps.limits.map(rlimits::lower_own) {
            return Failure { stage: Stage::Limits, errno };
        }
        if steps.ignores_signals {
            signals::ignore_all();
        }
        libc::sigprocmask(libc::SIG_SETMASK, &raw const steps.signal_mask, ptr::null_mut());
    }
    if let Some(Err(failure)) = steps.lockdown.map(Lockdown::filter_calls) {
        return failure.into();
    }
    Failure { stage: Stage::Exec, errno: execute(steps) }
}

/// Moves this process into a cgroup, where `CLONE_INTO_CGROUP` is not available. Slower: the kernel
/// takes a system-wide lock.
fn enter_cgroup(directory: RawFd) -> bool {
    // SAFETY: plain system calls on numbers and constants.
    unsafe {
        let file =
            libc::openat(directory, c"cgroup.procs".as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC);
        let entered = file != -1 && libc::write(file, c"0".as_ptr().cast(), 1) == 1;
        if file != -1 && entered {
            libc::close(file);
        }
        entered
    }
}

/// Marks every descriptor from `first` on as close-on-exec. Kernels before 5.11 cannot do that;
/// there the descriptors are closed at once.
fn close_on_exec(first: usize) -> bool {
    let close = |flags: libc::c_uint| {
        // SAFETY: no memory is involved, and the caller uses none of these descriptors again except
        // to report a failure.
        unsafe { libc::syscall(libc::SYS_close_range, first, libc::c_uint::MAX, flags) == 0 }
    };
    close(libc::CLOSE_RANGE_CLOEXEC) || close(0)
}

/// Tries the same candidates as `execvp`, in the same order, and returns the same error.
fn execute(steps: &mut Steps<'_>) -> i32 {
    let Some(search_path) = steps.search_path else {
        return execve(steps.program, steps.argv, steps.env);
    };
    let mut denied = false;
    for directory in search_path.split(|byte| *byte == b':') {
        let Some(candidate) = join(&mut steps.candidate, directory, steps.program) else {
            continue;
        };
        match execve(candidate, steps.argv, steps.env) {
            libc::EACCES => denied = true,
            libc::ENOENT | libc::ENOTDIR | libc::ENAMETOOLONG => {}
            libc::ENODEV | libc::ESTALE | libc::ETIMEDOUT => {}
            errno => return errno,
        }
    }
    if denied { libc::EACCES } else { libc::ENOENT }
}

/// Writes `directory/program` to `buffer` if it fits. An empty directory is the current one.
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
    // SAFETY: the path ends with NUL, the arrays end with a null pointer, and their strings live in
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
    fn candidates_are_joined_as_in_execvp() {
        let mut buffer = [0; 16];
        assert_eq!(join(&mut buffer, b"/bin", b"ls\0"), Some(&b"/bin/ls\0"[..]));
        assert_eq!(join(&mut buffer, b"", b"ls\0"), Some(&b"ls\0"[..]));
        assert_eq!(join(&mut buffer, b"/a/long/directory", b"ls\0"), None);
    }
}

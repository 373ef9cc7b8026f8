//! Runs an irreversible operation in a short-lived child process.

use std::fmt;
use std::io::{self, Read as _, Write as _};

use rustix::io::Errno;
use rustix::process::{Pid, WaitOptions, WaitStatus};

use crate::sandbox::kernel::landlock::LandlockError;
use crate::sandbox::report::step::StepFailure;

/// A trial that takes longer is killed, so that it cannot block its caller.
pub(super) const TIMEOUT_SECONDS: u32 = 10;

/// Runs `run` in a child and returns its result.
///
/// # Safety
/// The process must have only one thread, so that the child may run ordinary code.
pub(super) unsafe fn try_in_child(
    run: impl FnOnce() -> Result<String, Failed>,
) -> Result<String, String> {
    let (ours, theirs) = io::pipe().map_err(|error| format!("cannot create a pipe: {error}"))?;
    // SAFETY: the caller guarantees that no other thread exists.
    let child = match unsafe { libc::fork() } {
        -1 => return Err(format!("cannot fork: {}", io::Error::last_os_error())),
        0 => {
            drop(ours);
            // SAFETY: plain system calls. The signal is reset because the parent may have ignored
            // it.
            unsafe {
                libc::signal(libc::SIGALRM, libc::SIG_DFL);
                libc::alarm(TIMEOUT_SECONDS);
            }
            report(run(), theirs);
            // SAFETY: ends the child without running the parent's cleanup.
            unsafe { libc::_exit(0) }
        }
        child => child,
    };
    drop(theirs);
    let said = read_all(ours);
    match wait(child) {
        Ok(status) if status.exited() => {}
        Ok(status) => {
            return Err(match status.terminating_signal() {
                Some(libc::SIGALRM) => format!("timed out after {TIMEOUT_SECONDS} s"),
                Some(signal) => format!("the trial process was killed by signal {signal}"),
                None => "the trial process did not exit".to_owned(),
            });
        }
        Err(errno) => return Err(format!("cannot wait for the trial process: {errno}")),
    }
    match (said.strip_prefix('+'), said.strip_prefix('-')) {
        (Some(value), _) => Ok(value.to_owned()),
        (_, Some(reason)) => Err(reason.to_owned()),
        _ => Err("the trial process reported no result".to_owned()),
    }
}

#[derive(Debug)]
pub(super) struct Failed {
    step: &'static str,
    reason: String,
}

impl Failed {
    pub(super) fn new(step: &'static str, reason: impl fmt::Display) -> Self {
        Self { step, reason: reason.to_string() }
    }
}

pub(super) trait Step<T> {
    fn step(self, step: &'static str) -> Result<T, Failed>;
}

impl<T, E: Reason> Step<T> for Result<T, E> {
    fn step(self, step: &'static str) -> Result<T, Failed> {
        self.map_err(|error| Failed::new(step, error.reason()))
    }
}

/// The kernel's reason, with the step that failed if the error names it.
pub(super) trait Reason {
    fn reason(&self) -> String;
}

impl Reason for Errno {
    fn reason(&self) -> String {
        self.to_string()
    }
}

impl Reason for io::Error {
    fn reason(&self) -> String {
        self.to_string()
    }
}

impl Reason for StepFailure {
    fn reason(&self) -> String {
        format!("{}: {}", self.step, io::Error::from_raw_os_error(self.errno))
    }
}

impl Reason for LandlockError {
    fn reason(&self) -> String {
        match self.raw_os_error() {
            Some(errno) => io::Error::from_raw_os_error(errno).to_string(),
            None => self.to_string(),
        }
    }
}

fn report(result: Result<String, Failed>, mut to: io::PipeWriter) {
    let text = match result {
        Ok(value) => format!("+{value}"),
        Err(Failed { step, reason }) => format!("-{step}: {reason}"),
    };
    // The parent treats a missing report as a failure.
    let _ = to.write_all(text.as_bytes());
}

fn read_all(mut from: io::PipeReader) -> String {
    let mut bytes = Vec::new();
    let _ = from.read_to_end(&mut bytes);
    String::from_utf8_lossy(&bytes).into_owned()
}

fn wait(child: libc::pid_t) -> Result<WaitStatus, Errno> {
    let child = Pid::from_raw(child).ok_or(Errno::CHILD)?;
    loop {
        match rustix::process::waitpid(Some(child), WaitOptions::empty()) {
            Ok(Some((_, status))) => return Ok(status),
            Err(Errno::INTR) | Ok(None) => {}
            Err(errno) => return Err(errno),
        }
    }
}

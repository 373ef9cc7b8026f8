//! A running command, with which a test exchanges input and output.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::thread::{self, JoinHandle};

use rustix::process::Signal;

use super::machine::{self, Watched};
use super::wire::{is_readable_soon, wait_readable};

pub(crate) struct Running {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: Option<BufReader<ChildStdout>>,
    stderr: Option<BufReader<ChildStderr>>,
}

impl Running {
    pub(crate) fn start(mut command: Command) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        Self {
            stdin: child.stdin.take(),
            stdout: child.stdout.take().map(BufReader::new),
            stderr: child.stderr.take().map(BufReader::new),
            child,
        }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn say(&mut self, text: &str) {
        self.stdin.as_mut().expect("stdin is open").write_all(text.as_bytes()).unwrap();
    }

    pub(crate) fn end_input(&mut self) {
        self.stdin = None;
    }

    /// Closes the read end of the command's standard output.
    pub(crate) fn close_output(&mut self) {
        self.stdout = None;
    }

    pub(crate) fn line(&mut self) -> String {
        let stdout = self.stdout.as_mut().expect("stdout is open");
        if stdout.buffer().is_empty() {
            wait_readable(stdout.get_ref().as_fd());
        }
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        line
    }

    /// Returns the next line if one arrives within a moment.
    pub(crate) fn line_if_any(&mut self) -> Option<String> {
        let stdout = self.stdout.as_ref().expect("stdout is open");
        let is_there = !stdout.buffer().is_empty() || is_readable_soon(stdout.get_ref().as_fd());
        is_there.then(|| self.line())
    }

    pub(crate) fn error_line(&mut self) -> String {
        let stderr = self.stderr.as_mut().expect("stderr is not collected");
        if stderr.buffer().is_empty() {
            wait_readable(stderr.get_ref().as_fd());
        }
        let mut line = String::new();
        stderr.read_line(&mut line).unwrap();
        line
    }

    /// Reads the rest of the command's standard error in a thread, so that the command never blocks
    /// on it.
    pub(crate) fn collect_errors(&mut self) -> JoinHandle<String> {
        let mut stderr = self.stderr.take().expect("stderr is collected once");
        thread::spawn(move || {
            let mut errors = String::new();
            stderr.read_to_string(&mut errors).unwrap();
            errors
        })
    }

    pub(crate) fn signal(&self, signal: Signal) {
        machine::signal(self.child.id(), signal);
    }

    /// Returns how many bytes the command has read so far, from all descriptors.
    pub(crate) fn bytes_read(&self) -> u64 {
        machine::bytes_read(self.child.id())
    }

    pub(crate) fn has_ended(&self) -> bool {
        machine::state(self.child.id()).is_none_or(|state| state == 'Z')
    }

    /// Closes the input and waits for the end. Returns the rest of both streams.
    pub(crate) fn finish(mut self) -> (ExitStatus, String, String) {
        self.stdin = None;
        self.finish_with_input_open()
    }

    /// Like `finish`, for a command that cannot end before its output is read.
    pub(crate) fn read_to_end(mut self) -> (ExitStatus, String, String) {
        self.stdin = None;
        let mut out = String::new();
        if let Some(stdout) = &mut self.stdout {
            stdout.read_to_string(&mut out).unwrap();
        }
        let (status, _, errors) = self.finish_with_input_open();
        (status, out, errors)
    }

    /// Like `finish`, but leaves the input open.
    pub(crate) fn finish_with_input_open(mut self) -> (ExitStatus, String, String) {
        Watched::new(&[self.child.id()]).wait_until_all_end();
        let (mut out, mut error) = (String::new(), String::new());
        if let Some(stdout) = &mut self.stdout {
            stdout.read_to_string(&mut out).unwrap();
        }
        if let Some(stderr) = &mut self.stderr {
            stderr.read_to_string(&mut error).unwrap();
        }
        (self.child.wait().unwrap(), out, error)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

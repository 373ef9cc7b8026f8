//! Errors of starting a program, distinguished by how a caller would react.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::command::Command;
use crate::sandbox::SandboxError;
use crate::sandbox::SandboxStep;

#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    #[error("no program to start: argv is empty")]
    NoProgram,
    #[error("working directory {}: {}", path.display(), Reason(source))]
    WorkingDirectory { path: PathBuf, source: io::Error },
    #[error("program {program:?} {}", not_found(program))]
    NotFound { program: OsString },
    #[error("program {program:?} cannot be executed: {}", Reason(source))]
    NotExecutable { program: OsString, source: io::Error },
    /// The file exists, but its interpreter or loader does not.
    #[error(
        "program {program:?} needs an interpreter that does not exist; check its #! line or its \
         dynamic loader"
    )]
    NoInterpreter { program: OsString },
    #[error("arguments and environment variables of {program:?} are longer than the system allows")]
    ArgumentsTooLong { program: OsString },
    #[error("{place} {text:?} contains a NUL byte")]
    NulByte { place: StringPlace, text: OsString },
    #[error("environment variable name {name:?} is empty or contains '='")]
    EnvironmentName { name: OsString },
    #[error(transparent)]
    NoSandbox(#[from] Arc<SandboxError>),
    /// Descriptors, processes, terminals or memory ran out. A later attempt may succeed.
    #[error("out of system resources: {}", Reason(source))]
    Resources { source: io::Error },
    #[error(
        "the server's helper process {} is unavailable: {}; if this persists, restart the server",
        executable.display(),
        Reason(source)
    )]
    SpawnerUnavailable { executable: PathBuf, source: io::Error },
    /// The keeper was killed during the start; the program may have run for an instant.
    #[error("the keeper of {program:?} died before it reported the start")]
    KeeperLost { program: OsString },
    #[error("{program:?} was terminated before it ran")]
    Terminated { program: OsString },
    /// A bug in this server.
    #[error("the server panicked while starting {program:?}; see the server's log")]
    Panicked { program: OsString },
    #[error("cannot prepare the process, its descriptors or its terminal: {}", Reason(source))]
    Setup { source: io::Error },
    #[error("cannot set up the sandbox: {step}{}: {}", AtPath(path.as_deref()), StepReason(*step, source))]
    Sandbox { step: SandboxStep, path: Option<PathBuf>, source: io::Error },
    #[error("cannot set the limits of the process: {}", Reason(source))]
    Limits { source: io::Error },
    #[error(
        "sandboxes need helper processes, but this server runs without them; use a launcher with a \
         spawner"
    )]
    SandboxWithoutKeeper,
}

/// The place of a string in a [`Command`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StringPlace {
    Argument,
    WorkingDirectory,
    EnvironmentName,
    /// The reported text is the variable's name.
    EnvironmentValue,
}

impl fmt::Display for StringPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Argument => "argument",
            Self::WorkingDirectory => "working directory",
            Self::EnvironmentName => "environment variable name",
            Self::EnvironmentValue => "the value of environment variable",
        })
    }
}

impl LaunchError {
    pub(in crate::process) fn from_setup(source: io::Error) -> Self {
        if is_exhaustion(&source) { Self::Resources { source } } else { Self::Setup { source } }
    }

    #[cfg(target_os = "linux")]
    pub(super) fn from_sandbox(command: &Command, step: SandboxStep, source: io::Error) -> Self {
        let mounts = command.sandbox.as_ref().map_or(&[][..], |plan| &plan.mounts);
        let path = step.mount().and_then(|index| mounts.get(index));
        let path = path.map(|mount| mount.path().to_owned());
        Self::Sandbox { step, path, source }
    }

    pub(super) fn from_chdir(command: &Command, source: io::Error) -> Self {
        if is_exhaustion(&source) {
            return Self::Resources { source };
        }
        Self::WorkingDirectory { path: command.cwd.clone(), source }
    }

    pub(super) fn from_exec(command: &Command, source: io::Error) -> Self {
        let program = command.program().to_owned();
        match source.raw_os_error() {
            Some(libc::ENOENT) if names_existing_file(command) => Self::NoInterpreter { program },
            Some(libc::ENOENT | libc::ENOTDIR) => Self::NotFound { program },
            Some(libc::E2BIG) => Self::ArgumentsTooLong { program },
            _ if is_exhaustion(&source) => Self::Resources { source },
            _ => Self::NotExecutable { program, source },
        }
    }
}

/// A name without a slash was looked up on the PATH.
fn not_found(program: &OsStr) -> &'static str {
    match program.as_encoded_bytes().contains(&b'/') {
        true => "does not exist",
        false => "not found on PATH",
    }
}

/// `execve` returns ENOENT for a missing script interpreter as well as for a missing program.
fn names_existing_file(command: &Command) -> bool {
    command.program_path().is_some_and(|path| command.cwd.join(path).exists())
}

fn is_exhaustion(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(
            libc::EAGAIN
                | libc::EMFILE
                | libc::ENFILE
                | libc::ENOBUFS
                | libc::ENOMEM
                | libc::ENOSPC
                | libc::ETOOMANYREFS
        )
    )
}

struct AtPath<'a>(Option<&'a Path>);

impl fmt::Display for AtPath<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.map_or(Ok(()), |path| write!(f, " {}", path.display()))
    }
}

/// Describes common reasons in plain words and leaves the others to the system.
struct Reason<'a>(&'a io::Error);

impl fmt::Display for Reason<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.kind() {
            io::ErrorKind::NotFound => f.write_str("does not exist"),
            io::ErrorKind::NotADirectory => f.write_str("not a directory"),
            io::ErrorKind::PermissionDenied => f.write_str("permission denied"),
            _ => self.0.fmt(f),
        }
    }
}

/// Describes failures for which the system has no clear message: a lock held by another process,
/// which makes the keeper give up a placeholder, and a bubblewrap that exits early.
struct StepReason<'a>(SandboxStep, &'a io::Error);

impl fmt::Display for StepReason<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.0, self.1.kind()) {
            (SandboxStep::Placeholder { .. }, io::ErrorKind::WouldBlock) => f.write_str(
                "another process holds a lock on that directory (`fuser` shows which); end that process, or remove the directory",
            ),
            (SandboxStep::BubblewrapEnded { code }, _) => write!(
                f,
                "it exited with code {code} before it started the program; `exec-server doctor` shows why"
            ),
            _ => Reason(self.1).fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_says_that_the_working_directory_is_a_file() {
        let error = LaunchError::WorkingDirectory {
            path: "/etc/passwd".into(),
            source: io::Error::from_raw_os_error(libc::ENOTDIR),
        };
        assert_eq!(error.to_string(), "working directory /etc/passwd: not a directory");
    }

    #[test]
    fn the_error_names_the_path_of_a_failed_sandbox_step() {
        let error = LaunchError::Sandbox {
            step: SandboxStep::Mount { mount: 0 },
            path: Some("/w/.git".into()),
            source: io::Error::from_raw_os_error(libc::ENOENT),
        };
        let text = "cannot set up the sandbox: mounting on /w/.git: does not exist";
        assert_eq!(error.to_string(), text);
    }

    #[test]
    fn the_error_says_what_to_do_about_a_locked_placeholder() {
        let error = LaunchError::Sandbox {
            step: SandboxStep::Placeholder { mount: 0 },
            path: Some("/tmp/.git".into()),
            source: io::Error::from_raw_os_error(libc::EAGAIN),
        };
        let text = error.to_string();
        assert!(text.contains("making a placeholder at /tmp/.git: another process"), "{text}");
        assert!(text.ends_with("or remove the directory"), "{text}");
    }
}

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
    #[error("program {program:?} {}", not_found(program, *has_path))]
    NotFound { program: OsString, has_path: bool },
    #[error("program {program:?} cannot be executed: {}", Reason(source))]
    NotExecutable { program: OsString, source: io::Error },
    /// The server sees the file, but its interpreter or loader does not exist, or the sandbox hides
    /// one of them.
    #[error("program {program:?} {}", no_interpreter(*is_sandboxed))]
    NoInterpreter { program: OsString, is_sandboxed: bool },
    #[error("arguments and environment variables of {program:?} are longer than the system allows")]
    ArgumentsTooLong { program: OsString },
    #[error("{place} {text:?} contains a NUL byte")]
    NulByte { place: StringPlace, text: OsString },
    #[error("environment variable name {name:?} is empty or contains '='")]
    EnvironmentName { name: OsString },
    #[error(transparent)]
    NoSandbox(#[from] Arc<SandboxError>),
    /// Descriptors, processes, terminals or memory ran out. A later attempt may succeed.
    #[error("out of system resources: {}", Exhausted(source))]
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
    #[error(
        "cannot prepare the process, its descriptors, its terminal or its network gate: {}",
        Reason(source)
    )]
    Setup { source: io::Error },
    #[error("cannot set up the sandbox: {step}{}: {}", AtPath(path.as_deref()), StepReason(*step, source))]
    Sandbox { step: SandboxStep, path: Option<PathBuf>, source: io::Error },
    #[error(
        "cannot set the limits of the process{}: {}",
        BelowCgroup(cgroup.as_deref()),
        Reason(source)
    )]
    Limits { cgroup: Option<PathBuf>, source: io::Error },
    #[error(
        "sandboxes need helper processes, but this server runs without them; the program that \
         embeds the server must create it with Launcher::with_spawner"
    )]
    SandboxWithoutKeeper,
}

/// The place of a string in a [`Command`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StringPlace {
    Program,
    /// The reported text is the program.
    Argument {
        number: usize,
    },
    /// The reported text is the program.
    Arg0,
    WorkingDirectory,
    EnvironmentName,
    /// The reported text is the variable's name.
    EnvironmentValue,
}

impl fmt::Display for StringPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = match self {
            Self::Program => "program",
            Self::Argument { number } => return write!(f, "argument {number} of"),
            Self::Arg0 => "arg0 of",
            Self::WorkingDirectory => "working directory",
            Self::EnvironmentName => "environment variable name",
            Self::EnvironmentValue => "the value of environment variable",
        };
        f.write_str(place)
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
            Some(libc::ENOENT) if names_existing_file(command) => {
                Self::NoInterpreter { program, is_sandboxed: command.sandbox.is_some() }
            }
            Some(libc::ENOENT | libc::ENOTDIR) => {
                Self::NotFound { program, has_path: command.variable("PATH").is_some() }
            }
            Some(libc::E2BIG) => Self::ArgumentsTooLong { program },
            _ if is_exhaustion(&source) => Self::Resources { source },
            _ => Self::NotExecutable { program, source },
        }
    }
}

fn not_found(program: &OsStr, has_path: bool) -> &'static str {
    match program.as_encoded_bytes() {
        b"" => "has an empty name",
        name if name.contains(&b'/') => "does not exist",
        _ if has_path => "not found on PATH",
        _ => "not found in the default directories; its environment has no PATH",
    }
}

fn no_interpreter(is_sandboxed: bool) -> &'static str {
    match is_sandboxed {
        false => {
            "needs an interpreter that does not exist; check its #! line or its dynamic loader"
        }
        true => {
            "or its interpreter does not exist in the sandbox; check the paths that the sandbox \
             hides, and the program's #! line or dynamic loader"
        }
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

struct BelowCgroup<'a>(Option<&'a Path>);

impl fmt::Display for BelowCgroup<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.map_or(Ok(()), |path| write!(f, " below cgroup {}", path.display()))
    }
}

/// Describes exhaustion for which the system's message names another resource, or none.
struct Exhausted<'a>(&'a io::Error);

impl fmt::Display for Exhausted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.raw_os_error() {
            Some(libc::EAGAIN) => {
                f.write_str("too many processes (RLIMIT_NPROC, pids.max or kernel.pid_max)")
            }
            Some(libc::ENOSPC) => f.write_str(
                "too many terminals (kernel.pty.max) or epoll watches (fs.epoll.max_user_watches)",
            ),
            Some(libc::ETOOMANYREFS) => f.write_str("too many descriptors are being passed"),
            _ => self.0.fmt(f),
        }
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
    fn the_error_says_where_a_missing_program_was_looked_for() {
        let not_found = |program: &str, has_path| {
            LaunchError::NotFound { program: program.into(), has_path }.to_string()
        };
        assert_eq!(not_found("ls", true), "program \"ls\" not found on PATH");
        assert!(not_found("ls", false).ends_with("its environment has no PATH"));
        assert_eq!(not_found("./ls", false), "program \"./ls\" does not exist");
        assert_eq!(not_found("", true), "program \"\" has an empty name");
    }

    #[test]
    fn the_error_of_a_missing_interpreter_fits_a_sandbox() {
        let text = |is_sandboxed| {
            LaunchError::NoInterpreter { program: "/a".into(), is_sandboxed }.to_string()
        };
        assert!(text(false).starts_with("program \"/a\" needs an interpreter"), "{}", text(false));
        let expected = "program \"/a\" or its interpreter does not exist in the sandbox; check";
        assert!(text(true).starts_with(expected), "{}", text(true));
    }

    #[test]
    fn the_error_names_the_exhausted_resource() {
        let text = |errno| {
            LaunchError::Resources { source: io::Error::from_raw_os_error(errno) }.to_string()
        };
        assert!(text(libc::EAGAIN).starts_with("out of system resources: too many processes"));
        assert!(text(libc::ENOSPC).starts_with("out of system resources: too many terminals"));
        assert!(text(libc::EMFILE).contains("open files"));
    }

    #[test]
    fn the_error_names_the_cgroup_of_failed_limits() {
        let source = || io::Error::from_raw_os_error(libc::ENOENT);
        let error =
            LaunchError::Limits { cgroup: Some("/sys/fs/cgroup/x".into()), source: source() };
        assert_eq!(
            error.to_string(),
            "cannot set the limits of the process below cgroup /sys/fs/cgroup/x: does not exist"
        );
        let error = LaunchError::Limits { cgroup: None, source: source() };
        assert_eq!(error.to_string(), "cannot set the limits of the process: does not exist");
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

//! The executables that a server needs at run time: its own.

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use exec_server_host::process::launch::Launcher;
#[cfg(target_os = "linux")]
use exec_server_host::process::launch::{SPAWNER_ARG, run_spawner};
use exec_server_host::sandbox::{PROBE_ARG, run_probe};

/// Where a server finds the program that keeps its process trees.
#[derive(Debug, Clone)]
pub struct ExecServerRuntimePaths {
    spawner: Option<PathBuf>,
}

impl ExecServerRuntimePaths {
    /// This very program, whose `main` calls [`run_spawner_if_asked`] first.
    #[must_use]
    pub fn this_program() -> Self {
        if cfg!(target_os = "linux") {
            // Not its path: the file may be replaced while we run.
            Self::with_spawner("/proc/self/exe")
        } else {
            Self::without_helpers()
        }
    }

    /// Another program whose `main` calls [`run_spawner_if_asked`] first.
    pub fn with_spawner(program: impl Into<PathBuf>) -> Self {
        Self { spawner: Some(program.into()) }
    }

    /// No such program: processes are ended by group only, and `environment/info` says so.
    #[must_use]
    pub fn without_helpers() -> Self {
        Self { spawner: None }
    }

    pub(crate) fn launcher(&self) -> io::Result<Launcher> {
        match &self.spawner {
            Some(program) => Launcher::with_spawner(program.clone()),
            None => Ok(Launcher::plain()),
        }
    }
}

/// Call this before anything else in `main`. Returns `None` unless this process was started to help a server, as its
/// spawner or to find out what it can enforce sandboxes with; then it does that work and returns how it ended.
#[must_use]
pub fn run_spawner_if_asked() -> Option<ExitCode> {
    let asked_for = std::env::args_os().nth(1)?;
    #[cfg(target_os = "linux")]
    if asked_for == SPAWNER_ARG {
        return Some(run_spawner());
    }
    (asked_for == PROBE_ARG).then(run_probe)
}

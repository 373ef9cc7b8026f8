//! The executables that a server needs at run time.

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use exec_server_host::process::launch::Launcher;
#[cfg(target_os = "linux")]
use exec_server_host::process::launch::{SPAWNER_ARG, run_spawner};
use exec_server_host::sandbox::{PROBE_ARG, run_probe};

/// The path of the program that runs the keepers of process trees.
#[derive(Debug, Clone)]
pub struct ExecServerRuntimePaths {
    spawner: Option<PathBuf>,
}

impl ExecServerRuntimePaths {
    /// Uses this program, whose `main` must first call [`run_spawner_if_asked`].
    #[must_use]
    pub fn this_program() -> Self {
        if cfg!(target_os = "linux") {
            // Not the path of the file, which may be replaced while this program runs.
            Self::with_spawner("/proc/self/exe")
        } else {
            Self::without_helpers()
        }
    }

    /// Uses another program, whose `main` must first call [`run_spawner_if_asked`].
    pub fn with_spawner(program: impl Into<PathBuf>) -> Self {
        Self { spawner: Some(program.into()) }
    }

    /// Uses no such program: only process groups can be ended, and `environment/info` reports that.
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

/// Must be called before anything else in `main`. If this process was started to help a server, as
/// its spawner or to probe the sandbox mechanisms, does that work and returns its exit code.
/// Otherwise returns `None`.
#[must_use]
pub fn run_spawner_if_asked() -> Option<ExitCode> {
    let asked_for = std::env::args_os().nth(1)?;
    #[cfg(target_os = "linux")]
    if asked_for == SPAWNER_ARG {
        return Some(run_spawner());
    }
    (asked_for == PROBE_ARG).then(run_probe)
}

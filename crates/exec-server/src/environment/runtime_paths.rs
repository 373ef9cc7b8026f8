//! The executables that a server needs at run time.

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use exec_server_host::process::launch::Launcher;
#[cfg(target_os = "linux")]
use exec_server_host::process::launch::{SPAWNER_ARG, run_spawner};
use exec_server_host::sandbox::{PROBE_ARG, run_probe};

/// The path of the program that starts the keepers of process trees.
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

    /// Uses no spawner: only process groups can be ended, and `environment/info` reports that.
    #[must_use]
    pub fn without_helpers() -> Self {
        Self { spawner: None }
    }

    pub(crate) fn launcher(&self) -> io::Result<Launcher> {
        match &self.spawner {
            // Otherwise each helper would start a helper, endlessly.
            Some(_) if helper().is_some() => Err(io::Error::other(
                "this process was started as a helper; call run_spawner_if_asked first in `main`",
            )),
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
    helper().map(|run| run())
}

/// Returns the function to run if this process was started to help a server.
fn helper() -> Option<fn() -> ExitCode> {
    let asked_for = std::env::args_os().nth(1)?;
    #[cfg(target_os = "linux")]
    if asked_for == SPAWNER_ARG {
        return Some(run_spawner);
    }
    (asked_for == PROBE_ARG).then_some(run_probe)
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::process::Command;

    use super::*;

    /// Started as a spawner, the test program runs the tests with [`SPAWNER_ARG`] in their names.
    #[test]
    #[expect(non_snake_case, reason = "the name contains the argument")]
    #[expect(clippy::disallowed_methods, reason = "starts the test program again")]
    fn a_program_that_ignores_the_spawner_argument_starts_no_helpers__spawner() {
        if helper().is_some() {
            let refused = ExecServerRuntimePaths::this_program().launcher().err().unwrap();
            assert!(refused.to_string().contains("call run_spawner_if_asked"), "{refused}");
            return;
        }
        let program = std::env::current_exe().unwrap();
        let run = Command::new(program).arg(SPAWNER_ARG).output().unwrap();
        let printed = String::from_utf8_lossy(&run.stdout);
        assert!(run.status.success() && printed.contains("1 passed"), "{printed}");
    }
}

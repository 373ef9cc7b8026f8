//! Finds out what this machine can enforce by trying it.
//!
//! A mechanism that is compiled in, mounted or installed may still be forbidden by a container, a
//! security module or a setting. So the probe uses each mechanism once, in a forked child of a
//! single-threaded process: this executable in a hidden mode, [`PROBE_ARG`]. [`Capabilities::ask`]
//! starts it and reads its output.

mod advice;
#[cfg(target_os = "linux")]
mod bubblewrap;
mod finding;
#[cfg(target_os = "linux")]
mod linux;
#[cfg(target_os = "linux")]
mod trial;
mod without;

use std::ffi::OsStr;
use std::io::{self, Write as _};
use std::path::Path;
use std::process::{ExitCode, Stdio};

pub use finding::{Finding, Findings};
pub use without::WITHOUT_VARIABLE;

use crate::sandbox::report::capabilities::Capabilities;
use finding::{Failure, Outcome};
use without::Without;

/// With this first argument, an executable runs the probe.
pub const PROBE_ARG: &str = "__sandbox-probe";

impl Capabilities {
    /// Runs the probe in `executable`, whose `main` must call [`run_probe`] when its first argument
    /// is [`PROBE_ARG`]. Blocks, usually for some milliseconds.
    pub fn ask(executable: &Path) -> io::Result<Findings> {
        let without = std::env::var_os(WITHOUT_VARIABLE);
        Self::ask_without(executable, without.as_deref())
    }

    fn ask_without(executable: &Path, without: Option<&OsStr>) -> io::Result<Findings> {
        // The probe also parses the value, but cannot report an error in it.
        Without::parse(without)?;
        #[expect(clippy::disallowed_methods, reason = "this is where the host starts programs")]
        let mut command = std::process::Command::new(executable);
        let output = command
            .arg(PROBE_ARG)
            .env_clear()
            .envs(without.map(|value| (WITHOUT_VARIABLE, value)))
            .current_dir("/")
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .output()
            .map_err(|error| {
                io::Error::new(
                    error.kind(),
                    format!("cannot run {}: {error}", executable.display()),
                )
            })?;
        if !output.status.success() {
            let (program, status) = (executable.display(), output.status);
            return Err(io::Error::other(format!("the probe {program} ended with {status}")));
        }
        Findings::decode(&output.stdout)
    }
}

/// With this second argument, the hidden mode only tests the network namespace in which it was
/// started.
#[cfg(target_os = "linux")]
const INSIDE_NETWORK_ARG: &str = "network";

/// Probes the mechanisms and prints the outcomes. Call this first in `main`, before any thread
/// exists, when the first argument is [`PROBE_ARG`].
pub fn run_probe() -> ExitCode {
    #[cfg(target_os = "linux")]
    if std::env::args_os().nth(2).is_some_and(|argument| argument == INSIDE_NETWORK_ARG) {
        let works = linux::use_managed_network().is_ok();
        return if works { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    let Ok(without) = Without::parse(std::env::var_os(WITHOUT_VARIABLE).as_deref()) else {
        return ExitCode::FAILURE;
    };
    let outcomes = probe(&without);
    match io::stdout().write_all(&Outcome::encode_all(&outcomes)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

fn probe(without: &Without) -> Vec<Outcome> {
    let mechanisms = super::Mechanism::ALL.iter();
    mechanisms
        .map(|&mechanism| {
            let result = if without.contains(mechanism) {
                Err(Failure::TurnedOff)
            } else {
                attempt(mechanism)
            };
            Outcome { mechanism, result }
        })
        .collect()
}

#[cfg(target_os = "linux")]
use linux::attempt;

/// Every macOS has Seatbelt, but the server does not start programs with it yet, so it must not be
/// reported as available.
#[cfg(not(target_os = "linux"))]
fn attempt(mechanism: super::Mechanism) -> Result<String, Failure> {
    Err(Failure::Refused(format!("the server cannot start programs with {mechanism} yet")))
}

#[cfg(test)]
mod tests;

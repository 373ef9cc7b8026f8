//! The exact description of a start: a launcher adds no argument, variable or descriptor, and the
//! program inherits none.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::error::{LaunchError, StringPlace};
use crate::process::limits::Limits;
use crate::sandbox::{GateSockets, NetworkNamespace, Plan};

#[derive(Clone, Debug)]
pub struct Command {
    /// The program and its arguments. A name without a slash is looked up in the `PATH` of `env`,
    /// or else in default directories; a relative path with a slash starts at `cwd`.
    pub argv: Vec<OsString>,
    /// The name that the program sees as its own, if it is not `argv[0]`.
    pub arg0: Option<OsString>,
    pub cwd: PathBuf,
    pub env: Vec<(OsString, OsString)>,
    pub io: Io,
    /// Whether to kill the remaining tree when the program exits.
    pub kill_on_exit: bool,
    pub sandbox: Option<Arc<Plan>>,
    pub limits: Limits,
}

/// The program's descriptors 0, 1 and 2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Io {
    /// A terminal of its own, which becomes the controlling terminal.
    Pty(PtySize),
    /// One pipe each. Without `stdin`, descriptor 0 is `/dev/null`.
    Pipes { stdin: bool },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PtySize {
    pub rows: u16,
    pub cols: u16,
}

impl Command {
    pub(in crate::process) fn program(&self) -> &OsStr {
        self.argv.first().map_or(OsStr::new(""), OsString::as_os_str)
    }

    /// Returns the program's path, unless it must be looked up in `PATH`.
    pub(super) fn program_path(&self) -> Option<&Path> {
        self.program().as_bytes().contains(&b'/').then(|| Path::new(self.program()))
    }

    pub(super) fn gate_sockets(&self) -> Option<&GateSockets> {
        match &self.sandbox.as_ref()?.network_namespace {
            NetworkNamespace::Gated(sockets) => Some(sockets),
            NetworkNamespace::Inherited | NetworkNamespace::Empty => None,
        }
    }

    /// Adds the variables that are not set yet.
    pub(in crate::process) fn add_variables(&mut self, variables: &[(OsString, OsString)]) {
        let is_missing =
            |(name, _): &&(OsString, OsString)| !self.env.iter().any(|(known, _)| known == name);
        let missing: Vec<_> = variables.iter().filter(is_missing).cloned().collect();
        self.env.extend(missing);
    }

    pub(super) fn variable(&self, name: &str) -> Option<&OsStr> {
        self.env.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_os_str())
    }

    /// Rejects a command without a program, and strings that cannot be passed to `execve`
    /// unchanged.
    pub(super) fn validate(&self) -> Result<(), LaunchError> {
        if self.argv.is_empty() {
            return Err(LaunchError::NoProgram);
        }
        refuse_nul(self.program(), StringPlace::Program)?;
        // The others are identified by the program: they may be secrets, and errors are logged.
        let of_program = |place| {
            let text = self.program().to_owned();
            Err(LaunchError::NulByte { place, text })
        };
        if let Some(number) = self.argv.iter().position(|argument| has_nul(argument)) {
            return of_program(StringPlace::Argument { number });
        }
        if self.arg0.as_deref().is_some_and(has_nul) {
            return of_program(StringPlace::Arg0);
        }
        refuse_nul(self.cwd.as_os_str(), StringPlace::WorkingDirectory)?;
        for (name, value) in &self.env {
            refuse_nul(name, StringPlace::EnvironmentName)?;
            if name.is_empty() || name.as_bytes().contains(&b'=') {
                return Err(LaunchError::EnvironmentName { name: name.clone() });
            }
            if has_nul(value) {
                // Identified by the variable's name: values may be secrets.
                return Err(LaunchError::NulByte {
                    place: StringPlace::EnvironmentValue,
                    text: name.clone(),
                });
            }
        }
        Ok(())
    }
}

fn refuse_nul(text: &OsStr, place: StringPlace) -> Result<(), LaunchError> {
    if has_nul(text) {
        return Err(LaunchError::NulByte { place, text: text.to_owned() });
    }
    Ok(())
}

fn has_nul(text: &OsStr) -> bool {
    text.as_bytes().contains(&0)
}

//! Mechanisms that the operator has turned off.

use std::ffi::OsStr;
use std::io;

use crate::sandbox::report::mechanism::Mechanism;

/// Comma-separated mechanisms: `namespaces`, `bubblewrap`, `landlock`, `seccomp`. The variable can
/// only remove mechanisms: the server then uses another tier or refuses the request.
pub const WITHOUT_VARIABLE: &str = "EXEC_SERVER_SANDBOX_WITHOUT";

impl Mechanism {
    /// Whether the operator turned the mechanism off. Unlike a probe, this says nothing about the
    /// machine.
    pub(crate) fn is_turned_off(self) -> io::Result<bool> {
        let without = Without::parse(std::env::var_os(WITHOUT_VARIABLE).as_deref())?;
        Ok(without.contains(self))
    }
}

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Without(Vec<Mechanism>);

impl Without {
    /// An unknown name is an error. Ignoring it would keep a mechanism that the operator wants to
    /// turn off.
    pub(super) fn parse(value: Option<&OsStr>) -> io::Result<Self> {
        let mut mechanisms = Vec::new();
        let value = value.unwrap_or_default().to_string_lossy();
        for name in value.split(',').map(str::trim).filter(|name| !name.is_empty()) {
            mechanisms.extend_from_slice(match name {
                "namespaces" => &[
                    Mechanism::UserNamespace,
                    Mechanism::NetworkNamespace,
                    Mechanism::ManagedNetwork,
                    Mechanism::FreshProc,
                ],
                "bubblewrap" => &[Mechanism::Bubblewrap],
                "landlock" => &[Mechanism::Landlock],
                "seccomp" => &[Mechanism::Seccomp],
                _ => {
                    let message = format!(
                        "unknown mechanism {name:?} in {WITHOUT_VARIABLE}; known: namespaces, bubblewrap, landlock, seccomp"
                    );
                    return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
                }
            });
        }
        Ok(Self(mechanisms))
    }

    pub(super) fn contains(&self, mechanism: Mechanism) -> bool {
        self.0.contains(&mechanism)
    }
}

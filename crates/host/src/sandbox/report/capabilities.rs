//! What this machine can enforce with.

use std::path::PathBuf;

use super::mechanism::Mechanism;

/// The mechanisms that were used with success, here, by this user. See [`Findings`](crate::sandbox::Findings) for how they are found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Capabilities {
    /// 0: none.
    pub landlock_abi: u32,
    pub seccomp: bool,
    /// New mount, PID and IPC namespaces (and a user namespace, for all but root), with a bind mount made read-only inside.
    pub user_namespace: bool,
    /// Together with those, or by bubblewrap where they are missing.
    pub network_namespace: bool,
    /// Whether every address can be led to a gate there.
    pub managed_network: bool,
    /// Whether the PID namespace, or that of bubblewrap, can have a `/proc` of its own. In most containers it cannot.
    pub fresh_proc: bool,
    /// In a directory of the system, never from `PATH`.
    pub bubblewrap: Option<PathBuf>,
    /// macOS only.
    pub seatbelt: bool,
    /// Those that the operator wants to do without, whether or not the machine has them.
    pub turned_off: Vec<Mechanism>,
}

//! The mechanisms that this machine can use.

use std::path::PathBuf;

use super::mechanism::Mechanism;

/// Mechanisms that this user can use on this machine, as proven by use. See
/// [`Findings`](crate::sandbox::Findings).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Capabilities {
    /// 0 if Landlock is not available.
    pub landlock_abi: u32,
    pub seccomp: bool,
    /// New mount, PID and IPC namespaces (and a user namespace, except for root), with a bind mount
    /// made read-only inside.
    pub user_namespace: bool,
    /// Together with those namespaces, or through bubblewrap where they are missing.
    pub network_namespace: bool,
    /// Whether every address can be routed to a gate in the network namespace.
    pub managed_network: bool,
    /// Whether the PID namespace, or that of bubblewrap, can have its own `/proc`. In most
    /// containers it cannot.
    pub fresh_proc: bool,
    /// From a system directory, never from `PATH`.
    pub bubblewrap: Option<PathBuf>,
    /// macOS only.
    pub seatbelt: bool,
    /// Mechanisms that the operator turned off, whether or not the machine has them.
    pub turned_off: Vec<Mechanism>,
}

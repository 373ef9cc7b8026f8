//! The mechanisms that this machine can use.

use std::path::PathBuf;

use super::mechanism::Mechanism;

/// The mechanisms that work for this user on this machine, as found by the probe. See
/// [`Findings`](crate::sandbox::Findings).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Capabilities {
    /// 0 if Landlock is not available.
    pub landlock_abi: u32,
    pub seccomp: bool,
    /// Whether new mount, PID and IPC namespaces (and, without `CAP_SYS_ADMIN`, a user namespace
    /// that owns them) can be created, and a bind mount in them can be made read-only.
    pub user_namespace: bool,
    /// Whether a network namespace can be created: by the server itself or, if it cannot create
    /// user namespaces, by bubblewrap.
    pub network_namespace: bool,
    /// Whether every address can be routed to a gate in such a network namespace.
    pub managed_network: bool,
    /// Whether a new `/proc` can be mounted for the PID namespace of a sandbox. In most containers
    /// it cannot.
    pub fresh_proc: bool,
    /// The path of a bubblewrap that works here. It is searched for in system directories, not in
    /// `PATH`.
    pub bubblewrap: Option<PathBuf>,
    pub seatbelt: bool,
    /// Mechanisms that the operator turned off, whether or not the machine has them.
    pub turned_off: Vec<Mechanism>,
}

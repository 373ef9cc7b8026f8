//! What is really enforced on a process, for whoever started it.

/// The mechanisms that hold one process. What is not here is not claimed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Enforcement {
    /// The ABI of Landlock that is used.
    pub landlock: Option<u32>,
    pub seccomp: bool,
    pub pid_namespace: bool,
    pub network_namespace: bool,
    pub bubblewrap: bool,
    pub seatbelt: bool,
}

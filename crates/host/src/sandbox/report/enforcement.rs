//! What is really enforced on a process, for whoever started it.

/// The mechanisms that hold one process. What is not here is not claimed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Enforcement {
    /// The ABI of Landlock that is used.
    pub landlock: Option<u32>,
    pub seccomp: bool,
    pub pid_namespace: bool,
    pub network_namespace: bool,
    pub network: NetworkEnforcement,
    pub bubblewrap: bool,
    pub seatbelt: bool,
}

/// How the network of a process is restricted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum NetworkEnforcement {
    #[default]
    None,
    /// No socket can reach another machine.
    NoNetwork,
    /// Every connection of every program goes through the gate.
    Transparent,
    /// Programs can only connect to the proxies of the gate, and to other hosts at the ports of
    /// these.
    ProxyOnly,
}

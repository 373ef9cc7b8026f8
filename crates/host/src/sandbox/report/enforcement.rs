//! The mechanisms in force for a process, as reported to its client.

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Enforcement {
    /// The Landlock ABI in use.
    pub landlock: Option<u32>,
    pub seccomp: bool,
    pub pid_namespace: bool,
    pub network_namespace: bool,
    pub network: NetworkEnforcement,
    pub bubblewrap: bool,
    pub seatbelt: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum NetworkEnforcement {
    #[default]
    None,
    /// Programs can create no sockets but connected pairs, which reach no other process.
    NoNetwork,
    /// Every connection of every program goes through the gate.
    Transparent,
    /// Programs can connect only to the ports of the gate's proxies, but on any host.
    ProxyOnly,
}

//! From a policy and what a host has to what has to be done to a process.
//!
//! A [`Plan`] is plain data: everything the keeper needs and nothing it has to decide. Whatever a host cannot enforce is a
//! [`PlanError`]; there is no weaker plan. `decide` and `linux` choose the mechanisms, `mounts` lays out what they cover,
//! `network` and `gate` say how its network is restricted,
//! `devices` keeps disks and terminals out of what is granted, `globs` finds what patterns deny, `codec` carries a plan to the keeper.

mod codec;
mod decide;
#[cfg(target_os = "linux")]
mod devices;
mod error;
mod gate;
#[cfg(target_os = "linux")]
mod globs;
#[cfg(target_os = "linux")]
mod linux;
#[cfg(target_os = "linux")]
mod mounts;
#[cfg(target_os = "linux")]
mod network;
#[cfg(target_os = "linux")]
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

pub use decide::StartFacts;
pub use error::{Lack, PlanError, Requirement};
pub use gate::{GateRequest, GateSocket, GateSockets, HTTP_PROXY_PORT, SOCKS5_PORT};

use super::policy::{Access, Grant, Network};
use crate::sandbox::report::enforcement::{Enforcement, NetworkEnforcement};

/// How one process is confined.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    pub tier: Tier,
    /// In the order in which they are made: sorted by path, so one comes after every one above it. Empty for [`Tier::Direct`].
    pub mounts: Vec<Mount>,
    pub landlock: Option<LandlockRules>,
    /// A complete BPF program, as `struct sock_filter` in native order. Empty for [`Tier::Seatbelt`].
    pub seccomp: Vec<u8>,
    pub network: Network,
    pub network_namespace: NetworkNamespace,
    /// Whether to mount a `/proc` of its own in the new PID namespace.
    pub fresh_proc: bool,
    /// Whether a program that is not given a terminal can make some, which nobody outside can see. Only with [`Tier::Namespaces`].
    pub own_terminals: bool,
}

/// The network namespace of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NetworkNamespace {
    /// That of the server.
    Inherited,
    /// One in which nothing can be reached.
    Empty,
    /// One of its own, where every address leads to these sockets.
    Gated(GateSockets),
}

/// What the process is put into before its own rights are taken away.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tier {
    /// Nothing: Landlock and seccomp suffice.
    Direct,
    /// New user, mount, PID and IPC namespaces.
    Namespaces,
    /// The same, made by this program.
    Bubblewrap(PathBuf),
    /// The profile for macOS's `sandbox_init`.
    Seatbelt(String),
}

/// One change to the mounts that the process sees.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mount {
    Cover(Cover),
    Regrant(Regrant),
    /// An empty directory in memory in the place of another one. Everybody in the sandbox can write there, and nobody else sees it.
    Fresh(PathBuf),
}

/// Takes access away from everything at and below a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cover {
    /// Absolute and real. `/` can only be the first, is [`CoverKind::ReadOnly`], and means every mount there is.
    pub path: PathBuf,
    pub kind: CoverKind,
    pub is_directory: bool,
    /// Nothing is there, and the process could create it: a placeholder has to be. What is missing above it is part of a
    /// writable root, and is made for good.
    pub missing: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CoverKind {
    ReadOnly,
    /// Neither content nor names can be read.
    Hidden,
    /// The same for a symlink, which is covered itself: what it leads to stays as it is under its
    /// own name.
    HiddenLink,
    /// Read-only, and no device in it can be opened.
    NoDevices,
}

/// What was there before the covers above it, in its place again. It exists.
///
/// One with [`Access::Write`] in a writable place only pins it: what is a mount point cannot be renamed, nor can what it is to protect
/// then be planted under its old name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Regrant {
    pub path: PathBuf,
    /// Never [`Access::Deny`]; with [`Access::Read`] it is read-only.
    pub access: Access,
    pub is_directory: bool,
}

/// What Landlock is to enforce. Signals and abstract sockets are always kept inside, where the ABI can.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LandlockRules {
    pub abi: u32,
    /// `None`: files are not restricted.
    pub grants: Option<Vec<Grant>>,
    /// Directories where, at any depth, the names can be listed and nothing else is granted.
    pub listed: Vec<PathBuf>,
    /// The only ports to which TCP connections can be made. `None`: TCP is not restricted.
    pub connect_ports: Option<Vec<u16>>,
}

impl Mount {
    pub fn path(&self) -> &Path {
        match self {
            Self::Cover(cover) => &cover.path,
            Self::Regrant(regrant) => &regrant.path,
            Self::Fresh(path) => path,
        }
    }
}

impl Plan {
    pub fn enforcement(&self) -> Enforcement {
        Enforcement {
            landlock: self.landlock.as_ref().map(|rules| rules.abi),
            seccomp: !self.seccomp.is_empty(),
            pid_namespace: matches!(self.tier, Tier::Namespaces | Tier::Bubblewrap(_)),
            network_namespace: self.network_namespace != NetworkNamespace::Inherited,
            network: self.network_enforcement(),
            bubblewrap: matches!(self.tier, Tier::Bubblewrap(_)),
            seatbelt: matches!(self.tier, Tier::Seatbelt(_)),
        }
    }

    fn network_enforcement(&self) -> NetworkEnforcement {
        match (self.network, &self.network_namespace) {
            (Network::Enabled, _) => NetworkEnforcement::None,
            (Network::Restricted, _) => NetworkEnforcement::NoNetwork,
            (Network::Managed, NetworkNamespace::Gated(_)) => NetworkEnforcement::Transparent,
            (Network::Managed, _) => NetworkEnforcement::ProxyOnly,
        }
    }
}

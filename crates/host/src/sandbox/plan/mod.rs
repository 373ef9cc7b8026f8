//! Turns a policy and the capabilities of a host into the restrictions of a process.
//!
//! A [`Plan`] is plain data: it holds everything that the keeper needs and leaves it no decisions.
//! A policy that the host cannot enforce is a [`PlanError`]; there is no weaker plan. `decide` and
//! `linux` choose the mechanisms, `mounts` lays out their mounts, `network` and `gate` restrict the
//! network, `devices` excludes disks and terminals from grants, `globs` finds the matches of
//! denying patterns, and `codec` encodes a plan for the keeper.

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

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    pub tier: Tier,
    /// In mount order: sorted by path, so a mount comes after all mounts above it. Empty for
    /// [`Tier::Direct`] and [`Tier::Seatbelt`].
    pub mounts: Vec<Mount>,
    pub landlock: Option<LandlockRules>,
    /// A complete BPF program, as an array of `struct sock_filter` in native byte order. Empty for
    /// [`Tier::Seatbelt`].
    pub seccomp: Vec<u8>,
    pub network: Network,
    pub network_namespace: NetworkNamespace,
    pub fresh_proc: bool,
    /// Whether a program without a terminal can create private terminals, invisible outside. Only
    /// with [`Tier::Namespaces`].
    pub own_terminals: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NetworkNamespace {
    Inherited,
    Empty,
    /// A private namespace in which every address leads to these sockets.
    Gated(GateSockets),
}

/// The isolation of the process, set up before Landlock and seccomp.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tier {
    /// Nothing but Landlock and seccomp.
    Direct,
    /// New mount, PID and IPC namespaces and, unless the server may administer mounts, a new user
    /// namespace.
    Namespaces,
    /// The same namespaces, created by the bubblewrap at this path.
    Bubblewrap(PathBuf),
    /// The profile for macOS's `sandbox_init`.
    Seatbelt(String),
}

/// One change to the mounts that the process sees.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mount {
    Cover(Cover),
    Regrant(Regrant),
    /// An empty in-memory directory mounted over an existing directory. Every process in the
    /// sandbox can write there, and no process outside can see it.
    Fresh(PathBuf),
}

/// Reduces access to everything at and below a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cover {
    /// Absolute and real. A cover of `/` is the first mount, is [`CoverKind::ReadOnly`], and
    /// applies to every existing mount.
    pub path: PathBuf,
    pub kind: CoverKind,
    pub is_directory: bool,
    /// The path does not exist, but the process could create it, so a placeholder is needed.
    /// Missing directories above it belong to a writable root and are created permanently.
    pub missing: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CoverKind {
    ReadOnly,
    /// Neither content nor names can be read.
    Hidden,
    /// Hides a symlink, but not its target.
    HiddenLink,
    /// Read-only, and no device in it can be opened.
    NoDevices,
}

/// Restores a path below a cover to its state before the cover. The path existed when the plan was
/// made.
///
/// With [`Access::Write`] in a writable place it only pins the path: a mount point cannot be
/// renamed, so no other directory can take the place of a directory with protected content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Regrant {
    pub path: PathBuf,
    /// Never [`Access::Deny`]. [`Access::Read`] mounts read-only.
    pub access: Access,
    pub is_directory: bool,
}

/// The rules for Landlock. Signals and abstract sockets are always confined if the ABI supports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LandlockRules {
    pub abi: u32,
    /// `None`: files are not restricted.
    pub grants: Option<Vec<Grant>>,
    /// Directories in which names can be listed at any depth, without any other access.
    pub listed: Vec<PathBuf>,
    /// The only ports to which TCP connections are allowed. `None`: TCP is not restricted.
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

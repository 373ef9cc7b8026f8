//! Reasons why a policy cannot be enforced on this host.

use std::fmt;
use std::io;
use std::path::PathBuf;

use crate::sandbox::policy::TooMuch;
use crate::sandbox::probe::WITHOUT_VARIABLE;
use crate::sandbox::report::capabilities::Capabilities;
use crate::sandbox::report::mechanism::Mechanism;

#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    #[error("{need}; this requires {mechanism} ({lack}){}", lack.advice(mechanism.remedy()))]
    Missing { need: Requirement, mechanism: Mechanism, lack: Lack },
    #[error(
        "{need}; this requires user namespaces ({namespaces}) or bubblewrap ({bubblewrap}){}",
        namespaces.max(bubblewrap).advice(
            "`apt-get install bubblewrap`, or let this user create user namespaces; `exec-server doctor` shows the obstacle"
        )
    )]
    NoIsolation { need: Requirement, namespaces: Lack, bubblewrap: Lack },
    #[error("sandboxes are not supported on {system} yet")]
    UnsupportedSystem { system: &'static str },
    #[error("cannot inspect {}: {source}", path.display())]
    Unknown { path: PathBuf, source: io::Error },
    #[error(
        "sandbox path {} has become a symlink; replace it with a file or directory",
        path.display()
    )]
    Symlink { path: PathBuf },
    #[error(
        "cannot enforce the denied pattern that matches the symlink {}: bubblewrap would hide its target {}, which the sandbox needs; remove the symlink, or deny less",
        link.display(), target.display()
    )]
    NeededTarget { link: PathBuf, target: PathBuf },
    #[error(
        "scanning for denied patterns exceeds the limit of {limit}; the limit was reached below {}; deny directories by path, or lower glob_scan_max_depth",
        base.display()
    )]
    TooMuchToScan { base: PathBuf, limit: TooMuch },
    #[error(
        "files were renamed or removed during every scan for denied patterns, most recently {}; try again",
        path.display()
    )]
    Unsteady { path: PathBuf },
    #[error(
        "the policy needs more than {limit} mounts; deny directories by path rather than files by patterns"
    )]
    TooManyMounts { limit: usize },
    #[error(
        "the policy denies /proc, but bubblewrap needs it to start a program; let the server create user namespaces, or do not deny /proc"
    )]
    HiddenProc,
}

impl PlanError {
    pub(super) fn missing(need: Requirement, mechanism: Mechanism, has: &Capabilities) -> Self {
        Self::Missing { need, mechanism, lack: Lack::of(mechanism, has) }
    }

    pub(super) fn no_isolation(need: Requirement, has: &Capabilities) -> Self {
        let namespaces = Lack::of(Mechanism::UserNamespace, has);
        Self::NoIsolation { need, namespaces, bubblewrap: Lack::of(Mechanism::Bubblewrap, has) }
    }

    pub(super) fn is_permission_denied(&self) -> bool {
        matches!(self, Self::Unknown { source, .. } if source.kind() == io::ErrorKind::PermissionDenied)
    }
}

/// Why a mechanism is not available. If two mechanisms are missing, the larger value decides the
/// advice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Lack {
    TurnedOff,
    NotUsable,
}

impl Lack {
    fn of(mechanism: Mechanism, has: &Capabilities) -> Self {
        if has.turned_off.contains(&mechanism) { Self::TurnedOff } else { Self::NotUsable }
    }

    /// An operator who turned the mechanism off needs no advice.
    fn advice(self, remedy: &str) -> String {
        match self {
            Self::TurnedOff => String::new(),
            Self::NotUsable => format!("; to get it: {remedy}"),
        }
    }
}

impl fmt::Display for Lack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TurnedOff => write!(f, "turned off by {WITHOUT_VARIABLE}"),
            Self::NotUsable => f.write_str("not usable on this host"),
        }
    }
}

/// The reason why a sandbox requires a mechanism.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Requirement {
    #[error("the policy restricts files")]
    Files,
    #[error("every sandbox denies dangerous system calls")]
    SystemCalls,
    #[error("the policy protects {} inside a granted directory", path.display())]
    CarveOut { path: PathBuf },
    #[error("every sandbox must confine signals, {}", without_scopes(*abi))]
    Signals { abi: u32 },
    #[error("managed networking must see every connection (network.require = transparent)")]
    EveryConnection,
    #[error("{}, so managed networking must see every connection", without_ports(*abi))]
    Ports { abi: u32 },
}

/// ABI 0 means that Landlock is missing, forbidden or turned off.
fn without_scopes(abi: u32) -> String {
    match abi {
        0 => "even without Landlock".to_owned(),
        abi => format!("which this kernel's Landlock (ABI {abi}) cannot do"),
    }
}

fn without_ports(abi: u32) -> String {
    match abi {
        0 => "without Landlock no ports can be restricted".to_owned(),
        abi => format!(
            "this kernel's Landlock (ABI {abi}) cannot restrict ports (Linux 6.7 or later can)"
        ),
    }
}

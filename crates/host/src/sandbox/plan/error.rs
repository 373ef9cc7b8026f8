//! Why a policy cannot be enforced here.

use std::fmt;
use std::io;
use std::path::PathBuf;

use crate::sandbox::policy::TooMuch;
use crate::sandbox::probe::WITHOUT_VARIABLE;
use crate::sandbox::report::capabilities::Capabilities;
use crate::sandbox::report::mechanism::Mechanism;

#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    #[error("{need}, which takes {mechanism} ({lack}){}", lack.advice(mechanism.remedy()))]
    Missing { need: Requirement, mechanism: Mechanism, lack: Lack },
    #[error(
        "{need}, which takes user namespaces ({namespaces}) or bubblewrap ({bubblewrap}){}",
        namespaces.max(bubblewrap).advice(
            "`apt-get install bubblewrap`, or let this user create user namespaces; `exec-server doctor` says what is in the way"
        )
    )]
    NoIsolation { need: Requirement, namespaces: Lack, bubblewrap: Lack },
    #[error("programs cannot be confined on {system}: there is no sandbox for it yet")]
    UnsupportedSystem { system: &'static str },
    #[error("cannot tell what {} is: {source}", path.display())]
    Unknown { path: PathBuf, source: io::Error },
    #[error("{} has become a symlink, so it cannot be protected", path.display())]
    Symlink { path: PathBuf },
    #[error(
        "the denied pattern that matches the symlink {} cannot be enforced: bubblewrap would hide {} with it, which the sandbox needs; remove the symlink, or deny less",
        link.display(), target.display()
    )]
    NeededTarget { link: PathBuf, target: PathBuf },
    #[error(
        "to look for the denied patterns below {} takes more than {limit}; deny directories by path, or lower glob_scan_max_depth",
        base.display()
    )]
    TooMuchToScan { base: PathBuf, limit: TooMuch },
    #[error(
        "{} was renamed or removed again and again while the denied patterns were looked for",
        path.display()
    )]
    Unsteady { path: PathBuf },
    #[error(
        "the policy takes more than {limit} mounts; deny directories by path rather than files by patterns"
    )]
    TooManyMounts { limit: usize },
    #[error(
        "the policy denies /proc, without which bubblewrap cannot start a program; that takes user namespaces, or a policy that denies less"
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

/// Why a mechanism is not there, in the order of what can be done about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Lack {
    TurnedOff,
    NotUsable,
}

impl Lack {
    fn of(mechanism: Mechanism, has: &Capabilities) -> Self {
        if has.turned_off.contains(&mechanism) { Self::TurnedOff } else { Self::NotUsable }
    }

    /// Whoever turned it off needs none.
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

/// What a policy asks for that takes a mechanism.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Requirement {
    #[error("the policy restricts files")]
    Files,
    #[error("every sandbox denies dangerous system calls")]
    SystemCalls,
    #[error("the policy protects {} inside of what it grants", path.display())]
    CarveOut { path: PathBuf },
    #[error("Landlock of this kernel (ABI {abi}) does not keep signals inside")]
    Signals { abi: u32 },
    #[error("managed networking has to see every connection (network.require = transparent)")]
    EveryConnection,
    #[error(
        "Landlock of this kernel (ABI {abi}) does not restrict ports, so managed networking needs a namespace"
    )]
    Ports { abi: u32 },
}

//! Why a policy cannot be enforced here.

use std::io;
use std::path::PathBuf;

use crate::sandbox::mechanism::Mechanism;
use crate::sandbox::policy::TooMuch;

#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    #[error("{need}, and this host has no {mechanism}; to get it: {}", mechanism.remedy())]
    Missing { need: Need, mechanism: Mechanism },
    #[error(
        "{need}, which takes user namespaces or bubblewrap, and this host has neither; to get them: {}; or {}",
        Mechanism::UserNamespace.remedy(),
        Mechanism::Bubblewrap.remedy()
    )]
    NoIsolation { need: Need },
    #[error("programs cannot be confined on {system}: there is no sandbox for it yet")]
    UnsupportedSystem { system: &'static str },
    #[error("cannot tell what {} is", path.display())]
    Unknown { path: PathBuf, source: io::Error },
    #[error("{} has become a symlink, so it cannot be protected", path.display())]
    Symlink { path: PathBuf },
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
}

impl PlanError {
    pub(super) fn is_permission_denied(&self) -> bool {
        matches!(self, Self::Unknown { source, .. } if source.kind() == io::ErrorKind::PermissionDenied)
    }
}

/// What a policy asks for that takes a mechanism.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Need {
    #[error("the policy restricts files")]
    Files,
    #[error("every sandbox denies dangerous system calls")]
    SystemCalls,
    #[error("the policy protects {} inside of what it grants", path.display())]
    CarveOut { path: PathBuf },
    #[error("Landlock of this kernel (ABI {abi}) does not keep signals inside")]
    Signals { abi: u32 },
}

//! The steps that confine a process, with their names for error messages.
//!
//! No program runs in an incomplete sandbox: the first failed step aborts the start and is reported
//! to the caller.

use std::fmt;

/// One step. Steps for one mount of the plan carry its index in
/// [`Plan::mounts`](crate::sandbox::Plan).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SandboxStep {
    /// The plan could not be decoded, or is for another system.
    Plan,
    Placeholder {
        mount: u32,
    },
    Namespaces,
    IdMaps,
    Routes,
    GateSockets,
    Init,
    Proc,
    Mounts,
    Mount {
        mount: u32,
    },
    Landlock,
    Capabilities,
    NoNewPrivileges,
    Seccomp,
    Bubblewrap,
    /// Bubblewrap ended before it started the program. Its messages went to the program's stderr.
    BubblewrapEnded {
        /// The exit code, or 128 plus the number of the signal that ended bubblewrap.
        code: u32,
    },
}

impl SandboxStep {
    pub fn mount(self) -> Option<usize> {
        match self {
            Self::Placeholder { mount } | Self::Mount { mount } => usize::try_from(mount).ok(),
            _ => None,
        }
    }

    #[cfg(target_os = "linux")]
    pub(crate) fn encode(self) -> [u32; 2] {
        match self {
            Self::Plan => [1, 0],
            Self::Placeholder { mount } => [2, mount],
            Self::Namespaces => [3, 0],
            Self::IdMaps => [4, 0],
            Self::Init => [5, 0],
            Self::Proc => [6, 0],
            Self::Mounts => [7, 0],
            Self::Mount { mount } => [8, mount],
            Self::Landlock => [9, 0],
            Self::Capabilities => [10, 0],
            Self::NoNewPrivileges => [11, 0],
            Self::Seccomp => [12, 0],
            Self::Bubblewrap => [13, 0],
            Self::BubblewrapEnded { code } => [14, code],
            Self::Routes => [15, 0],
            Self::GateSockets => [16, 0],
        }
    }

    #[cfg(target_os = "linux")]
    pub(crate) fn decode([number, detail]: [u32; 2]) -> Option<Self> {
        Some(match number {
            1 => Self::Plan,
            2 => Self::Placeholder { mount: detail },
            3 => Self::Namespaces,
            4 => Self::IdMaps,
            5 => Self::Init,
            6 => Self::Proc,
            7 => Self::Mounts,
            8 => Self::Mount { mount: detail },
            9 => Self::Landlock,
            10 => Self::Capabilities,
            11 => Self::NoNewPrivileges,
            12 => Self::Seccomp,
            13 => Self::Bubblewrap,
            14 => Self::BubblewrapEnded { code: detail },
            15 => Self::Routes,
            16 => Self::GateSockets,
            _ => return None,
        })
    }
}

impl fmt::Display for SandboxStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Plan => "reading the plan",
            Self::Placeholder { .. } => "making a placeholder at",
            Self::Namespaces => "entering new namespaces",
            Self::IdMaps => "mapping user and group into the user namespace",
            Self::Routes => "setting the routes of the network namespace",
            Self::GateSockets => "binding the sockets of the network gate",
            Self::Init => "starting the first process of the PID namespace",
            Self::Proc => "mounting /proc",
            Self::Mounts => "making mounts private",
            Self::Mount { .. } => "mounting on",
            Self::Landlock => "confining the process with Landlock",
            Self::Capabilities => "dropping capabilities",
            Self::NoNewPrivileges => "setting no_new_privs",
            Self::Seccomp => "restricting system calls with seccomp",
            Self::Bubblewrap | Self::BubblewrapEnded { .. } => "running bubblewrap",
        })
    }
}

#[cfg(target_os = "linux")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StepFailure {
    pub(crate) step: SandboxStep,
    pub(crate) errno: i32,
}

#[cfg(target_os = "linux")]
pub(crate) const FAILURE_LEN: usize = 12;

/// Encodes, for the keeper, the two numbers of the failed step or stage, and the errno.
#[cfg(target_os = "linux")]
pub(crate) fn to_bytes([number, detail]: [u32; 2], errno: i32) -> [u8; FAILURE_LEN] {
    let mut bytes = [0; FAILURE_LEN];
    let (slots, _) = bytes.as_chunks_mut::<4>();
    for (slot, field) in slots.iter_mut().zip([number, detail, errno.cast_unsigned()]) {
        *slot = field.to_ne_bytes();
    }
    bytes
}

#[cfg(target_os = "linux")]
pub(crate) fn from_bytes(bytes: &[u8; FAILURE_LEN]) -> ([u32; 2], i32) {
    let (fields, _) = bytes.as_chunks::<4>();
    let field = |index: usize| fields.get(index).map_or(0, |field| u32::from_ne_bytes(*field));
    ([field(0), field(1)], field(2).cast_signed())
}

#[cfg(target_os = "linux")]
impl SandboxStep {
    pub(crate) fn failed(self, errno: rustix::io::Errno) -> StepFailure {
        StepFailure { step: self, errno: errno.raw_os_error() }
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn steps_survive_encoding_and_decoding() {
        let mut known = 0;
        for number in 0..64 {
            if let Some(step) = SandboxStep::decode([number, 0]) {
                assert_eq!(step.encode(), [number, 0]);
                known += 1;
            }
        }
        assert_eq!(known, 16);
        let step = SandboxStep::Mount { mount: 7 };
        assert_eq!(SandboxStep::decode(step.encode()), Some(step));
        assert_eq!(from_bytes(&to_bytes(step.encode(), -5)), (step.encode(), -5));
    }
}

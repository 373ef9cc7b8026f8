//! What a program or a file operation may reach, and how this machine is made to keep it to that.
//!
//! A [`Policy`] says which access every path has. It is pure: it knows nothing of the kernel, and it never weakens what was asked
//! for, since what it cannot express is an error.

#[cfg(target_os = "linux")]
pub(crate) mod bubblewrap;
mod capabilities;
#[cfg(target_os = "linux")]
mod descriptor_room;
#[cfg(target_os = "linux")]
pub(crate) mod empty_network;
mod enforcement;
mod error;
#[cfg(target_os = "linux")]
pub(crate) mod init;
#[cfg(target_os = "linux")]
pub mod landlock;
#[cfg(target_os = "linux")]
pub(crate) mod lockdown;
mod mechanism;
#[cfg(target_os = "linux")]
pub(crate) mod missing_roots;
#[cfg(target_os = "linux")]
mod mount_call;
#[cfg(target_os = "linux")]
pub(crate) mod mounts;
#[cfg(target_os = "linux")]
pub(crate) mod namespaces;
#[cfg(target_os = "linux")]
pub(crate) mod placeholder;
mod plan;
mod policy;
mod probe;
pub mod seatbelt;
#[cfg(target_os = "linux")]
pub mod seccomp;
#[cfg(target_os = "linux")]
pub(crate) mod start_cancellation;
pub(crate) mod step;
#[cfg(target_os = "linux")]
pub(crate) mod terminals;
mod write_history;

pub use capabilities::Capabilities;
pub use enforcement::Enforcement;
pub use error::SandboxError;
pub use mechanism::Mechanism;
pub use plan::{
    Cover, CoverKind, Lack, LandlockRules, Mount, Need, Plan, PlanError, Regrant, Tier,
};
pub use policy::{
    Access, CarveOut, DeclaredFiles, DeclaredPolicy, DeniedGlob, Entry, EntryPath, Grant, Hold,
    HostNames, LinkDoubt, LinkTrust, NameKind, Names, Network, Policy, PolicyContext, PolicyError,
    Rule, TooMuch, WrittenRoots,
};
pub use probe::{Finding, Findings, PROBE_ARG, WITHOUT_VARIABLE, run_probe};
pub use step::SandboxStep;
pub use write_history::{WriteHistory, WriteHistoryError};

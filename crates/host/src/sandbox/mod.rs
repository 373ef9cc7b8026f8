//! The files and networks that a program or a file operation may access, and how this machine
//! enforces that.
//!
//! A [`Policy`] decides the access to every path, regardless of the mechanisms that enforce it. A
//! request that it cannot express is an error; it is never weakened.

#[cfg(target_os = "linux")]
mod kernel;
mod macos;
mod plan;
mod policy;
mod probe;
pub(crate) mod report;
#[cfg(target_os = "linux")]
pub(crate) mod setup;
mod write_history;

#[cfg(target_os = "linux")]
pub use kernel::{landlock, seccomp};
pub use macos::seatbelt;
pub use plan::{
    Cover, CoverKind, GateRequest, GateSocket, GateSockets, HTTP_PROXY_PORT, Lack, LandlockRules,
    Mount, NetworkNamespace, Plan, PlanError, Regrant, Requirement, SOCKS5_PORT, StartFacts, Tier,
};
pub use policy::{
    Access, CarveOut, DeclaredFiles, DeclaredPolicy, DeniedGlob, Entry, EntryPath, Grant, Hold,
    HostNames, LinkDoubt, LinkTrust, NameKind, Names, Network, PROTECTED_NAMES, Policy,
    PolicyContext, PolicyError, Rule, TooMuch, WrittenRoots,
};
pub use probe::{Finding, Findings, PROBE_ARG, WITHOUT_VARIABLE, run_probe};
pub use report::capabilities::Capabilities;
pub use report::enforcement::{Enforcement, NetworkEnforcement};
pub use report::error::SandboxError;
pub use report::mechanism::Mechanism;
pub use report::step::SandboxStep;
pub use write_history::{WriteHistory, WriteHistoryError};

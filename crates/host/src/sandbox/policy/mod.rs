//! Turns the entries that a request declares into the access to every path.
//!
//! `declared` holds the request, `resolve` resolves its names once, and `effective` gives the
//! access to any path. All file system access goes through [`Names`], so the module is tested
//! without a file system. Nothing here enforces anything or knows what a host can enforce.

mod declared;
mod draft;
mod effective;
mod effort;
mod error;
mod essentials;
#[cfg(test)]
pub(in crate::sandbox) mod fake;
mod globs;
mod names;
mod pattern;
mod plain;
#[cfg(test)]
mod reference;
mod resolve;
mod resolved_path;
mod rules;
mod scan;
#[cfg(test)]
mod tests;

pub use declared::{
    Access, DeclaredFiles, DeclaredPolicy, Entry, EntryPath, LinkTrust, Network, PolicyContext,
    WrittenRoots,
};
pub use effective::{CarveOut, Grant, Policy};
#[cfg(target_os = "linux")]
pub(in crate::sandbox) use effort::Effort;
pub use effort::TooMuch;
pub use error::{LinkDoubt, PolicyError};
pub(in crate::sandbox) use essentials::DEVICES;
#[cfg(target_os = "linux")]
pub(in crate::sandbox) use essentials::MINIMAL;
pub use essentials::PROTECTED_NAMES;
pub use globs::DeniedGlob;
pub use names::{Hold, HostNames, NameKind, Names};
#[cfg(target_os = "linux")]
pub(in crate::sandbox) use resolved_path::existing_target;
pub(in crate::sandbox) use resolved_path::real_path;
pub use rules::Rule;

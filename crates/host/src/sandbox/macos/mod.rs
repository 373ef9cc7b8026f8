//! Preparations for macOS, where no process is confined yet.
//!
//! The Seatbelt profile of a policy is generated and compared with golden files. Still missing: a
//! launcher that starts programs under it, a probe that tests it, a solution for the gap described
//! in [`seatbelt`], and a first run on macOS.

pub mod seatbelt;

//! For macOS, where no process is confined yet.
//!
//! The Seatbelt profile of a policy is written and compared with golden files. Missing to use it: a launcher that starts programs
//! under it, a probe that tries it, an answer to the gap that [`seatbelt`] names, and a first run on macOS.

pub mod seatbelt;

//! What the tests of several crates share. Knows no other crate of ours, so that any may use it.

mod fault_proxy;
mod skipped;
mod temporary_mode;

pub use fault_proxy::{Cut, FaultProxy, Way};
pub use skipped::skipped;
pub use temporary_mode::TemporaryMode;

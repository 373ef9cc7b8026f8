//! Managed networking under attack and in normal use, in an isolated world: recording servers with
//! public, private and metadata addresses, in a network namespace that the test creates.

mod ancestor;
mod attempts;
mod bypass;
mod faults;
mod neighbours;
mod programs;
pub(crate) mod world;

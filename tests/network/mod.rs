//! Managed networking, attacked and used, in a world of its own: recording servers with public,
//! private and metadata addresses, in a network namespace that the test makes.

mod ancestor;
mod attempts;
mod bypass;
mod faults;
mod neighbours;
mod programs;
pub(crate) mod world;

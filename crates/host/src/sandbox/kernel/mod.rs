//! The parts of a plan in the form that the kernel takes them.

pub mod landlock;
pub(super) mod open_real;
pub mod seccomp;

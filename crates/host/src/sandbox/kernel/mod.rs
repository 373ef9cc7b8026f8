//! The parts of a plan in the form that the kernel accepts.

pub mod landlock;
pub(super) mod open_real;
pub mod seccomp;

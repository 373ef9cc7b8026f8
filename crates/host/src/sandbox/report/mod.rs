//! Reports to callers: the mechanisms of this machine, those that restrict a process, and the step
//! that failed.

pub(super) mod capabilities;
pub(super) mod enforcement;
pub(super) mod error;
pub(super) mod mechanism;
pub(crate) mod step;

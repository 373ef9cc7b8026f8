//! Operations on names and directory trees: find, copy, move, remove.

pub(super) mod cancel;
pub(super) mod copy;
pub(super) mod create_directory;
pub mod glob;
pub(super) mod permissions;
pub(super) mod precheck;
pub(super) mod remove;
pub(super) mod rename;
pub(super) mod walk;

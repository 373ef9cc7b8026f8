//! Writes the content of one file, as a whole or in blocks.

pub(super) mod claim;
pub(super) mod condition;
pub(super) mod new_file;
pub(super) mod ownership;
pub(super) mod room;
pub(super) mod staged_file;
pub(super) mod write_file;
pub(super) mod write_lock;

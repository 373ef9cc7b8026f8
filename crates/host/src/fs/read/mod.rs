//! What files and directories contain, and what is known of them. Nothing is changed here.

pub(super) mod links;
pub(super) mod listing;
pub(super) mod metadata;
pub(super) mod open_file;
pub(super) mod read_directory;

//! Reads the content and metadata of files and directories. Changes nothing.

pub(super) mod links;
pub(super) mod listing;
pub(super) mod metadata;
pub(super) mod open_file;
pub(super) mod read_directory;

//! Reads the content and metadata of files and directories. Only `links` changes anything: it also
//! creates symlinks.

pub(super) mod links;
pub(super) mod listing;
pub(super) mod metadata;
pub(super) mod open_file;
pub(super) mod read_directory;

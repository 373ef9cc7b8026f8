//! What the binary can do besides serving, one file per command.

pub(crate) mod config;
pub(crate) mod doctor;

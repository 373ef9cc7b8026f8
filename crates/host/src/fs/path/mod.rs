//! Resolves paths to descriptors.

mod confined_resolve;
pub(super) mod descent;
pub(super) mod destination;
pub(super) mod kind;
pub(super) mod procfs;
pub(super) mod resolve;

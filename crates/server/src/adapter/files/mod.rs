//! File operations, on threads that are confined to the policy of their request.

mod errors;
mod executor;
mod handles;
mod listing;
mod operations;
mod pool;
mod reading;
mod searching;
mod watching;

pub(crate) use executor::{FileExecutors, PolicyScoped};
pub(crate) use handles::{Upload, check_block_len, open, read_block};
pub(crate) use listing::LargeFileCall;
pub(crate) use operations::FileCall;
pub(crate) use pool::{FilePool, can_confine};
pub(crate) use reading::{LargeFile, Reading};
pub(crate) use searching::Searching;
pub(crate) use watching::{ChangeWatch, Watches};

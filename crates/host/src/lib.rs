//! Work on the machine: process trees and their logs, files, sandboxes, networks and HTTP requests.
//!
//! This crate never sees JSON-RPC, connections or sessions. Only this crate contains `unsafe` code,
//! and it is the only part of the server that starts programs.
#![expect(unsafe_code, reason = "the one crate that calls the kernel below the safe wrappers")]

mod available_memory;
#[cfg(target_os = "linux")]
mod child_stack;
pub mod fs;
pub mod http;
mod name_services;
pub mod network;
mod own_process;
pub mod owned_file;
pub mod process;
pub mod sandbox;
pub mod service_manager;
mod user_database;

pub use available_memory::available_memory;
pub use name_services::use_built_in_name_services;
pub use own_process::{
    hangup_is_ignored, protect_own_memory, raise_descriptor_limit, return_freed_memory,
    survive_file_size_limit,
};
pub use user_database::home_directory_of;

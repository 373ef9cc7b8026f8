//! Work on files under a policy, on threads that are really kept to it; as the user who runs the tests, and if that is root, as
//! nobody as well.

#![expect(clippy::unwrap_used, reason = "a step that fails fails its test")]
#![expect(clippy::print_stdout, reason = "what was measured or left out is said")]

mod leases;
mod listing;
mod operations;
mod race;
mod rate;
mod roots;
mod scene;
mod table;
mod threads;
mod trees;
mod ways;

//! File operations under a policy, on threads that the kernel really confines. They run as the user
//! who runs the tests and, if that is root, as nobody as well.

#![expect(clippy::unwrap_used, reason = "a failed step fails its test")]
#![expect(clippy::print_stdout, reason = "tests print measurements and skipped parts")]

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

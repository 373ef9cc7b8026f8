//! Single files on a real kernel: refusals, crash safety and concurrent writers.
#![expect(clippy::unwrap_used, reason = "a failed step fails its test")]

mod blocks;
mod children;
mod conditions;
mod own_process;
mod reading;
mod scene;
mod writing;

//! Single files against a real kernel: what is refused, what survives, and who wins.
#![expect(clippy::unwrap_used, reason = "a step that fails fails its test")]

mod blocks;
mod children;
mod conditions;
mod own_process;
mod reading;
mod scene;
mod writing;

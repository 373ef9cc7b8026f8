//! How a test says that this machine lacks what it needs.

use std::fmt::Display;

/// Prints one line, which `scripts/test` finds in the report of nextest, shows and counts.
#[expect(clippy::print_stdout, reason = "nextest keeps what a test prints")]
pub fn skipped(reason: impl Display) {
    println!("SKIPPED: {reason}");
}

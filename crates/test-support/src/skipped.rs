//! Reports that this machine lacks a requirement of a test.

use std::fmt::Display;

/// Prints one line, which `scripts/test` finds in nextest's report, shows and counts.
#[expect(clippy::print_stdout, reason = "nextest captures a test's output")]
pub fn skipped(reason: impl Display) {
    println!("SKIPPED: {reason}");
}

//! Shared by the tests: servers, clients of several kinds, and access to the process table.

mod client;
pub(crate) mod daemons;
mod files;
mod inbox;
pub(crate) mod machine;
pub(crate) mod numbered_lines;
mod program;
mod recorder;
pub(crate) mod relay;
pub(crate) mod rendezvous;
mod running;
mod server;
mod start;
pub(crate) mod tmux;
pub(crate) mod tokens;
pub(crate) mod wire;

pub(crate) use client::Client;
pub(crate) use exec_server_test_support::{Gate, decoded, encoded};
pub(crate) use files::random_file;
pub(crate) use inbox::{AckingInbox, Inbox, OldStyleInbox, Transcript};
pub(crate) use machine::eventually;
pub(crate) use program::{
    HISTORY_VARIABLE, Outcome, PROGRAM, command, run_command, run_program, run_with_input,
};
pub(crate) use relay::{Relay, RelayBuilder};
pub(crate) use running::Running;
pub(crate) use server::{Server, ServerBuilder};
pub(crate) use start::{Start, program, shell};
pub(crate) use wire::{Cut, frame};

use std::time::Duration;

/// The timeout of every wait. No event takes this long, so a timeout means that it never arrives.
pub(crate) const HANG: Duration = Duration::from_secs(120);

/// A small pseudo-random generator. A seed gives the same numbers in every run.
pub(crate) struct Choices(u64);

impl Choices {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

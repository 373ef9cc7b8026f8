//! What the binary can do besides serving, one file per command.

mod attach;
pub(crate) mod client;
pub(crate) mod completions;
pub(crate) mod config;
pub(crate) mod doctor;
mod kill;
mod listing;
mod logs;
pub(crate) mod man;
mod ps;
mod rm;
mod run;
mod shell;
mod starting;
mod wait;

use std::io::{self, Write};

/// Writes all of it, unless the reader has seen enough, as in `exec-server config | head -1`.
pub(crate) fn print(text: &[u8], out: &mut impl Write) -> io::Result<()> {
    match out.write_all(text).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        outcome => outcome,
    }
}

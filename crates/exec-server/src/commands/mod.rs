//! The commands of the program other than serving, one file or directory per command.

mod ask_network;
mod attach;
mod cat;
pub(crate) mod client;
pub(crate) mod completions;
pub(crate) mod config;
mod cp;
mod credentials;
pub(crate) mod doctor;
mod download;
mod failures;
mod forget;
mod grep;
mod http;
mod kill;
mod listing;
pub(crate) mod login;
mod logs;
mod ls;
pub(crate) mod man;
mod mkdir;
mod ps;
pub(crate) mod rendezvous;
mod rm;
mod run;
pub(crate) mod schema;
mod servers;
mod shell;
mod start_network;
mod starting;
mod status;
pub(crate) mod token;
mod wait;
mod watch;
pub(crate) mod wording;

use std::io::{self, Write};

use crate::foreground::OutputError;
use crate::program::exit_code::ExitStatus;

/// A closed pipe is not an error, as in `exec-server config | head -1`.
pub(crate) fn print(text: &[u8], out: &mut impl Write) -> io::Result<()> {
    match out.write_all(text).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        outcome => outcome,
    }
}

/// Unlike [`print`], fails if the pipe is closed.
fn print_result(text: &[u8], status: ExitStatus) -> anyhow::Result<ExitStatus> {
    let mut out = io::stdout();
    out.write_all(text).and_then(|()| out.flush()).map_err(OutputError::from)?;
    Ok(status)
}

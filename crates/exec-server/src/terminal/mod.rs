//! The user's terminal: raw mode, size, escapes, colours, questions, messages about a lost
//! connection, and text made safe to show. Sends nothing to a server.

mod colour;
mod escape;
mod names;
pub(crate) mod outage;
mod question;
mod raw_mode;
mod untrusted;

pub(crate) use colour::{Colour, Paint};
pub(crate) use escape::{EscapeMachine, HELP, TypedInput};
pub(crate) use names::{Names, escaped};
pub(crate) use question::Questions;
pub(crate) use raw_mode::RawModeGuard;
pub(crate) use untrusted::{is_harmful, json_line, printable, printable_lines};

use std::io::{self, IsTerminal as _};
use std::os::fd::AsFd;

use rustix::termios::tcgetwinsize;

/// Returns rows and columns of the first standard stream that is a terminal of known size.
pub(crate) fn size() -> Option<(u16, u16)> {
    size_of(io::stdout()).or_else(|| size_of(io::stdin())).or_else(|| size_of(io::stderr()))
}

/// Returns `None` if standard output is not a terminal, or is one of unknown size.
pub(crate) fn size_of_stdout() -> Option<(u16, u16)> {
    size_of(io::stdout())
}

pub(crate) fn size_of_stderr() -> Option<(u16, u16)> {
    size_of(io::stderr())
}

fn size_of(stream: impl AsFd) -> Option<(u16, u16)> {
    let size = tcgetwinsize(stream).ok()?;
    (size.ws_row > 0 && size.ws_col > 0).then_some((size.ws_row, size.ws_col))
}

pub(crate) fn is_stdin_a_terminal() -> bool {
    io::stdin().is_terminal()
}

//! Why a command stops that prints while it works.

use std::io;

pub(super) enum CommandError {
    Work(anyhow::Error),
    /// Nobody takes what is printed.
    Output(io::Error),
}

impl<E: Into<anyhow::Error>> From<E> for CommandError {
    fn from(error: E) -> Self {
        Self::Work(error.into())
    }
}

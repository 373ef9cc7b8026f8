//! Why a command stops that prints while it works.

use std::io;

pub(super) enum Problem {
    Work(anyhow::Error),
    /// Nobody takes what is printed.
    Output(io::Error),
}

impl<E: Into<anyhow::Error>> From<E> for Problem {
    fn from(error: E) -> Self {
        Self::Work(error.into())
    }
}

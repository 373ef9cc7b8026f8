//! Bytes that come in pieces, as an `AsyncRead` gives them out: what is left of the last piece, then the end or the
//! failure.

use std::io;

use bytes::{Buf as _, Bytes};
use exec_server_client::ExecServerError;
use tokio::io::ReadBuf;

#[derive(Debug, Default)]
pub(crate) struct Pieces {
    rest: Bytes,
    state: State,
}

#[derive(Debug, Default)]
enum State {
    #[default]
    Open,
    Ended,
    Failed(ExecServerError),
}

impl Pieces {
    /// Nothing is left to give out, and more may come.
    pub(crate) fn is_wanting(&self) -> bool {
        self.rest.is_empty() && matches!(self.state, State::Open)
    }

    /// Follows on what was given out; the caller waits until that is all.
    pub(crate) fn put(&mut self, piece: Bytes) {
        debug_assert!(self.rest.is_empty(), "a piece was still being given out");
        self.rest = piece;
    }

    /// After what was put.
    pub(crate) fn end(&mut self) {
        self.state = State::Ended;
    }

    /// After what was put. Stays.
    pub(crate) fn fail(&mut self, error: ExecServerError) {
        self.state = State::Failed(error);
    }

    pub(crate) fn give_out(&mut self, buffer: &mut ReadBuf<'_>) -> io::Result<()> {
        if !self.rest.is_empty() {
            let len = self.rest.len().min(buffer.remaining());
            buffer.put_slice(&self.rest[..len]);
            self.rest.advance(len);
            return Ok(());
        }
        match &self.state {
            State::Failed(error) => Err(io::Error::other(error.clone())),
            State::Open | State::Ended => Ok(()),
        }
    }
}

//! A buffer between a source of chunks and an `AsyncRead`: gives out one chunk at a time, and at
//! last the end or the error of the source.

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
    /// Whether all bytes are consumed and more may follow.
    pub(crate) fn is_wanting(&self) -> bool {
        self.rest.is_empty() && matches!(self.state, State::Open)
    }

    /// Adds the next chunk; the previous one must be consumed.
    pub(crate) fn put(&mut self, piece: Bytes) {
        debug_assert!(self.rest.is_empty(), "a piece was still being given out");
        self.rest = piece;
    }

    /// Marks the end, after the chunk in the buffer.
    pub(crate) fn end(&mut self) {
        self.state = State::Ended;
    }

    /// Marks a permanent error, after the chunk in the buffer.
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

//! The standard input of a process as an `AsyncWrite` that behaves like a pipe.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};

use bytes::BytesMut;
use exec_server_client::ExecServerError;
use exec_server_protocol::WriteStatus;
use tokio::io::{AsyncReadExt as _, AsyncWrite, DuplexStream, duplex};
use tokio::task::JoinHandle;

use crate::ExecProcess;

/// What the pipe holds, as much as one of the kernel's.
const PIPE_BYTES: usize = 64 << 10;

/// Writes to a process in order, without anybody having to flush: a task of its own hands over what is written, one
/// call at a time, and gathers up to 64 KiB meanwhile.
///
/// As with a pipe, dropping the writer ends the standard input after what was written. `shutdown` does so too, and
/// waits for it. A process that no longer reads is a `BrokenPipe`. Must be made within a tokio runtime.
#[derive(Debug)]
pub struct StdinWriter {
    pipe: DuplexStream,
    carrier: Option<JoinHandle<()>>,
    failure: Arc<OnceLock<Failure>>,
}

/// Why what was written did not all arrive.
#[derive(Debug)]
enum Failure {
    StdinClosed,
    Error(ExecServerError),
}

impl StdinWriter {
    pub fn new(process: Arc<dyn ExecProcess>) -> Self {
        let (pipe, other_end) = duplex(PIPE_BYTES);
        let failure = Arc::new(OnceLock::new());
        let carrier = tokio::spawn({
            let failure = Arc::clone(&failure);
            async move {
                let mut other_end = other_end;
                if let Err(why) = carry(&mut other_end, &*process).await {
                    // Before the pipe breaks: whoever meets the broken pipe looks here for the reason.
                    let _ = failure.set(why);
                }
            }
        });
        Self { pipe, carrier: Some(carrier), failure }
    }

    /// The pipe's own error, or better the reason for it.
    fn explain(&self, error: io::Error) -> io::Error {
        match self.failure.get() {
            None => error,
            Some(failure) => failure.to_io(),
        }
    }
}

impl AsyncWrite for StdinWriter {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.pipe).poll_write(context, bytes));
        Poll::Ready(written.map_err(|error| self.explain(error)))
    }

    /// Nothing to do: what is written is on its way.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(match self.failure.get() {
            None => Ok(()),
            Some(failure) => Err(failure.to_io()),
        })
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let _ = ready!(Pin::new(&mut self.pipe).poll_shutdown(context));
        if let Some(carrier) = &mut self.carrier {
            let _ = ready!(Pin::new(carrier).poll(context));
            self.carrier = None;
        }
        self.poll_flush(context)
    }
}

impl Failure {
    fn to_io(&self) -> io::Error {
        match self {
            Self::StdinClosed => io::ErrorKind::BrokenPipe.into(),
            Self::Error(error) => io::Error::other(error.clone()),
        }
    }
}

/// Hands over what comes through the pipe, then ends the standard input.
async fn carry(pipe: &mut DuplexStream, process: &dyn ExecProcess) -> Result<(), Failure> {
    let mut buffer = BytesMut::with_capacity(PIPE_BYTES);
    while pipe.read_buf(&mut buffer).await.unwrap_or(0) > 0 {
        let written = process.write(buffer.split().freeze()).await.map_err(Failure::Error)?;
        if written != WriteStatus::Accepted {
            return Err(Failure::StdinClosed);
        }
        buffer.reserve(PIPE_BYTES);
    }
    // Whoever closed it, it is closed.
    process.close_stdin().await.map(drop).map_err(Failure::Error)
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt as _;

    use super::super::fake::FakeProcess;
    use super::*;

    #[tokio::test]
    async fn what_is_written_sets_out_without_a_flush() {
        let process = FakeProcess::new();
        let mut stdin = StdinWriter::new(process.handle());
        for word in ["one", "two"] {
            stdin.write_all(word.as_bytes()).await.unwrap();
            process.called(word).await;
        }
    }

    #[tokio::test]
    async fn what_comes_while_a_write_is_under_way_is_gathered() {
        let process = FakeProcess::new();
        process.hold_writes();
        let mut stdin = StdinWriter::new(process.handle());
        for word in ["one ", "two ", "three"] {
            stdin.write_all(word.as_bytes()).await.unwrap();
        }
        for _ in 0..3 {
            process.accept_write();
        }
        stdin.shutdown().await.unwrap();
        assert_eq!(process.calls().concat(), "one two threeclose");
        assert_eq!(stdin.write(b"x").await.unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    }

    #[tokio::test]
    async fn dropping_it_ends_the_input_after_what_was_written() {
        let process = FakeProcess::new();
        let mut stdin = StdinWriter::new(process.handle());
        stdin.write_all(b"last words").await.unwrap();
        drop(stdin);
        process.called("close").await;
        assert_eq!(process.calls(), ["last words", "close"]);
    }

    #[tokio::test]
    async fn what_waits_is_bounded() {
        let process = FakeProcess::new();
        process.hold_writes();
        let mut stdin = StdinWriter::new(process.handle());
        let mut taken = 0;
        let mut context = Context::from_waker(std::task::Waker::noop());
        while let Poll::Ready(written) =
            Pin::new(&mut stdin).poll_write(&mut context, &[b'x'; 10_000])
        {
            taken += written.unwrap();
        }
        assert!(taken <= 2 * PIPE_BYTES, "{taken}");
        for _ in 0..taken {
            process.accept_write();
        }
        stdin.shutdown().await.unwrap();
        assert_eq!(process.calls().concat().len(), taken + "close".len());
    }

    #[tokio::test]
    async fn a_process_that_reads_no_more_is_a_broken_pipe() {
        let process = FakeProcess::new();
        process.close_input();
        let mut stdin = StdinWriter::new(process.handle());
        let error = async {
            stdin.write_all(b"x").await?;
            stdin.shutdown().await
        };
        assert_eq!(error.await.unwrap_err().kind(), io::ErrorKind::BrokenPipe);
        assert_eq!(stdin.flush().await.unwrap_err().kind(), io::ErrorKind::BrokenPipe, "it stays");

        let mut only_closed = StdinWriter::new(process.handle());
        only_closed.shutdown().await.unwrap();
    }
}

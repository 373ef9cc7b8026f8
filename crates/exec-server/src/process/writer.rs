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

/// The capacity of the pipe, like that of a kernel pipe.
const PIPE_BYTES: usize = 64 << 10;

/// Writes to a process in order, without explicit flushes: a task passes the written bytes to
/// [`ExecProcess::write`], one call at a time, and up to 64 KiB collect during each call.
///
/// As with a pipe, dropping the writer ends standard input after the written bytes. `shutdown` does
/// so too, and waits until the input has ended. If the process takes no more input, writes fail
/// with `BrokenPipe`. Must be created within a tokio runtime.
#[derive(Debug)]
pub struct StdinWriter {
    pipe: DuplexStream,
    carrier: Option<JoinHandle<()>>,
    failure: Arc<OnceLock<Failure>>,
}

/// Why some written bytes, or the end of the input, did not arrive.
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
                    // Set before the pipe breaks, so that a writer that sees the broken pipe finds
                    // the reason.
                    let _ = failure.set(why);
                }
            }
        });
        Self { pipe, carrier: Some(carrier), failure }
    }

    /// Replaces the pipe's own error with the reason, if there is one.
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

    /// Only reports a failure: written bytes are sent without a flush.
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

/// Forwards bytes from the pipe, then ends standard input.
async fn carry(pipe: &mut DuplexStream, process: &dyn ExecProcess) -> Result<(), Failure> {
    let mut buffer = BytesMut::with_capacity(PIPE_BYTES);
    while pipe.read_buf(&mut buffer).await.unwrap_or(0) > 0 {
        let written = process.write(buffer.split().freeze()).await.map_err(Failure::Error)?;
        if written != WriteStatus::Accepted {
            return Err(Failure::StdinClosed);
        }
        buffer.reserve(PIPE_BYTES);
    }
    // The status is ignored: if it is not `Accepted`, there is no open input left to close.
    process.close_stdin().await.map(drop).map_err(Failure::Error)
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt as _;

    use super::super::fake::FakeProcess;
    use super::*;

    #[tokio::test]
    async fn written_bytes_are_sent_without_a_flush() {
        let process = FakeProcess::new();
        let mut stdin = StdinWriter::new(process.handle());
        for word in ["one", "two"] {
            stdin.write_all(word.as_bytes()).await.unwrap();
            process.called(word).await;
        }
    }

    #[tokio::test]
    async fn bytes_are_collected_while_a_write_is_in_flight() {
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
    async fn dropping_the_writer_ends_the_input_after_its_bytes() {
        let process = FakeProcess::new();
        let mut stdin = StdinWriter::new(process.handle());
        stdin.write_all(b"last words").await.unwrap();
        drop(stdin);
        process.called("close").await;
        assert_eq!(process.calls(), ["last words", "close"]);
    }

    #[tokio::test]
    async fn buffered_input_is_bounded() {
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
        assert_eq!(
            stdin.flush().await.unwrap_err().kind(),
            io::ErrorKind::BrokenPipe,
            "the error is permanent"
        );

        let mut only_closed = StdinWriter::new(process.handle());
        only_closed.shutdown().await.unwrap();
    }
}

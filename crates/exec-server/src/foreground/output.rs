//! Standard output and standard error as the sinks of a process's streams: byte for byte, and
//! without waiting for whole lines.
//!
//! Writing may block indefinitely, so each stream has a thread. A short queue keeps a slow stream
//! from delaying the other immediately. Once the queue is full, the caller waits; once the log is
//! full too, so does the process.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use bytes::Bytes;
use exec_server_protocol::OutputStream;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

/// Chunks per stream; a chunk is at most 256 KiB.
const QUEUE: usize = 16;

#[derive(Debug)]
pub(crate) struct Outputs {
    stdout: StreamWriter,
    stderr: StreamWriter,
}

#[derive(Debug, thiserror::Error)]
#[error("cannot write to standard output or standard error")]
pub(crate) struct OutputError(#[from] io::Error);

impl OutputError {
    pub(crate) fn is_broken_pipe(&self) -> bool {
        self.0.kind() == io::ErrorKind::BrokenPipe
    }
}

impl Outputs {
    /// Starts a thread for each stream. Must be called within a runtime.
    pub(crate) fn open() -> Self {
        Self {
            stdout: StreamWriter::start(|chunk| write_all(io::stdout().as_fd(), chunk)),
            stderr: StreamWriter::start(|chunk| write_all(io::stderr().as_fd(), chunk)),
        }
    }

    /// A process with a terminal has one stream, which goes to standard output.
    pub(crate) async fn write(
        &mut self,
        stream: OutputStream,
        chunk: Bytes,
    ) -> Result<(), OutputError> {
        let writer = match stream {
            OutputStream::Stdout | OutputStream::Pty => &mut self.stdout,
            OutputStream::Stderr => &mut self.stderr,
        };
        Ok(writer.write(chunk).await?)
    }

    /// Resolves when a stream can no longer be written, for callers that currently have nothing to
    /// write. Cancel-safe. Nothing can be written afterwards.
    pub(crate) async fn failed(&mut self) -> OutputError {
        tokio::select! {
            error = self.stdout.failed() => error.into(),
            error = self.stderr.failed() => error.into(),
        }
    }

    /// Returns once everything is written.
    pub(crate) async fn finish(self) -> Result<(), OutputError> {
        self.stdout.finish().await?;
        Ok(self.stderr.finish().await?)
    }
}

#[derive(Debug)]
struct StreamWriter {
    chunks: mpsc::Sender<Bytes>,
    thread: JoinHandle<io::Result<()>>,
}

impl StreamWriter {
    fn start(mut write: impl FnMut(&[u8]) -> io::Result<()> + Send + 'static) -> Self {
        let (chunks, mut queue) = mpsc::channel::<Bytes>(QUEUE);
        let thread = tokio::task::spawn_blocking(move || {
            while let Some(chunk) = queue.blocking_recv() {
                write(&chunk)?;
            }
            Ok(())
        });
        Self { chunks, thread }
    }

    async fn write(&mut self, chunk: Bytes) -> io::Result<()> {
        match self.chunks.send(chunk).await {
            Ok(()) => Ok(()),
            Err(_) => Err(self.failed().await),
        }
    }

    /// Waits for the error of the thread. Without an error, the thread ends only when its queue is
    /// closed.
    async fn failed(&mut self) -> io::Error {
        match (&mut self.thread).await {
            Ok(Err(error)) => error,
            Ok(Ok(())) => io::ErrorKind::BrokenPipe.into(),
            Err(error) => io::Error::other(error),
        }
    }

    async fn finish(self) -> io::Result<()> {
        drop(self.chunks);
        self.thread.await.map_err(io::Error::other)?
    }
}

fn write_all(stream: BorrowedFd<'_>, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match rustix::io::write(stream, bytes) {
            Ok(written) => bytes = &bytes[written..],
            Err(Errno::INTR) => {}
            // Another program that shares the open file description has made it non-blocking.
            Err(Errno::AGAIN) => {
                poll(&mut [PollFd::from_borrowed_fd(stream, PollFlags::OUT)], None)?;
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn finish_writes_everything() {
        let (written, mut seen) = mpsc::channel(10);
        let mut writer = StreamWriter::start(move |chunk| {
            written.blocking_send(chunk.to_vec()).map_err(io::Error::other)
        });
        for chunk in ["one", "two"] {
            writer.write(chunk.into()).await.unwrap();
        }
        writer.finish().await.unwrap();
        assert_eq!(seen.recv().await.unwrap(), b"one");
        assert_eq!(seen.recv().await.unwrap(), b"two");
        assert_eq!(seen.recv().await, None);
    }

    #[tokio::test]
    async fn a_failure_reaches_write_failed_and_finish() {
        let broken = |_: &[u8]| Err(io::ErrorKind::BrokenPipe.into());
        let mut writer = StreamWriter::start(broken);
        let error = loop {
            if let Err(error) = writer.write("x".into()).await {
                break error;
            }
        };
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);

        let mut writer = StreamWriter::start(broken);
        writer.write("x".into()).await.unwrap();
        assert_eq!(writer.failed().await.kind(), io::ErrorKind::BrokenPipe);

        let mut writer = StreamWriter::start(broken);
        writer.write("x".into()).await.unwrap();
        assert_eq!(writer.finish().await.unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    }

    #[test]
    fn only_a_broken_pipe_is_silent() {
        let error = |kind: io::ErrorKind| OutputError::from(io::Error::from(kind));
        assert!(error(io::ErrorKind::BrokenPipe).is_broken_pipe());
        let full = error(io::ErrorKind::StorageFull);
        assert!(!full.is_broken_pipe());
        assert_eq!(full.to_string(), "cannot write to standard output or standard error");
    }

    #[test]
    fn a_non_blocking_pipe_is_written_completely() {
        let (reader, writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::NONBLOCK).unwrap();
        let bytes = vec![7; 1 << 20];
        let expected = bytes.clone();
        let thread = std::thread::spawn(move || write_all(writer.as_fd(), &bytes).unwrap());
        let mut received = Vec::new();
        let mut buffer = vec![0; 1 << 16];
        loop {
            match rustix::io::read(&reader, &mut buffer) {
                Ok(0) => break,
                Ok(count) => received.extend_from_slice(&buffer[..count]),
                Err(_) => {
                    poll(&mut [PollFd::new(&reader, PollFlags::IN)], None).unwrap();
                }
            }
        }
        thread.join().unwrap();
        assert!(received == expected);
    }
}

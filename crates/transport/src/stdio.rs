//! The one client of a server started as a child process: stdin and stdout.

use std::os::fd::{AsFd as _, OwnedFd};

use tokio::io::unix::AsyncFd;
use tokio::io::{Interest, Ready};
use tokio::net::unix::pipe;

use crate::MAX_MESSAGE_BYTES;
use crate::connection::Connection;
use crate::lines;
use crate::socket::ByteSource;
use crate::write_buffer::ByteSink;

/// Takes stdin and stdout. From now on, nothing else may read stdin or write to stdout.
///
/// When stdin is a terminal, a file or a socket, one blocking read of it may outlast the
/// connection, so a runtime that ends before its stdin must be shut down without waiting.
pub fn stdio() -> Connection {
    // A nonblocking pipe needs no thread. It is opened a second time, because O_NONBLOCK belongs to
    // the open file, which the shell or the parent may share. Other files, and systems without
    // /proc, use tokio's blocking threads.
    let source: ByteSource = match pipe::OpenOptions::new().open_receiver("/proc/self/fd/0") {
        Ok(receiver) => Box::new(receiver),
        Err(_) => Box::new(tokio::io::stdin()),
    };
    let sink: ByteSink = match pipe::OpenOptions::new().open_sender("/proc/self/fd/1") {
        Ok(sender) => Box::new(sender),
        Err(_) => Box::new(tokio::io::stdout()),
    };
    let reader = Reader::of_stdout();
    lines::connection(source, sink, MAX_MESSAGE_BYTES).with_reader_of_stdout(reader)
}

/// Detects that the program reading a pipe or socket is gone. Otherwise, a server with nothing to
/// send would not notice, and would run forever.
pub(crate) struct Reader(AsyncFd<OwnedFd>);

impl Reader {
    /// Returns `None` for a file, which has no reader.
    fn of_stdout() -> Option<Self> {
        let stdout = std::io::stdout().as_fd().try_clone_to_owned().ok()?;
        Self::of(stdout)
    }

    #[expect(
        deprecated,
        reason = "its successor is unsafe, for types that may close the descriptor"
    )]
    fn of(descriptor: OwnedFd) -> Option<Self> {
        AsyncFd::with_interest(descriptor, Interest::WRITABLE).ok().map(Self)
    }

    /// Cancel-safe.
    pub(crate) async fn gone(&self) {
        while let Ok(mut guard) = self.0.ready(Interest::WRITABLE).await {
            if guard.ready().is_write_closed() {
                return;
            }
            guard.clear_ready_matching(Ready::WRITABLE);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[tokio::test]
    async fn a_gone_reader_is_detected_without_a_write() {
        let (reader, writer) = std::io::pipe().unwrap();
        let pipe = Reader::of(writer.into()).unwrap();
        let (peer, socket) = UnixStream::pair().unwrap();
        let socket = Reader::of(socket.into()).unwrap();
        tokio::select! {
            biased;
            () = pipe.gone() => panic!("the reader of the pipe is there"),
            () = socket.gone() => panic!("the peer of the socket is there"),
            () = tokio::task::yield_now() => {}
        }
        drop((reader, peer));
        pipe.gone().await;
        socket.gone().await;
    }
}

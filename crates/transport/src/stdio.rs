//! The one client of a server that was started as somebody's child: stdin and stdout.

use std::os::fd::{AsFd as _, OwnedFd};

use tokio::io::unix::AsyncFd;
use tokio::io::{Interest, Ready};
use tokio::net::unix::pipe;

use crate::MAX_MESSAGE_BYTES;
use crate::connection::Connection;
use crate::lines;
use crate::socket::ByteSource;
use crate::write_buffer::ByteSink;

/// Takes stdin and stdout. Nothing else may read the one or write the other from here on.
///
/// When stdin is a terminal, a file or a socket, one blocking read of it may outlast the connection,
/// so a runtime that ends before its stdin does must be shut down without waiting.
pub fn stdio() -> Connection {
    // A pipe is opened a second time: O_NONBLOCK belongs to the open file, which the shell or the
    // parent may share with us, and a pipe that epoll serves needs no thread. Anything else, or a
    // system without /proc, gets tokio's blocking threads.
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

/// Tells when the program that reads a pipe or socket is gone. A server with nothing to say would not
/// notice otherwise, and run for ever.
pub(crate) struct Reader(AsyncFd<OwnedFd>);

impl Reader {
    /// `None` for a file, which has no reader.
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
    async fn the_end_of_a_reader_shows_without_a_write() {
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

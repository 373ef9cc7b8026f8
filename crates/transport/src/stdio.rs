//! The one client of a server that was started as somebody's child: stdin and stdout.

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
    lines::connection(source, sink, MAX_MESSAGE_BYTES)
}

//! Reads standard input on a thread: a read of a terminal or pipe cannot be cancelled, and making
//! it non-blocking would affect every program that shares it.

use std::io;

use bytes::Bytes;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use tokio::sync::mpsc;

const LARGEST_READ: usize = 64 << 10;
/// The maximum number of chunks that wait for the process. When the queue is full, nothing more is
/// read, and the writer of the input waits.
const QUEUE: usize = 16;

/// Returns the input until it ends; an error is the last item. The thread may outlive the receiver
/// if it is blocked in a read; shut down the runtime without waiting for it.
pub(crate) fn read() -> mpsc::Receiver<io::Result<Bytes>> {
    let (chunks, queue) = mpsc::channel(QUEUE);
    tokio::task::spawn_blocking(move || {
        let mut buffer = vec![0; LARGEST_READ];
        loop {
            let chunk = match read_some(&mut buffer) {
                Ok(0) => return,
                Ok(count) => Ok(Bytes::copy_from_slice(&buffer[..count])),
                Err(error) => Err(error),
            };
            let is_last = chunk.is_err();
            if chunks.blocking_send(chunk).is_err() || is_last {
                return;
            }
        }
    });
    queue
}

/// Replaces standard input with /dev/null, so that its writer notices the closed pipe.
pub(crate) fn release() -> io::Result<()> {
    let null = std::fs::File::open("/dev/null")?;
    Ok(rustix::stdio::dup2_stdin(null)?)
}

fn read_some(buffer: &mut [u8]) -> io::Result<usize> {
    let stdin = io::stdin();
    loop {
        match rustix::io::read(&stdin, &mut *buffer) {
            Ok(count) => return Ok(count),
            Err(Errno::INTR) => {}
            // Not open for reading, as under `nohup`: there is no input.
            Err(Errno::BADF) => return Ok(0),
            // Another program that shares the open file description has made it non-blocking.
            Err(Errno::AGAIN) => {
                poll(&mut [PollFd::new(&stdin, PollFlags::IN)], None)?;
            }
            Err(error) => return Err(error.into()),
        }
    }
}

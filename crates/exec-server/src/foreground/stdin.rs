//! Our standard input, read by a thread of its own: a read of a terminal or a pipe can neither be cancelled nor be
//! made non-blocking without changing it for everybody who shares it.

use std::io;

use bytes::Bytes;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use tokio::sync::mpsc;

const LARGEST_READ: usize = 64 << 10;
/// Chunks that wait for the process. Full: nothing more is read, and whoever writes to us waits.
const QUEUE: usize = 16;

/// What arrives, until its end or a failure, which is the last to come. The thread outlives the receiver if it is in
/// the middle of a read; the runtime must be shut down without waiting for it.
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

/// Lets whoever writes to our standard input know that nobody reads it any more.
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
            // Not open for reading: so `nohup` says that there is nothing to read.
            Err(Errno::BADF) => return Ok(0),
            // Somebody who shares the stream with us has made it non-blocking.
            Err(Errno::AGAIN) => {
                poll(&mut [PollFd::new(&stdin, PollFlags::IN)], None)?;
            }
            Err(error) => return Err(error.into()),
        }
    }
}

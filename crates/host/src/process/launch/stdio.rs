//! The program's input and output: opens both ends, and wraps the server's ends for async use.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use bytes::{BufMut, BytesMut};
use rustix::fs::{Mode, OFlags};
use rustix::pipe::{PipeFlags, pipe_with};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::command::Io;
use super::pty::{self, PtyMaster};

/// The server's ends of the program's input and output.
#[derive(Debug)]
pub enum ChildStdio {
    Pty(PtyMaster),
    Pipes { stdin: Option<StdinPipe>, stdout: OutputPipe, stderr: OutputPipe },
}

/// The program's ends. Invariant: the server closes its copies as soon as the program has them, or
/// the end of the output would never be seen.
#[derive(Debug)]
pub(super) enum ChildEnds {
    Terminal(OwnedFd),
    Separate([OwnedFd; 3]),
}

impl ChildEnds {
    pub(super) fn descriptors(&self) -> [BorrowedFd<'_>; 3] {
        match self {
            Self::Terminal(terminal) => [terminal.as_fd(); 3],
            Self::Separate([stdin, stdout, stderr]) => {
                [stdin.as_fd(), stdout.as_fd(), stderr.as_fd()]
            }
        }
    }
}

pub(super) fn open(io: Io) -> io::Result<(ChildEnds, ChildStdio)> {
    match io {
        Io::Pty(size) => {
            let (terminal, master) = pty::open(size)?;
            Ok((ChildEnds::Terminal(terminal), ChildStdio::Pty(master)))
        }
        Io::Pipes { stdin: wanted } => {
            let (child_stdin, stdin) = if wanted {
                let (read, write) = pipe_with(PipeFlags::CLOEXEC)?;
                (read, Some(StdinPipe { write: nonblocking(write, Interest::WRITABLE)? }))
            } else {
                let null = OFlags::RDONLY | OFlags::CLOEXEC;
                (rustix::fs::open("/dev/null", null, Mode::empty())?, None)
            };
            let (child_stdout, stdout) = OutputPipe::open()?;
            let (child_stderr, stderr) = OutputPipe::open()?;
            let ends = ChildEnds::Separate([child_stdin, child_stdout, child_stderr]);
            Ok((ends, ChildStdio::Pipes { stdin, stdout, stderr }))
        }
    }
}

/// The write end of the program's stdin. Dropping it ends the input.
#[derive(Debug)]
pub struct StdinPipe {
    write: AsyncFd<OwnedFd>,
}

impl StdinPipe {
    /// Resolves when a write may succeed or the program has closed its end.
    pub async fn writable(&self) -> io::Result<()> {
        self.write.writable().await?.retain_ready();
        Ok(())
    }

    /// Fails with `WouldBlock` when the pipe is full and with `BrokenPipe` when it has no readers.
    pub fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        try_write(&self.write, bytes)
    }
}

/// The read end of the program's stdout or stderr.
#[derive(Debug)]
pub struct OutputPipe {
    read: AsyncFd<OwnedFd>,
}

impl OutputPipe {
    fn open() -> io::Result<(OwnedFd, Self)> {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC)?;
        Ok((write, Self { read: nonblocking(read, Interest::READABLE)? }))
    }

    /// Resolves when there is output or the last writer is gone.
    pub async fn readable(&self) -> io::Result<()> {
        self.read.readable().await?.retain_ready();
        Ok(())
    }

    /// Appends output to `buffer`, which must have spare capacity. Returns 0 at the end of the
    /// output, and `WouldBlock` if no output is available at the moment.
    pub fn try_read(&self, buffer: &mut BytesMut) -> io::Result<usize> {
        try_read(&self.read, buffer)
    }

    /// Returns the number of bytes that wait to be read.
    pub fn pending(&self) -> usize {
        pending(&self.read)
    }

    /// Requests a larger kernel buffer. Returns whether it was granted.
    pub fn grow(&self, bytes: usize) -> bool {
        #[cfg(target_os = "linux")]
        let grown = rustix::pipe::fcntl_setpipe_size(&self.read, bytes).is_ok();
        #[cfg(not(target_os = "linux"))]
        let grown = bytes == 0;
        grown
    }
}

pub(super) fn nonblocking(fd: OwnedFd, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
    rustix::io::ioctl_fionbio(&fd, true)?;
    // SAFETY: an `OwnedFd` names the same open descriptor until it is dropped.
    Ok(unsafe { AsyncFd::register_with_interest(fd, interest)? })
}

/// Writes as much as the other end takes, even if the reactor has not yet learned that it has room.
pub(super) fn try_write(fd: &AsyncFd<OwnedFd>, bytes: &[u8]) -> io::Result<usize> {
    asking_the_kernel(fd, Interest::WRITABLE, |fd| Ok(rustix::io::write(fd, bytes)?))
}

/// Reads the available bytes, even if the reactor has not yet learned of them: after the end of a
/// tree an empty stream counts as ended, so a reactor that lags behind must not make it look empty.
pub(super) fn try_read(fd: &AsyncFd<OwnedFd>, buffer: &mut BytesMut) -> io::Result<usize> {
    asking_the_kernel(fd, Interest::READABLE, |fd| read_into(fd, buffer))
}

/// Tries the call within `try_io` if the reactor believes the descriptor ready, so that the reactor
/// learns when it is not. Otherwise calls the kernel directly.
fn asking_the_kernel(
    fd: &AsyncFd<OwnedFd>,
    interest: Interest,
    mut ask: impl FnMut(&OwnedFd) -> io::Result<usize>,
) -> io::Result<usize> {
    let mut asked = false;
    let outcome = fd.try_io(interest, |fd| {
        asked = true;
        ask(fd)
    });
    match outcome {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock && !asked => ask(fd.get_ref()),
        outcome => outcome,
    }
}

fn read_into(fd: &OwnedFd, buffer: &mut BytesMut) -> io::Result<usize> {
    // SAFETY: only `read` writes to the slice, and it de-initialises nothing.
    let spare = unsafe { buffer.chunk_mut().as_uninit_slice_mut() };
    let (filled, _) = rustix::io::read(fd, spare)?;
    let filled = filled.len();
    // SAFETY: `read` has initialised that many bytes at the start of the spare capacity.
    unsafe { buffer.advance_mut(filled) };
    Ok(filled)
}

pub(super) fn pending(fd: &AsyncFd<OwnedFd>) -> usize {
    rustix::io::ioctl_fionread(fd).map_or(0, |bytes| usize::try_from(bytes).unwrap_or(usize::MAX))
}

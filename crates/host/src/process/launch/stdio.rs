//! The program's input and output: making both ends, and our end of a pipe as something that a task
//! can wait for.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use bytes::{BufMut, BytesMut};
use rustix::fs::{Mode, OFlags};
use rustix::pipe::{PipeFlags, pipe_with};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::command::Io;
use super::pty::{self, PtyMaster};

/// Our ends.
#[derive(Debug)]
pub enum ChildStdio {
    Pty(PtyMaster),
    Pipes { stdin: Option<StdinPipe>, stdout: OutputPipe, stderr: OutputPipe },
}

/// The program's ends. Invariant: they are closed here as soon as the program has them, or the end
/// of its output would never be seen.
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

/// Where the program's standard input comes from. Dropping it is the end of the input.
#[derive(Debug)]
pub struct StdinPipe {
    write: AsyncFd<OwnedFd>,
}

impl StdinPipe {
    /// Resolves when a write may succeed, or when the program has closed its end.
    pub async fn writable(&self) -> io::Result<()> {
        self.write.writable().await?.retain_ready();
        Ok(())
    }

    /// Fails with `WouldBlock` when the pipe is full and `BrokenPipe` when nobody reads it.
    pub fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        try_write(&self.write, bytes)
    }
}

/// What the program writes to its standard output or error.
#[derive(Debug)]
pub struct OutputPipe {
    read: AsyncFd<OwnedFd>,
}

impl OutputPipe {
    fn open() -> io::Result<(OwnedFd, Self)> {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC)?;
        Ok((write, Self { read: nonblocking(read, Interest::READABLE)? }))
    }

    /// Resolves when there is output, or when the last writer is gone.
    pub async fn readable(&self) -> io::Result<()> {
        self.read.readable().await?.retain_ready();
        Ok(())
    }

    /// Fills the spare capacity of `buffer`, which must not be empty. 0 is the end; `WouldBlock`
    /// means that there is nothing now.
    pub fn try_read(&self, buffer: &mut BytesMut) -> io::Result<usize> {
        try_read(&self.read, buffer)
    }

    /// How many bytes wait to be read.
    pub fn pending(&self) -> usize {
        pending(&self.read)
    }

    /// Asks for a larger kernel buffer, and says whether there is one.
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

/// Writes what the other end takes, also when the reactor has not heard of its room yet.
pub(super) fn try_write(fd: &AsyncFd<OwnedFd>, bytes: &[u8]) -> io::Result<usize> {
    asking_the_kernel(fd, Interest::WRITABLE, |fd| Ok(rustix::io::write(fd, bytes)?))
}

/// Reads what there is, also when the reactor has not heard of it yet: whoever drains a stream whose
/// writers are gone must not take the reactor's ignorance for emptiness.
pub(super) fn try_read(fd: &AsyncFd<OwnedFd>, buffer: &mut BytesMut) -> io::Result<usize> {
    asking_the_kernel(fd, Interest::READABLE, |fd| read_into(fd, buffer))
}

/// Within `try_io` where the reactor believes that there is something, so that it learns when there is
/// not; without it otherwise.
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
    // SAFETY: the slice is only written to, by `read`; nothing de-initialises it.
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

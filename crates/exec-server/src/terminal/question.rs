//! Questions to the user at the terminal, independent of the standard streams of the command.

use std::fs::File;
use std::io::{self, Write as _};

use rustix::fs::{Mode, OFlags};
use rustix::termios::{QueueSelector, tcflush};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::signal::unix::{SignalKind, signal};

use super::printable;

const PATH: &str = "/dev/tty";
const LONGEST_ANSWER: usize = 4096;

/// The controlling terminal, opened separately so that the standard streams do not become
/// non-blocking.
#[derive(Debug)]
pub(crate) struct Questions {
    output: File,
    /// Non-blocking, so that a question can be cancelled.
    input: AsyncFd<File>,
}

impl Questions {
    /// Fails if the command has no controlling terminal.
    #[expect(
        deprecated,
        reason = "the replacement is unsafe, because a type may close its descriptor"
    )]
    pub(crate) fn open() -> io::Result<Self> {
        let open = |flags| rustix::fs::open(PATH, flags | OFlags::CLOEXEC, Mode::empty());
        let input = File::from(open(OFlags::RDONLY | OFlags::NONBLOCK)?);
        let input = AsyncFd::with_interest(input, Interest::READABLE)?;
        Ok(Self { output: File::from(open(OFlags::WRONLY)?), input })
    }

    /// Returns the typed line; `None` after Ctrl-D or Ctrl-C, or if the terminal has closed.
    pub(crate) async fn ask(&self, question: &str) -> io::Result<Option<String>> {
        let mut interrupts = signal(SignalKind::interrupt())?;
        // Discards lines typed before the question.
        tcflush(self.input.get_ref(), QueueSelector::IFlush)?;
        self.write(&printable(question))?;
        let line = tokio::select! {
            line = self.line() => line?,
            _ = interrupts.recv() => None,
        };
        if line.is_none() {
            self.write("\n")?;
        }
        Ok(line)
    }

    pub(crate) fn tell(&self, text: &str) -> io::Result<()> {
        self.write(&format!("{}\n", printable(text)))
    }

    fn write(&self, text: &str) -> io::Result<()> {
        (&self.output).write_all(text.as_bytes())
    }

    async fn line(&self) -> io::Result<Option<String>> {
        let mut buffer = [0; LONGEST_ANSWER];
        loop {
            let mut ready = self.input.readable().await?;
            let read = ready.try_io(|input| Ok(rustix::io::read(input.get_ref(), &mut buffer)?));
            match read {
                Ok(Ok(0)) => return Ok(None),
                Ok(Ok(count)) => {
                    return Ok(Some(String::from_utf8_lossy(&buffer[..count]).into_owned()));
                }
                Ok(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(Err(error)) => return Err(error),
                // A spurious wakeup.
                Err(_) => {}
            }
        }
    }
}

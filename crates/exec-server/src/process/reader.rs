//! One output stream of a process as an `AsyncRead`.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use exec_server_client::{ExecProcessEvent, ExecServerError, ProcessEvents};
use exec_server_protocol::OutputStream;
use tokio::io::{AsyncRead, ReadBuf};

use super::head_tail::{CollectedOutput, HeadTail};
use crate::ExecProcess;
use crate::process::pieces::Pieces;

/// Reads one stream of a process, from the start of what is retained to its end.
///
/// What comes on the other streams is passed over, or collected within a bound ([`Self::collecting_others`]); so a
/// reader of one stream never waits for a reader of another. Two readers, one for each stream, are like two pipes:
/// each must be read, or what it has not read (1 MiB) holds back the process and so the other reader.
///
/// The end of the file is where the process closes, and not at its exit: what it left running may still write.
/// A gap in the output is an error, and so is a process that is lost. Errors stay.
#[derive(Debug)]
pub struct StdoutReader {
    process_id: String,
    events: ProcessEvents,
    stream: OutputStream,
    pieces: Pieces,
    others: Option<HeadTail>,
}

impl StdoutReader {
    /// Reads the standard output, or whichever stream is meant.
    pub fn new(process: &dyn ExecProcess, stream: OutputStream) -> Self {
        Self {
            process_id: process.process_id().to_owned(),
            events: process.subscribe_events(),
            stream,
            pieces: Pieces::default(),
            others: None,
        }
    }

    /// Keeps what comes on the other streams, at most `bound` bytes of it.
    #[must_use]
    pub fn collecting_others(mut self, bound: usize) -> Self {
        self.others = Some(HeadTail::new(bound));
        self
    }

    /// What came on the other streams since the last call, as far as this reader has read.
    pub fn take_others(&mut self) -> CollectedOutput {
        self.others.as_mut().map(HeadTail::take).unwrap_or_default()
    }

    /// Fetches events until there is something to read or to say.
    fn poll_advance(&mut self, context: &mut Context<'_>) -> Poll<()> {
        while self.pieces.is_wanting() {
            match ready!(self.events.poll_next_event(context)) {
                Some(ExecProcessEvent::Output(output)) if output.stream == self.stream => {
                    self.pieces.put(output.chunk.into_bytes());
                }
                Some(ExecProcessEvent::Output(output)) => {
                    if let Some(others) = &mut self.others {
                        others.push(&output.chunk);
                    }
                }
                Some(ExecProcessEvent::Gap { dropped_bytes }) => {
                    let process_id = self.process_id.clone();
                    self.pieces.fail(ExecServerError::Gap { process_id, dropped_bytes });
                }
                Some(ExecProcessEvent::Failed(error)) => self.pieces.fail(error),
                Some(ExecProcessEvent::Exited(_)) => {}
                Some(ExecProcessEvent::Closed { .. }) | None => self.pieces.end(),
            }
        }
        Poll::Ready(())
    }
}

impl AsyncRead for StdoutReader {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        ready!(self.poll_advance(context));
        Poll::Ready(self.pieces.give_out(buffer))
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt as _;

    use super::super::fake::FakeProcess;
    use super::*;

    #[tokio::test]
    async fn one_stream_is_read_and_the_others_are_kept() {
        let process = FakeProcess::new();
        let mut stdout = StdoutReader::new(&process, OutputStream::Stdout).collecting_others(100);
        process.print("one ");
        process.output(OutputStream::Stderr, "warning");
        process.print("two");
        process.exit(0);
        process.output(OutputStream::Stdout, " late");
        process.close();
        let mut text = String::new();
        stdout.read_to_string(&mut text).await.unwrap();
        assert_eq!(text, "one two late");
        assert_eq!(stdout.take_others().to_text(), "warning");
        assert_eq!(stdout.read(&mut [0; 4]).await.unwrap(), 0, "the end stays");
    }

    #[tokio::test]
    async fn small_reads_get_everything() {
        let process = FakeProcess::new();
        process.print("abc");
        process.close();
        let mut stdout = StdoutReader::new(&process, OutputStream::Stdout);
        let mut letters = Vec::new();
        while let Ok(letter) = stdout.read_u8().await {
            letters.push(letter);
        }
        assert_eq!(letters, b"abc");
    }

    #[tokio::test]
    async fn a_gap_and_a_loss_are_errors_that_stay() {
        let process = FakeProcess::new();
        process.print("before");
        process.gap(9);
        process.print("after");
        let mut gapped = StdoutReader::new(&process, OutputStream::Stdout);
        let mut lost = StdoutReader::new(&FakeProcess::new(), OutputStream::Stdout);
        let mut text = Vec::new();
        for _ in 0..2 {
            let error = gapped.read_to_end(&mut text).await.unwrap_err().to_string();
            assert!(error.contains("lost 9 bytes"), "{error}");
        }
        assert_eq!(text, b"before");

        let failing = FakeProcess::new();
        lost.events = failing.handle().subscribe_events();
        failing.fail();
        assert!(lost.read_to_end(&mut text).await.is_err());
    }
}

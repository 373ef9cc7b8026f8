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

/// Reads one stream of a process, from the start of the retained output to the end.
///
/// Output on other streams is discarded, or collected within a bound ([`Self::collecting_others`]),
/// so a single reader suffices. Two readers, one per stream, behave like two pipes: both must be
/// read, because the unread output of one eventually blocks the other, and the process.
///
/// End of file means that the process has closed, not only exited: after the exit, descendants may
/// still write. A gap in the output, on any stream, is an error, and so is a lost process. Errors
/// are permanent.
#[derive(Debug)]
pub struct StdoutReader {
    process_id: String,
    events: ProcessEvents,
    stream: OutputStream,
    pieces: Pieces,
    others: Option<HeadTail>,
}

impl StdoutReader {
    pub fn new(process: &dyn ExecProcess, stream: OutputStream) -> Self {
        Self {
            process_id: process.process_id().to_owned(),
            events: process.subscribe_events(),
            stream,
            pieces: Pieces::default(),
            others: None,
        }
    }

    /// Keeps the output of other streams, up to `bound` bytes.
    #[must_use]
    pub fn collecting_others(mut self, bound: usize) -> Self {
        self.others = Some(HeadTail::new(bound));
        self
    }

    /// Returns the output of other streams that this reader has collected since the last call.
    /// Empty without [`Self::collecting_others`].
    pub fn take_others(&mut self) -> CollectedOutput {
        self.others.as_mut().map(HeadTail::take).unwrap_or_default()
    }

    /// Fetches events until there are bytes, the end or an error to return.
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
    async fn one_stream_is_read_and_the_others_are_collected() {
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
        assert_eq!(stdout.read(&mut [0; 4]).await.unwrap(), 0, "the end is permanent");
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
    async fn gaps_and_losses_are_permanent_errors() {
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

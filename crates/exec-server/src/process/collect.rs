//! Waiting for a process to end, and collecting its output.

use std::pin::pin;

use bytes::Bytes;
use exec_server_client::{ExecProcessEvent, ExecServerError, ProcessEvents, ProcessExit};
use exec_server_protocol::{OutputStream, WriteStatus};

use super::head_tail::{CollectedOutput, DEFAULT_OUTPUT_BOUND, HeadTail};
use crate::ExecProcess;

/// The output of a process, and its exit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessOutput {
    pub stdout: CollectedOutput,
    pub stderr: CollectedOutput,
    /// The output on its terminal, if it had one.
    pub terminal: CollectedOutput,
    /// The number of bytes, on any stream, that were lost before they could be collected, because
    /// the process was started with `onFull: discard` or is only observed, or because collecting
    /// began late.
    pub missed_bytes: u64,
    pub exit: ProcessExit,
}

impl dyn ExecProcess + '_ {
    /// Waits until the process has exited. Its descendants may still write.
    pub async fn wait(&self) -> Result<ProcessExit, ExecServerError> {
        let mut events = self.subscribe_events();
        while let Some(event) = events.next().await {
            match event {
                ExecProcessEvent::Exited(exit) => return Ok(exit),
                ExecProcessEvent::Failed(error) => return Err(error),
                ExecProcessEvent::Output(_)
                | ExecProcessEvent::Gap { .. }
                | ExecProcessEvent::Closed { .. } => {}
            }
        }
        Err(ExecServerError::Closed)
    }

    /// Waits until the process has closed and returns its output, at most 1 MiB per stream.
    ///
    /// Does not end standard input; `communicate` does.
    pub async fn output(&self) -> Result<ProcessOutput, ExecServerError> {
        self.output_within(DEFAULT_OUTPUT_BOUND).await
    }

    /// Like `output`, with at most `bound` bytes per stream.
    pub async fn output_within(&self, bound: usize) -> Result<ProcessOutput, ExecServerError> {
        self.collect(self.subscribe_events(), bound).await
    }

    /// Writes all of `stdin`, ends it, and returns the output, at most 1 MiB per stream. A process
    /// that does not read all of its input is not an error.
    pub async fn communicate(
        &self,
        stdin: impl Into<Bytes> + Send,
    ) -> Result<ProcessOutput, ExecServerError> {
        let mut collecting = pin!(self.collect(self.subscribe_events(), DEFAULT_OUTPUT_BOUND));
        let mut feeding = pin!(self.feed(stdin.into()));
        // Concurrently: a process may write more than its log holds before it reads.
        tokio::select! {
            fed = &mut feeding => fed?,
            // The process may close before everything is written: another process may hold the
            // other end of the input forever without reading it.
            output = &mut collecting => return output,
        }
        collecting.await
    }

    async fn feed(&self, stdin: Bytes) -> Result<(), ExecServerError> {
        if !stdin.is_empty() && self.write(stdin).await? != WriteStatus::Accepted {
            return Ok(());
        }
        self.close_stdin().await.map(drop)
    }

    async fn collect(
        &self,
        mut events: ProcessEvents,
        bound: usize,
    ) -> Result<ProcessOutput, ExecServerError> {
        let [mut stdout, mut stderr, mut terminal] = [(); 3].map(|()| HeadTail::new(bound));
        let (mut missed_bytes, mut exit) = (0, None);
        while let Some(event) = events.next().await {
            match event {
                ExecProcessEvent::Output(output) => match output.stream {
                    OutputStream::Stdout => stdout.push(&output.chunk),
                    OutputStream::Stderr => stderr.push(&output.chunk),
                    OutputStream::Pty => terminal.push(&output.chunk),
                },
                ExecProcessEvent::Gap { dropped_bytes } => missed_bytes += dropped_bytes,
                ExecProcessEvent::Exited(exited) => exit = Some(exited),
                ExecProcessEvent::Closed { .. } => {}
                ExecProcessEvent::Failed(error) => return Err(error),
            }
        }
        let exit = exit.ok_or(ExecServerError::Closed)?;
        Ok(ProcessOutput {
            stdout: stdout.finish(),
            stderr: stderr.finish(),
            terminal: terminal.finish(),
            missed_bytes,
            exit,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::fake::FakeProcess;
    use super::*;

    #[tokio::test]
    async fn streams_are_collected_separately() {
        let process = FakeProcess::new();
        process.output(OutputStream::Stdout, "out");
        process.output(OutputStream::Stderr, "err");
        process.output(OutputStream::Stdout, "put");
        process.exit(3);
        process.close();
        let output = process.handle().output_within(4).await.unwrap();
        assert_eq!(output.stdout.to_text(), "ou\n[… 2 bytes left out …]\nut");
        assert_eq!(output.stderr.complete(), Some(&b"err"[..]));
        assert!(output.terminal.is_empty());
        assert_eq!((output.exit.exit_code, output.missed_bytes), (3, 0));
    }

    #[tokio::test]
    async fn a_lost_process_is_an_error() {
        let process = FakeProcess::new();
        process.output(OutputStream::Stdout, "out");
        process.fail();
        assert!(matches!(process.handle().wait().await, Err(ExecServerError::Closed)));
        assert!(matches!(process.handle().output().await, Err(ExecServerError::Closed)));
    }
}

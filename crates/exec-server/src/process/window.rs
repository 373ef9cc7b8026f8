//! Output in windows: a window ends when the process closes, when its output pauses, or at a
//! deadline. The next window starts where the previous one ended.

use std::time::Duration;

use exec_server_client::{ExecProcessEvent, ExecServerError, ProcessEvents, ProcessExit};
use tokio::time::Instant;

use super::head_tail::{CollectedOutput, DEFAULT_OUTPUT_BOUND, HeadTail};
use crate::ExecProcess;

/// When a window ends, and how much of its output is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WindowOptions {
    pub deadline: Duration,
    /// Ends the window when, after some output, nothing more follows for this long.
    pub quiet: Option<Duration>,
    pub max_output: usize,
}

/// The output of one window.
#[derive(Debug, Clone)]
pub struct Snapshot {
    /// The output on all streams, in the order in which the server read it.
    pub output: CollectedOutput,
    pub wall_time: Duration,
    /// Also set if the exit was in an earlier window.
    pub exit: Option<ProcessExit>,
    pub end: WindowEnd,
}

#[derive(Debug, Clone)]
pub enum WindowEnd {
    /// The process has closed, and all its output has been returned.
    Closed,
    Quiet,
    Deadline,
    Failed(ExecServerError),
}

/// The windows of one process. No output is lost or repeated between windows; a window dropped
/// before its end leaves its output to the next.
///
/// Between windows, this value holds a cursor in the process's log: a process that writes more than
/// the log can hold waits for the next window.
#[derive(Debug)]
pub struct WindowedOutput {
    events: ProcessEvents,
    collected: HeadTail,
    exit: Option<ProcessExit>,
    /// The end of every further window, once the process has closed or was lost.
    over: Option<WindowEnd>,
}

impl WindowedOutput {
    /// The first window starts at the beginning of the retained output.
    pub fn new(process: &dyn ExecProcess) -> Self {
        Self {
            events: process.subscribe_events(),
            collected: HeadTail::new(DEFAULT_OUTPUT_BOUND),
            exit: None,
            over: None,
        }
    }

    /// Collects one window. Cancel-safe.
    pub async fn collect(&mut self, window: WindowOptions) -> Snapshot {
        let began = Instant::now();
        self.collected.limit(window.max_output);
        let end = tokio::time::timeout(window.deadline, self.until_quiet(window.quiet)).await;
        Snapshot {
            output: self.collected.take(),
            wall_time: began.elapsed(),
            exit: self.exit.clone(),
            end: end.unwrap_or(WindowEnd::Deadline),
        }
    }

    async fn until_quiet(&mut self, quiet: Option<Duration>) -> WindowEnd {
        loop {
            if let Some(end) = &self.over {
                return end.clone();
            }
            let event = match quiet {
                Some(quiet) if !self.collected.is_empty() => {
                    match tokio::time::timeout(quiet, self.events.next()).await {
                        Ok(event) => event,
                        Err(_) => return WindowEnd::Quiet,
                    }
                }
                _ => self.events.next().await,
            };
            self.take(event);
        }
    }

    fn take(&mut self, event: Option<ExecProcessEvent>) {
        match event {
            Some(ExecProcessEvent::Output(output)) => self.collected.push(&output.chunk),
            Some(ExecProcessEvent::Gap { dropped_bytes }) => self.collected.skip(dropped_bytes),
            Some(ExecProcessEvent::Exited(exit)) => self.exit = Some(exit),
            Some(ExecProcessEvent::Failed(error)) => self.over = Some(WindowEnd::Failed(error)),
            Some(ExecProcessEvent::Closed { .. }) | None => self.over = Some(WindowEnd::Closed),
        }
    }
}

impl Default for WindowOptions {
    fn default() -> Self {
        Self { deadline: Duration::from_secs(10), quiet: None, max_output: DEFAULT_OUTPUT_BOUND }
    }
}

#[cfg(test)]
mod tests {
    use super::super::fake::FakeProcess;
    use super::*;

    const WINDOW: WindowOptions =
        WindowOptions { deadline: Duration::from_secs(10), quiet: None, max_output: 1000 };

    #[tokio::test(start_paused = true)]
    async fn windows_continue_where_the_last_one_ended() {
        let process = FakeProcess::new();
        let mut windows = WindowedOutput::new(&process);
        process.print("one");
        let first = windows.collect(WINDOW).await;
        assert_eq!(first.output.to_text(), "one");
        assert!(matches!(first.end, WindowEnd::Deadline));
        assert_eq!((first.wall_time, first.exit), (WINDOW.deadline, None));

        process.print("two");
        process.exit(4);
        process.print("three");
        process.close();
        let second = windows.collect(WINDOW).await;
        assert_eq!(second.output.to_text(), "twothree");
        assert!(matches!(second.end, WindowEnd::Closed));
        assert_eq!(second.exit.unwrap().exit_code, 4);

        let third = windows.collect(WINDOW).await;
        assert!(third.output.is_empty() && third.exit.is_some());
        assert!(matches!(third.end, WindowEnd::Closed));
    }

    #[tokio::test(start_paused = true)]
    async fn quiet_counts_from_the_last_output() {
        let process = FakeProcess::new();
        let window = WindowOptions { quiet: Some(Duration::from_secs(1)), ..WINDOW };
        let mut windows = WindowedOutput::new(&process);
        let silent = windows.collect(window).await;
        assert!(matches!(silent.end, WindowEnd::Deadline), "nothing was written at all");

        let writing = async {
            for word in ["a", "b", "c"] {
                tokio::time::sleep(Duration::from_millis(900)).await;
                process.print(word);
            }
        };
        let (snapshot, ()) = tokio::join!(windows.collect(window), writing);
        assert_eq!(snapshot.output.to_text(), "abc");
        assert!(matches!(snapshot.end, WindowEnd::Quiet));
        assert_eq!(snapshot.wall_time, Duration::from_millis(3700));
    }

    #[tokio::test(start_paused = true)]
    async fn a_dropped_window_leaves_its_output_to_the_next() {
        let process = FakeProcess::new();
        let mut windows = WindowedOutput::new(&process);
        process.print("early ");
        let dropped = windows.collect(WINDOW);
        assert!(tokio::time::timeout(Duration::from_secs(1), dropped).await.is_err());
        process.print("late");
        assert_eq!(windows.collect(WINDOW).await.output.to_text(), "early late");
    }

    #[tokio::test(start_paused = true)]
    async fn continuous_output_does_not_extend_a_window() {
        let process = FakeProcess::new();
        let mut windows = WindowedOutput::new(&process);
        (0..5000).for_each(|_| process.print("x"));
        let window = WindowOptions { deadline: Duration::ZERO, quiet: None, max_output: 5000 };
        let first = windows.collect(window).await.output.len();
        assert!(first < 5000, "the window ended before all output was read");
        let rest = windows.collect(WindowOptions { max_output: 5000, ..WINDOW }).await.output.len();
        assert_eq!(first + rest, 5000);
    }

    #[tokio::test(start_paused = true)]
    async fn output_is_bounded_and_gaps_are_counted() {
        let process = FakeProcess::new();
        let mut windows = WindowedOutput::new(&process);
        process.print("abcdefgh");
        let window = WindowOptions { max_output: 4, ..WINDOW };
        let snapshot = windows.collect(window).await;
        assert_eq!(snapshot.output.omitted_bytes, 4);
        process.gap(100);
        process.fail();
        let snapshot = windows.collect(window).await;
        assert_eq!(snapshot.output.omitted_bytes, 100);
        assert!(matches!(snapshot.end, WindowEnd::Failed(_)));
    }
}

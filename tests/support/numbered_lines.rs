//! Clients with numbered lines, which reveal lost and repeated lines.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::sync_channel;
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// How many lines the writer of an echo may be ahead of its reader.
const AHEAD: usize = 200;
/// The pause between two lines: clients at full speed would take CPU time from the servers.
const PACE: Duration = Duration::from_millis(1);

/// Returns a script for [`Printing`] that ends when this file exists.
pub(crate) fn numbered_lines_until(stop: &Path) -> String {
    // In Perl: a shell would start a process for each pause, which is slow on a busy machine.
    format!(
        "exec perl -e '$| = 1; my $i = 0; until (-e \"{}\") {{ print $i++, \"\\n\"; \
         select undef, undef, undef, 0.002 }} print \"end $i\\n\"'",
        stop.display()
    )
}

/// A client whose process prints numbered lines.
pub(crate) struct Printing {
    child: Child,
    seen: Arc<AtomicU64>,
    /// The number that the process would have printed next.
    end: JoinHandle<u64>,
}

impl Printing {
    pub(crate) fn start(mut command: Command) -> Self {
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let seen = Arc::<AtomicU64>::default();
        let counter = Arc::clone(&seen);
        let end = thread::spawn(move || {
            for (expected, line) in (0_u64..).zip(lines) {
                let line = line.unwrap();
                match line.strip_prefix("end ") {
                    Some(end) => return end.parse().unwrap(),
                    None => assert_eq!(line, expected.to_string(), "a line was lost or repeated"),
                }
                counter.store(expected, Ordering::Relaxed);
            }
            panic!("the client ended before its process");
        });
        Self { child, seen, end }
    }

    pub(crate) fn seen(&self) -> u64 {
        assert!(!self.end.is_finished(), "the client has ended");
        self.seen.load(Ordering::Relaxed)
    }

    pub(crate) fn finish(mut self) {
        let end = self.end.join().unwrap();
        assert_eq!(end, self.seen.load(Ordering::Relaxed) + 1, "a line is missing at the end");
        assert_eq!(self.child.wait().unwrap().code(), Some(0));
    }
}

/// A client whose process echoes the numbered lines that it gets.
pub(crate) struct Echoing {
    child: Child,
    seen: Arc<AtomicU64>,
    stop: Arc<AtomicU64>,
    writer: JoinHandle<u64>,
    reader: JoinHandle<u64>,
}

impl Echoing {
    pub(crate) fn start(mut command: Command) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (seen, stop) = (Arc::<AtomicU64>::default(), Arc::<AtomicU64>::default());
        let (mut input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let (ahead, echoed) = sync_channel(AHEAD);
        let stopped = Arc::clone(&stop);
        let writer = thread::spawn(move || {
            for number in 0_u64.. {
                ahead.send(()).expect("the reader receives once per line");
                if stopped.load(Ordering::Relaxed) != 0 {
                    return number;
                }
                writeln!(input, "{number}").unwrap();
                #[expect(
                    clippy::disallowed_methods,
                    reason = "it paces the load and waits for no event"
                )]
                thread::sleep(PACE);
            }
            unreachable!("the numbers are endless");
        });
        let counter = Arc::clone(&seen);
        let reader = thread::spawn(move || {
            let mut count = 0;
            for line in BufReader::new(output).lines() {
                assert_eq!(line.unwrap(), count.to_string(), "a line was lost or repeated");
                counter.store(count, Ordering::Relaxed);
                count += 1;
                echoed.recv().expect("a line is sent before its echo");
            }
            count
        });
        Self { child, seen, stop, writer, reader }
    }

    pub(crate) fn seen(&self) -> u64 {
        assert!(!self.reader.is_finished(), "the client has ended");
        self.seen.load(Ordering::Relaxed)
    }

    pub(crate) fn finish(mut self) {
        self.stop.store(1, Ordering::Relaxed);
        let written = self.writer.join().unwrap();
        assert_eq!(self.reader.join().unwrap(), written, "an echo is missing at the end");
        assert_eq!(self.child.wait().unwrap().code(), Some(0));
    }
}

//! Writes log lines to standard error. Logging never blocks and never fails, even if the pipe is
//! not read or the disk is full.
//!
//! A separate thread writes the lines. Beyond a bound, lines are dropped and counted; the count is
//! logged once writes succeed again.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use tracing_subscriber::fmt::MakeWriter;

const QUEUED_BYTES: usize = 1 << 20;
/// A ready pipe accepts this much without blocking.
const PIPE_BUF: usize = 4096;
/// How long a flush waits.
const LAST_LINES: Duration = Duration::from_millis(500);

/// Queues log lines for a descriptor. Clones share the queue.
#[derive(Debug)]
pub(super) struct Lines<D> {
    shared: Arc<Shared<D>>,
}

impl<D> Clone for Lines<D> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

#[derive(Debug)]
struct Shared<D> {
    descriptor: D,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    queue: VecDeque<Vec<u8>>,
    queued_bytes: usize,
    /// The thread is writing a line that has left the queue.
    writing: bool,
    dropped: u64,
    /// There is no writer thread: the caller writes a line if that cannot block.
    alone: bool,
}

impl<D: AsFd + Send + Sync + 'static> Lines<D> {
    pub(super) fn new(descriptor: D) -> Self {
        let shared = Shared { descriptor, state: Mutex::default(), changed: Condvar::new() };
        let shared = Arc::new(shared);
        let thread = std::thread::Builder::new().name("log".to_owned());
        let writer = Arc::clone(&shared);
        if thread.spawn(move || writer.write_lines()).is_err() {
            shared.lock().alone = true;
        }
        Self { shared }
    }

    /// Waits briefly for the queued lines.
    pub(super) fn flush(&self) {
        let state = self.shared.lock();
        let pending = |state: &mut State| !state.queue.is_empty() || state.writing;
        let _ = self.shared.changed.wait_timeout_while(state, LAST_LINES, pending);
    }

    fn push(&self, line: &[u8]) {
        let mut state = self.shared.lock();
        if state.alone {
            if !write_if_ready(self.shared.descriptor.as_fd(), line) {
                state.dropped += 1;
            }
        } else if state.queued_bytes + line.len() > QUEUED_BYTES {
            state.dropped += 1;
        } else {
            state.queued_bytes += line.len();
            state.queue.push_back(line.to_owned());
            drop(state);
            self.shared.changed.notify_all();
        }
    }
}

impl<D: AsFd> Shared<D> {
    fn write_lines(&self) {
        let mut state = self.lock();
        loop {
            let Some(line) = state.queue.pop_front() else {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            state.queued_bytes -= line.len();
            state.writing = true;
            drop(state);
            let written = write_all(self.descriptor.as_fd(), &line);
            state = self.lock();
            state.writing = false;
            if written.is_err() {
                state.dropped += 1;
            } else if state.dropped > 0 {
                let lines = std::mem::take(&mut state.dropped);
                drop(state);
                // Queued after the other lines, in the same format.
                tracing::warn!(lines, "dropped log lines: standard error did not accept them");
                state = self.lock();
            }
            self.changed.notify_all();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn write_all(descriptor: BorrowedFd<'_>, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match rustix::io::write(descriptor, bytes) {
            Ok(written) => bytes = &bytes[written..],
            Err(Errno::INTR) => {}
            // Another program has made the open file description non-blocking.
            Err(Errno::AGAIN) => {
                poll(&mut [PollFd::new(&descriptor, PollFlags::OUT)], None)?;
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn write_if_ready(descriptor: BorrowedFd<'_>, line: &[u8]) -> bool {
    let mut ready = [PollFd::new(&descriptor, PollFlags::OUT)];
    let is_ready = matches!(poll(&mut ready, Some(&Timespec::default())), Ok(1..));
    is_ready
        && line.len() <= PIPE_BUF
        && ready[0].revents().contains(PollFlags::OUT)
        && rustix::io::write(descriptor, line).is_ok()
}

impl<'a, D: AsFd + Send + Sync + 'static> MakeWriter<'a> for Lines<D> {
    type Writer = Line<'a, D>;

    fn make_writer(&'a self) -> Self::Writer {
        Line(self)
    }
}

/// One line: the subscriber writes each line in one call.
pub(super) struct Line<'a, D>(&'a Lines<D>);

impl<D: AsFd + Send + Sync + 'static> io::Write for Line<'_, D> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.0.push(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Read as _;

    use super::*;

    fn read_to_end(reader: impl Into<File>) -> String {
        let mut text = String::new();
        reader.into().read_to_string(&mut text).unwrap();
        text
    }

    fn alone<D>(descriptor: D) -> Lines<D> {
        let state = Mutex::new(State { alone: true, ..State::default() });
        Lines { shared: Arc::new(Shared { descriptor, state, changed: Condvar::new() }) }
    }

    #[test]
    fn a_stalled_reader_drops_lines_without_blocking() {
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        let lines = Lines::new(writer);
        let line = [b'x'; 1000];
        for _ in 0..10_000 {
            lines.push(&line);
        }
        assert!(lines.shared.lock().queued_bytes <= QUEUED_BYTES);
        assert!(lines.shared.lock().dropped > 0);
        drop(reader);
    }

    #[test]
    fn failed_writes_are_counted() {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let lines = Lines::new(full);
        lines.push(b"lost\n");
        lines.flush();
        assert_eq!(lines.shared.lock().dropped, 1);
    }

    #[test]
    fn lines_are_written_in_order_with_a_thread_and_without() {
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        let (again, without) = (writer.try_clone().unwrap(), writer);
        let lines = Lines::new(again);
        lines.push(b"1\n");
        lines.push(b"2\n");
        lines.flush();
        let mut text = [0; 4];
        File::from(reader.try_clone().unwrap()).read_exact(&mut text).unwrap();
        assert_eq!(&text, b"1\n2\n");
        let lines = alone(without);
        lines.push(b"3\n");
        lines.push(&[b'x'; PIPE_BUF + 1]);
        File::from(reader.try_clone().unwrap()).read_exact(&mut text[..2]).unwrap();
        assert_eq!((&text[..2], lines.shared.lock().dropped), (&b"3\n"[..], 1));
    }

    #[test]
    fn without_a_thread_a_full_pipe_does_not_block() {
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        let lines = alone(writer);
        for _ in 0..1000 {
            lines.push(&[b'x'; PIPE_BUF]);
        }
        let dropped = lines.shared.lock().dropped;
        assert!((1..1000).contains(&dropped), "{dropped}");
        drop(lines);
        let read = read_to_end(reader).len() as u64;
        assert_eq!(read, (1000 - dropped) * PIPE_BUF as u64);
    }
}

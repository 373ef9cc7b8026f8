//! The thread that writes records. A hanging disk blocks only this thread.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use super::file::AuditFile;
use super::journal::Journal;
use super::{AuditError, AuditTarget};

/// Maximum number of queued records. Further ones are lost and counted.
const MAX_WAITING: usize = 4096;
/// Queue capacity for jobs other than records.
const OTHER_JOBS: usize = 16;
/// A caller waits in this many steps. If the whole process is stopped or the machine sleeps, that
/// time uses up only one step, and the writer thread still gets the others.
const WAIT_STEPS: u32 = 20;

#[derive(Debug)]
pub(super) struct Writer {
    jobs: SyncSender<Job>,
    state: Arc<State>,
}

/// Shared by the thread and its callers.
#[derive(Debug)]
struct State {
    target: AuditTarget,
    failures: AtomicU64,
    waiting: AtomicUsize,
    /// Whether the last record was lost.
    is_failing: AtomicBool,
    /// Whether a caller has timed out and the thread has handled no record since.
    is_stuck: AtomicBool,
}

enum Job {
    Write {
        record: Vec<u8>,
        done: Option<SyncSender<io::Result<()>>>,
    },
    Reopen {
        done: SyncSender<Result<(), AuditError>>,
    },
    Flush {
        done: SyncSender<()>,
    },
    #[cfg(test)]
    Hang {
        until: Receiver<()>,
    },
}

impl Writer {
    /// Starts the thread now, since later the system may refuse new threads.
    pub(super) fn start(target: AuditTarget) -> Result<Self, AuditError> {
        let sink = Sink::open(&target)?;
        let (jobs, queue) = sync_channel(MAX_WAITING + OTHER_JOBS);
        let state = Arc::new(State {
            target: target.clone(),
            failures: AtomicU64::new(0),
            waiting: AtomicUsize::new(0),
            is_failing: AtomicBool::new(false),
            is_stuck: AtomicBool::new(false),
        });
        let shared = Arc::clone(&state);
        let thread = thread::Builder::new().name("audit".to_owned());
        let started = thread.spawn(move || run(&queue, sink, &shared));
        started.map_err(|source| AuditError::Open { target, source })?;
        Ok(Self { jobs, state })
    }

    /// Queues a record and returns at once. An error means that the record is lost.
    pub(super) fn write(&self, record: Vec<u8>) -> io::Result<()> {
        self.enqueue(record, None)
    }

    /// Returns when the record is written or lost. Fails after `timeout`, when the record may still
    /// be written, or at once if the thread is stuck.
    pub(super) fn write_and_wait(&self, record: Vec<u8>, timeout: Duration) -> io::Result<()> {
        if self.state.is_stuck.load(Ordering::Relaxed) && self.waiting() > 0 {
            return Err(self.state.lose(io::ErrorKind::TimedOut.into()));
        }
        let (done, written) = sync_channel(1);
        self.enqueue(record, Some(done))?;
        for _ in 0..WAIT_STEPS {
            if let Ok(result) = written.recv_timeout(timeout / WAIT_STEPS) {
                return result;
            }
        }
        self.state.is_stuck.store(true, Ordering::Relaxed);
        Err(self.state.lose(io::ErrorKind::TimedOut.into()))
    }

    /// Reopens the file. Returns `None` after `timeout`, when the file may still be reopened later,
    /// or if the queue is full.
    pub(super) fn reopen(&self, timeout: Duration) -> Option<Result<(), AuditError>> {
        let (done, reopened) = sync_channel(1);
        self.jobs.try_send(Job::Reopen { done }).ok()?;
        reopened.recv_timeout(timeout).ok()
    }

    /// Waits until all records queued so far are written or lost. Returns false after `timeout`, or
    /// if the queue is full.
    pub(super) fn flush(&self, timeout: Duration) -> bool {
        let (done, flushed) = sync_channel(1);
        self.jobs.try_send(Job::Flush { done }).is_ok() && flushed.recv_timeout(timeout).is_ok()
    }

    pub(super) fn failures(&self) -> u64 {
        self.state.failures.load(Ordering::Relaxed)
    }

    pub(super) fn waiting(&self) -> usize {
        self.state.waiting.load(Ordering::Relaxed)
    }

    /// Counts a record that could not be encoded.
    pub(super) fn lose(&self, error: io::Error) -> io::Error {
        self.state.lose(error)
    }

    /// Blocks the thread until the returned value is dropped.
    #[cfg(test)]
    pub(super) fn hang(&self) -> SyncSender<()> {
        let (release, until) = sync_channel(0);
        self.jobs.try_send(Job::Hang { until }).unwrap();
        release
    }

    fn enqueue(&self, record: Vec<u8>, done: Option<SyncSender<io::Result<()>>>) -> io::Result<()> {
        let has_room = self.state.waiting.fetch_add(1, Ordering::Relaxed) < MAX_WAITING;
        if has_room && self.jobs.try_send(Job::Write { record, done }).is_ok() {
            return Ok(());
        }
        self.state.waiting.fetch_sub(1, Ordering::Relaxed);
        let message = format!("the queue of the audit log is full ({MAX_WAITING} records)");
        Err(self.state.lose(io::Error::other(message)))
    }
}

impl State {
    /// Counts a lost record. Logs only the first of each outage: a line for each could fill the
    /// same disk.
    fn lose(&self, error: io::Error) -> io::Error {
        self.failures.fetch_add(1, Ordering::Relaxed);
        if !self.is_failing.swap(true, Ordering::Relaxed) {
            tracing::error!(
                %error,
                log = %self.target,
                "records may be missing from the audit log"
            );
        }
        error
    }

    fn note_written(&self) {
        if self.is_failing.swap(false, Ordering::Relaxed) {
            tracing::info!(log = %self.target, "writing to the audit log again");
        }
    }
}

fn run(queue: &Receiver<Job>, mut sink: Sink, state: &State) {
    while let Ok(job) = queue.recv() {
        // Callers may have given up waiting, so sends of results may find no receiver.
        match job {
            Job::Write { record, done } => {
                let written = sink.write(record).map_err(|error| state.lose(error));
                state.is_stuck.store(false, Ordering::Relaxed);
                state.waiting.fetch_sub(1, Ordering::Relaxed);
                if written.is_ok() {
                    state.note_written();
                }
                if let Some(done) = done {
                    let _ = done.send(written);
                }
            }
            Job::Reopen { done } => {
                let reopened = Sink::open(&state.target).map(|opened| sink = opened);
                let _ = done.send(reopened);
            }
            Job::Flush { done } => drop(done.send(())),
            #[cfg(test)]
            Job::Hang { until } => drop(until.recv()),
        }
    }
}

#[derive(Debug)]
enum Sink {
    File(AuditFile),
    Journal(Journal),
}

impl Sink {
    fn open(target: &AuditTarget) -> Result<Self, AuditError> {
        let opened = match target {
            AuditTarget::File(path) => AuditFile::open(path).map(Self::File),
            AuditTarget::Journal(path) => Journal::connect(path).map(Self::Journal),
        };
        opened.map_err(|source| AuditError::Open { target: target.clone(), source })
    }

    fn write(&mut self, record: Vec<u8>) -> io::Result<()> {
        match self {
            Self::File(file) => file.append(record),
            Self::Journal(journal) => journal.send(&record),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::AuditLog;
    use super::*;

    #[test]
    fn an_idle_thread_is_not_stuck() {
        let scratch = tempfile::tempdir().unwrap();
        let log = AuditLog::open(AuditTarget::File(scratch.path().join("audit"))).unwrap();
        // The thread wrote the last record just before its caller gave up.
        log.writer.state.is_stuck.store(true, Ordering::Relaxed);
        log.writer.write_and_wait(b"{}\n".to_vec(), Duration::MAX).unwrap();
    }
}

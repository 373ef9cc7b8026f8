//! Clients that use every feature of the server continuously.

use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::jobs::{Done, Job};
use super::site::{DIRECT, RELAYED, Site};
use crate::support::eventually;
use crate::support::numbered_lines::{Echoing, Printing, numbered_lines_until};

/// The pause between two runs of a job: the server needs CPU time too.
const PAUSE: Duration = Duration::from_millis(50);
/// The number of lines that prove that a stream continues.
const SOME_LINES: u64 = 10;

pub(super) struct Load {
    streams: Streams,
    workers: Vec<Worker>,
    shared: Arc<Shared>,
    /// Ends the processes that print.
    stop: std::path::PathBuf,
}

/// Streams of numbered lines that last as long as the load.
struct Streams {
    printing: Vec<Printing>,
    echoing: Vec<Echoing>,
}

struct Worker {
    name: &'static str,
    counts: Arc<Counts>,
    thread: JoinHandle<()>,
}

#[derive(Default)]
struct Counts {
    done: AtomicU64,
    failed: AtomicU64,
}

#[derive(Default)]
struct Shared {
    /// An even number while every job must succeed. Incremented with each change.
    epoch: AtomicU64,
    stop: AtomicBool,
}

impl Load {
    /// Starts the load and waits for progress of all streams and jobs: a failed first connection
    /// would not be retried.
    pub(super) fn start(site: &Site) -> Self {
        let stop = site.place.path("stop");
        let _ = std::fs::remove_file(&stop);
        let script = numbered_lines_until(&stop);
        let shared = Arc::<Shared>::default();
        let run = |way: &str, program: &[&str]| {
            site.command(&[&["run", "--on", way, "--"], program].concat())
        };
        let printing =
            [DIRECT, RELAYED].map(|way| Printing::start(run(way, &["sh", "-c", &script])));
        let echoing = [DIRECT, RELAYED].map(|way| Echoing::start(run(way, &["cat"])));
        let streams = Streams { printing: printing.into(), echoing: echoing.into() };
        let workers = Job::all(site).into_iter().map(|job| Worker::start(job, &shared)).collect();
        let load = Self { streams, workers, shared, stop };
        load.wait_for_progress();
        load
    }

    /// Sets whether jobs may fail. A wrong result is never allowed.
    pub(super) fn expect_failures(&self, may_fail: bool) {
        let before = self.shared.epoch.fetch_add(1, Ordering::SeqCst);
        assert_eq!(before.is_multiple_of(2), may_fail, "faults do not overlap");
    }

    /// Waits until every stream has continued and every job was done once more.
    pub(super) fn wait_for_progress(&self) {
        let before: Vec<_> = self.workers.iter().map(Worker::done).collect();
        self.wait_for_streams();
        eventually("all jobs are done once more", || {
            self.workers.iter().zip(&before).all(|(worker, before)| worker.done() > *before)
        });
    }

    pub(super) fn wait_for_streams(&self) {
        let before = self.streams.seen();
        eventually("all streams continue", || {
            self.streams.seen().iter().zip(&before).all(|(now, before)| *now > before + SOME_LINES)
        });
    }

    pub(super) fn figures(&self) -> String {
        let mut text = format!("lines {:?}", self.streams.seen());
        for Worker { name, counts, .. } in &self.workers {
            let (done, failed) = (&counts.done, &counts.failed);
            write!(text, ", {name} {}", done.load(Ordering::Relaxed)).unwrap();
            write!(text, " ({} failed)", failed.load(Ordering::Relaxed)).unwrap();
        }
        text
    }

    /// Ends the load and checks that no line is lost. Returns the counts.
    pub(super) fn finish(self) -> String {
        let figures = self.figures();
        self.shared.stop.store(true, Ordering::Relaxed);
        self.workers.into_iter().for_each(|worker| worker.thread.join().unwrap());
        std::fs::write(&self.stop, "").unwrap();
        self.streams.echoing.into_iter().for_each(Echoing::finish);
        self.streams.printing.into_iter().for_each(Printing::finish);
        figures
    }
}

impl Streams {
    fn seen(&self) -> Vec<u64> {
        let printing = self.printing.iter().map(Printing::seen);
        printing.chain(self.echoing.iter().map(Echoing::seen)).collect()
    }
}

impl Worker {
    fn start(mut job: Job, shared: &Arc<Shared>) -> Self {
        let (name, shared) = (job.name(), Arc::clone(shared));
        let counts = Arc::<Counts>::default();
        let counted = Arc::clone(&counts);
        let thread = thread::spawn(move || {
            while !shared.stop.load(Ordering::Relaxed) {
                let before = shared.epoch.load(Ordering::SeqCst);
                match job.run() {
                    Done::Right => counted.done.fetch_add(1, Ordering::SeqCst),
                    Done::Failed(why) => {
                        let is_calm = before.is_multiple_of(2);
                        let is_same = shared.epoch.load(Ordering::SeqCst) == before;
                        assert!(!(is_calm && is_same), "{name} failed without a fault: {why}");
                        counted.failed.fetch_add(1, Ordering::SeqCst)
                    }
                };
                #[expect(
                    clippy::disallowed_methods,
                    reason = "it paces the load and waits for no event"
                )]
                thread::sleep(PAUSE);
            }
        });
        Self { name, counts, thread }
    }

    fn done(&self) -> u64 {
        assert!(!self.thread.is_finished(), "the thread of the {} has panicked", self.name);
        self.counts.done.load(Ordering::SeqCst)
    }
}

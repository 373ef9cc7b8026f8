//! The progress of a copy: counters for the summary, and a progress line on a terminal.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io::{self, IsTerminal as _, Write as _};
use std::pin::pin;
use std::time::{Duration, Instant};

use serde_json::json;
use tokio::time::MissedTickBehavior;

use super::bar::ProgressLine;
use crate::program::{self, say};
use crate::terminal;

const REDRAW: Duration = Duration::from_millis(100);
/// The rate is averaged over this period.
const RECENT: Duration = Duration::from_secs(3);

#[derive(Debug)]
pub(super) struct Progress {
    started: Instant,
    is_verbose: bool,
    /// Whether the progress line is shown.
    is_shown: bool,
    is_drawn: Cell<bool>,
    is_quiet: bool,
    /// The message if the copy is interrupted.
    interruption: Cell<Option<&'static str>>,
    /// Set once a tree is copied within a server, which reports no counts.
    is_uncounted: Cell<bool>,
    pub(super) counts: Counts,
    current: RefCell<String>,
    /// Samples of the time and the bytes transferred.
    recent: RefCell<VecDeque<(Instant, u64)>>,
}

#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) found: Cell<u64>,
    pub(super) all_files: Cell<u64>,
    pub(super) all_bytes: Cell<u64>,
    pub(super) files: Cell<u64>,
    pub(super) directories: Cell<u64>,
    pub(super) symlinks: Cell<u64>,
    /// The bytes already at the destination, out of `all_bytes`.
    pub(super) bytes: Cell<u64>,
    pub(super) transferred: Cell<u64>,
    pub(super) resumed: Cell<u64>,
    pub(super) skipped: Cell<u64>,
    pub(super) failed: Cell<u64>,
}

pub(super) fn add(count: &Cell<u64>, more: u64) {
    count.set(count.get() + more);
}

impl Progress {
    pub(super) fn new(is_quiet: bool, is_verbose: bool) -> Self {
        Self {
            started: Instant::now(),
            is_verbose,
            is_shown: !is_quiet && io::stderr().is_terminal(),
            is_drawn: Cell::new(false),
            is_quiet,
            interruption: Cell::new(None),
            is_uncounted: Cell::new(false),
            counts: Counts::default(),
            current: RefCell::default(),
            recent: RefCell::default(),
        }
    }

    pub(super) fn if_interrupted(&self, text: &'static str) {
        self.interruption.set(Some(text).filter(|_| !self.is_quiet));
    }

    pub(super) async fn draw_during<T>(&self, work: impl Future<Output = T>) -> T {
        if !self.is_shown {
            return work.await;
        }
        let mut work = pin!(work);
        // A short copy shows no progress line.
        let mut ticks = tokio::time::interval_at(tokio::time::Instant::now() + REDRAW, REDRAW);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                done = &mut work => return done,
                _ = ticks.tick() => self.draw_once(),
            }
        }
    }

    /// Sets the name in the progress line. With `--verbose`, also prints it.
    pub(super) fn begin(&self, name: String) {
        if self.is_verbose {
            self.tell(&name);
        }
        *self.current.borrow_mut() = name;
    }

    pub(super) fn expect_unknown(&self) {
        self.is_uncounted.set(true);
    }

    /// Prints a message with `--verbose`, or on a terminal without `--quiet`.
    pub(super) fn note(&self, text: &str) {
        if self.is_verbose || self.is_shown {
            self.tell(text);
        }
    }

    pub(super) fn warn(&self, text: &str) {
        self.clear();
        say(text);
    }

    /// Removes the progress line. If the copy `is_done`, prints a summary with `--verbose`, or on a
    /// terminal without `--quiet`.
    pub(super) fn end(&self, is_done: bool) {
        self.clear();
        self.interruption.set(None);
        let elapsed = self.started.elapsed();
        if is_done && (self.is_verbose || self.is_shown) {
            self.tell(&match self.is_uncounted.get() {
                true => format!("done in {:.1} s", elapsed.as_secs_f64()),
                false => self.shown().done(elapsed),
            });
        }
    }

    pub(super) fn json(&self) -> String {
        let counts = &self.counts;
        let elapsed = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        let mut summary = json!({
            "transferredBytes": counts.transferred.get(),
            "resumedBytes": counts.resumed.get(),
            "skipped": counts.skipped.get(),
            "failed": counts.failed.get(),
            "elapsedMs": elapsed,
        });
        if !self.is_uncounted.get() {
            summary["files"] = counts.files.get().into();
            summary["directories"] = counts.directories.get().into();
            summary["symlinks"] = counts.symlinks.get().into();
            summary["bytes"] = counts.bytes.get().into();
        }
        summary.to_string()
    }

    fn draw_once(&self) {
        // One column less than the width: a full line would wrap on some terminals.
        let columns = terminal::size_of_stderr().map_or(80, |(_, columns)| columns);
        let line = self.shown().line(usize::from(columns).saturating_sub(1));
        let _ = io::stderr().write_all(format!("\r{line}\x1b[K").as_bytes());
        self.is_drawn.set(true);
    }

    fn clear(&self) {
        if self.is_drawn.replace(false) {
            let _ = io::stderr().write_all(b"\r\x1b[K");
        }
    }

    fn tell(&self, text: &str) {
        self.clear();
        program::tell(text);
    }

    fn shown(&self) -> ProgressLine {
        let counts = &self.counts;
        ProgressLine {
            found: counts.found.get(),
            files: counts.files.get(),
            all_files: counts.all_files.get(),
            bytes: counts.bytes.get(),
            all_bytes: counts.all_bytes.get(),
            transferred: counts.transferred.get(),
            rate: self.rate(Instant::now()),
            name: self.current.borrow().clone(),
        }
    }

    /// Returns bytes per second.
    fn rate(&self, now: Instant) -> u64 {
        let transferred = self.counts.transferred.get();
        let mut recent = self.recent.borrow_mut();
        recent.push_back((now, transferred));
        while recent.get(1).is_some_and(|(then, _)| now.duration_since(*then) >= RECENT) {
            recent.pop_front();
        }
        let (then, before) = recent.front().copied().unwrap_or((now, transferred));
        per_second(transferred - before, now.duration_since(then))
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        // The copy was interrupted: the last progress line stays visible.
        if self.is_drawn.get() {
            let _ = writeln!(io::stderr());
        }
        if let Some(text) = self.interruption.get() {
            say(text);
        }
    }
}

pub(super) fn per_second(bytes: u64, time: Duration) -> u64 {
    let ms = u64::try_from(time.as_millis()).unwrap_or(u64::MAX).max(1);
    bytes.saturating_mul(1000) / ms
}

/// The progress of one file. Its count is reset when the file starts over.
#[derive(Debug)]
pub(super) struct FileProgress<'a> {
    counts: &'a Counts,
    counted: Cell<u64>,
}

impl<'a> FileProgress<'a> {
    pub(super) fn new(counts: &'a Counts) -> Self {
        Self { counts, counted: Cell::new(0) }
    }

    /// Records that everything before `place` has been copied.
    pub(super) fn reached(&self, place: u64) {
        let before = self.counted.replace(place);
        let bytes = &self.counts.bytes;
        bytes.set((bytes.get() + place).saturating_sub(before));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_restarted_file_is_not_counted_twice() {
        let counts = Counts::default();
        let (one, other) = (FileProgress::new(&counts), FileProgress::new(&counts));
        one.reached(10);
        other.reached(5);
        one.reached(0);
        one.reached(12);
        assert_eq!(counts.bytes.get(), 17);
    }

    #[test]
    fn the_rate_covers_recent_transfers() {
        let progress = Progress::new(true, false);
        let start = Instant::now();
        assert_eq!(progress.rate(start), 0);
        for second in 1..=10 {
            add(&progress.counts.transferred, 1000);
            assert_eq!(progress.rate(start + Duration::from_secs(second)), 1000);
        }
        assert_eq!(progress.rate(start + Duration::from_secs(14)), 0);
    }
}

//! Searches one file: turns the searcher's results into matches with context.

use std::fs::File;
use std::io::{self, Read};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use grep_matcher::Matcher as _;
use grep_regex::RegexMatcher;
use grep_searcher::{Searcher, Sink, SinkContext, SinkContextKind, SinkMatch};

use super::text::{LineText, MAX_LINE_BYTES};
use super::{Line, Match, Summary};

/// The cost of a line, a submatch or a match in addition to its text.
const OVERHEAD_BYTES: usize = 16;

/// How much of a line is searched for the positions of its submatches. Finding all takes quadratic
/// time with some patterns, and only those in the first [`MAX_LINE_BYTES`] are shown.
const MAX_LOCATED_BYTES: usize = 64 << 10;

/// A file that reports its end once the search is cancelled.
pub(super) struct UntilCancelled<'a> {
    pub(super) file: File,
    pub(super) cancelled: &'a AtomicBool,
}

impl Read for UntilCancelled<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.cancelled.load(Ordering::Relaxed) {
            return Ok(0);
        }
        self.file.read(buffer)
    }
}

pub(super) struct FileSink<'a> {
    pub(super) path: &'a Path,
    pub(super) matcher: &'a RegexMatcher,
    pub(super) cancelled: &'a AtomicBool,
    pub(super) after: usize,
    pub(super) max_matches: u64,
    /// Context before the next match.
    pub(super) before: Vec<Line>,
    /// Reported when its context is complete.
    pub(super) current: Option<Match>,
    pub(super) found: &'a mut dyn FnMut(Match) -> ControlFlow<()>,
    pub(super) bytes_left: &'a mut usize,
    pub(super) summary: &'a mut Summary,
}

impl FileSink<'_> {
    /// Reports the match whose context is complete.
    pub(super) fn tell(&mut self) {
        let Some(found) = self.current.take() else {
            return;
        };
        match self.bytes_left.checked_sub(cost(&found)) {
            Some(left) if !self.summary.truncated => *self.bytes_left = left,
            _ => {
                self.summary.truncated = true;
                return;
            }
        }
        self.summary.matches += 1;
        let flow = (self.found)(found);
        if flow.is_break() || self.summary.matches >= self.max_matches {
            self.summary.truncated = true;
        }
    }

    fn is_last(&self) -> bool {
        self.summary.matches + 1 >= self.max_matches
    }

    /// Reports the match if it is complete and the last one wanted. Returns whether to continue.
    fn tell_if_last(&mut self) -> bool {
        let is_complete =
            self.current.as_ref().is_some_and(|found| found.after.len() >= self.after);
        if is_complete && self.is_last() {
            self.tell();
        }
        !self.summary.truncated
    }
}

impl Sink for FileSink<'_> {
    type Error = io::Error;

    fn matched(&mut self, _: &Searcher, found: &SinkMatch<'_>) -> io::Result<bool> {
        self.tell();
        if self.summary.truncated || self.cancelled.load(Ordering::Relaxed) {
            return Ok(false);
        }
        let line = found.bytes();
        let shown = LineText::new(line);
        let line = line.strip_suffix(b"\n").unwrap_or(line);
        let line = &line[..line.len().min(MAX_LOCATED_BYTES)];
        let mut submatches = Vec::new();
        self.matcher
            .find_iter(line, |place| {
                submatches.extend(shown.locate(place.start()..place.end()));
                place.end() < MAX_LINE_BYTES
            })
            .map_err(io::Error::other)?;
        self.current = Some(Match {
            path: self.path.to_owned(),
            line_number: found.line_number().unwrap_or(0),
            text: shown.text,
            is_cut: shown.is_cut,
            submatches,
            before: std::mem::take(&mut self.before),
            after: Vec::new(),
        });
        Ok(self.tell_if_last())
    }

    fn context(&mut self, _: &Searcher, context: &SinkContext<'_>) -> io::Result<bool> {
        let LineText { text, is_cut, .. } = LineText::new(context.bytes());
        let line = Line { line_number: context.line_number().unwrap_or(0), text, is_cut };
        match (context.kind(), &mut self.current) {
            (SinkContextKind::After, Some(current)) => {
                current.after.push(line);
                Ok(self.tell_if_last())
            }
            _ => {
                self.before.push(line);
                Ok(true)
            }
        }
    }

    fn context_break(&mut self, _: &Searcher) -> io::Result<bool> {
        self.tell();
        Ok(!self.summary.truncated)
    }
}

fn cost(found: &Match) -> usize {
    let context = found.before.iter().chain(&found.after);
    let context: usize = context.map(|line| line.text.len() + OVERHEAD_BYTES).sum();
    let places = found.submatches.len() * OVERHEAD_BYTES;
    found.path.as_os_str().len() + found.text.len() + OVERHEAD_BYTES + places + context
}

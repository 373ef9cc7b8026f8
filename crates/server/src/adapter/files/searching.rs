//! One search: its matches in batches, and its result. It blocks.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use exec_server_host::fs::search::{self, Match, SearchOptions, Summary};
use exec_server_protocol::{
    FsSearchParams, FsSearchResponse, PathUri, RpcError, SearchLine, SearchMatch, Submatch,
};

use super::errors::{bad_pattern, to_rpc_error};
use super::executor::PolicyScoped;

/// A batch is sent when it has this size, or when a match is found [`BATCH_AGE`] after the previous
/// batch.
const BATCH_BYTES: usize = 64 << 10;
/// Per line: the number of values in a message is limited.
const MAX_SUBMATCHES: usize = 1000;
/// Approximate size of one submatch as text.
const SUBMATCH_BYTES: usize = 24;
const BATCH_AGE: Duration = Duration::from_millis(50);

/// A checked search that is ready to run.
#[derive(Debug)]
pub(crate) struct Searching {
    search: search::Search,
    root: PathUri,
}

impl Searching {
    pub(crate) fn new(
        PolicyScoped { params, .. }: PolicyScoped<FsSearchParams>,
    ) -> Result<Self, RpcError> {
        let max_matches = params.max_matches.unwrap_or(FsSearchParams::DEFAULT_MATCHES);
        for (name, asked, most) in [
            ("maxMatches", max_matches, FsSearchParams::MAX_MATCHES),
            ("before", params.before.into(), FsSearchParams::MAX_CONTEXT.into()),
            ("after", params.after.into(), FsSearchParams::MAX_CONTEXT.into()),
        ] {
            if asked > most {
                let path = params.path.as_path().display();
                let message = format!("{path}: {name} {asked} exceeds the limit of {most}");
                return Err(RpcError::invalid_request(message));
            }
        }
        let options = SearchOptions {
            pattern: params.pattern,
            literal: params.literal,
            ignore_case: params.ignore_case,
            word: params.word,
            globs: params.globs,
            hidden: params.hidden,
            ignored: params.ignored,
            before: params.before as usize,
            after: params.after as usize,
            max_matches,
        };
        let search =
            search::Search::new(&options).map_err(|error| bad_pattern(&error.to_string()))?;
        Ok(Self { search, root: params.path })
    }

    /// Calls `send` with each batch. `send` may wait, and returns whether the client wants more.
    pub(crate) fn run(
        &self,
        cancelled: &AtomicBool,
        mut send: impl FnMut(Vec<SearchMatch>) -> ControlFlow<()>,
    ) -> Result<FsSearchResponse, RpcError> {
        let mut batch = Batch::default();
        let mut found = |found: Match| {
            batch.push(found);
            if batch.is_due() { send(batch.take()) } else { ControlFlow::Continue(()) }
        };
        let root: &Path = self.root.as_path();
        let summary = self.search.run(root, cancelled, &mut found).map_err(to_rpc_error)?;
        if !batch.matches.is_empty() && send(batch.take()).is_break() {
            cancelled.store(true, Ordering::Relaxed);
        }
        let Summary { matches, files_searched, unreadable, truncated, cancelled } = summary;
        Ok(FsSearchResponse { matches, files_searched, unreadable, truncated, cancelled })
    }
}

struct Batch {
    matches: Vec<SearchMatch>,
    bytes: usize,
    sent: Instant,
}

impl Default for Batch {
    fn default() -> Self {
        Self { matches: Vec::new(), bytes: 0, sent: Instant::now() }
    }
}

impl Batch {
    fn push(&mut self, found: Match) {
        let Some(path) = PathUri::from_path(found.path) else { return };
        let lines =
            found.before.iter().chain(&found.after).map(|line| line.text.len()).sum::<usize>();
        let submatches = found.submatches.len().min(MAX_SUBMATCHES);
        self.bytes += path.as_path().as_os_str().len()
            + found.text.len()
            + lines
            + submatches * SUBMATCH_BYTES;
        let submatch = |range: std::ops::Range<usize>| Submatch {
            start: range.start as u64,
            end: range.end as u64,
        };
        self.matches.push(SearchMatch {
            path,
            line_number: found.line_number,
            text: found.text,
            line_truncated: found.is_cut,
            submatches: found.submatches.into_iter().take(MAX_SUBMATCHES).map(submatch).collect(),
            before: lines_of(found.before),
            after: lines_of(found.after),
        });
    }

    fn is_due(&self) -> bool {
        self.bytes >= BATCH_BYTES || self.sent.elapsed() >= BATCH_AGE
    }

    fn take(&mut self) -> Vec<SearchMatch> {
        (self.bytes, self.sent) = (0, Instant::now());
        std::mem::take(&mut self.matches)
    }
}

fn lines_of(lines: Vec<search::Line>) -> Vec<SearchLine> {
    let wire = |search::Line { line_number, text, is_cut }| SearchLine {
        line_number,
        text,
        line_truncated: is_cut,
    };
    lines.into_iter().map(wire).collect()
}

//! Finds lines that match a pattern, in a file or in all visible files of a tree.
//!
//! Uses the matcher and the searcher of ripgrep. Every result is bounded, and so is the memory of a
//! search, whatever the files contain.

mod file;
mod rules;
mod text;
pub(super) mod visible;

use std::fs::File;
use std::io;
use std::ops::{ControlFlow, Range};
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use grep_matcher::LineTerminator;
use grep_regex::{RegexMatcher, RegexMatcherBuilder};
use grep_searcher::{BinaryDetection, MmapChoice, Searcher, SearcherBuilder};
use rustix::fs::FileType;
use rustix::io::Errno;

use self::file::{FileSink, UntilCancelled};
use self::visible::{Entry, Found, Next, READING, Visibility};
use super::FsError;
use super::confinement::RequiredAccess;
use crate::fs::path::kind::FileKind;
use crate::fs::path::resolve::{self, Symlinks};
use crate::fs::read::metadata::size;
use crate::fs::tree::glob::{Globs, PatternError, Verdict};

/// Parsing a pattern takes a hundred times its length in memory.
const MAX_PATTERN_BYTES: usize = 64 << 10;
/// An error shows this much of a pattern.
const SHOWN_CHARS: usize = 200;
/// Limit on the compiled pattern. The caches that the pattern fills while it runs may take as much
/// again.
const MAX_REGEX_BYTES: usize = 10 << 20;
/// A line must fit into the buffer, although only its beginning is reported.
const MAX_BUFFER_BYTES: usize = 32 << 20;
/// Limit on the total size of all results.
const MAX_RESULT_BYTES: usize = 16 << 20;

#[derive(Debug, Clone, Default)]
pub struct SearchOptions {
    /// A regular expression, or a literal string if `literal`.
    pub pattern: String,
    pub literal: bool,
    pub ignore_case: bool,
    /// Match whole words only.
    pub word: bool,
    /// Search only files that match these, as in
    /// [`GlobOptions`](crate::fs::tree::glob::GlobOptions).
    pub globs: Vec<String>,
    /// Include names that start with a dot.
    pub hidden: bool,
    /// Include files excluded by ignore files.
    pub ignored: bool,
    /// Lines of context before a match.
    pub before: usize,
    pub after: usize,
    pub max_matches: u64,
}

#[derive(Debug, thiserror::Error)]
pub enum SearchError {
    #[error("invalid pattern {pattern:?}: {why}")]
    Pattern { pattern: String, why: String },
    #[error("pattern of {len} bytes exceeds the limit of {max}")]
    PatternTooLong { len: usize, max: usize },
    #[error(transparent)]
    Glob(#[from] PatternError),
}

/// One matching line.
///
/// No line of the file is reported twice: if the contexts of two matches meet, the lines between
/// them belong to `after` of the first as far as that reaches, then to `before` of the second. So
/// `before`, the line and `after` of all matches in turn are the output of `grep`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Match {
    pub path: PathBuf,
    /// Counted from 1.
    pub line_number: u64,
    /// Without the line end. Invalid UTF-8 is replaced, and a line longer than 4 KiB is cut.
    pub text: String,
    pub is_cut: bool,
    /// Ranges in `text`. Excludes empty matches and those in the part that was cut.
    pub submatches: Vec<Range<usize>>,
    pub before: Vec<Line>,
    pub after: Vec<Line>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    pub line_number: u64,
    pub text: String,
    pub is_cut: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Summary {
    /// Matching lines.
    pub matches: u64,
    pub files_searched: u64,
    /// Files, directories and ignore files that could not be read completely.
    pub unreadable: u64,
    /// A limit was reached, or the receiver stopped the search.
    pub truncated: bool,
    pub cancelled: bool,
}

#[derive(Debug)]
pub struct Search {
    matcher: RegexMatcher,
    searcher: SearcherBuilder,
    globs: Globs,
    visibility: Visibility,
    after: usize,
    max_matches: u64,
}

impl Search {
    pub fn new(options: &SearchOptions) -> Result<Self, SearchError> {
        let len = options.pattern.len();
        if len > MAX_PATTERN_BYTES {
            return Err(SearchError::PatternTooLong { len, max: MAX_PATTERN_BYTES });
        }
        let (matcher, terminator) = matcher(options)?;
        let mut searcher = SearcherBuilder::new();
        searcher
            .line_terminator(terminator)
            .line_number(true)
            .before_context(options.before)
            .after_context(options.after)
            .binary_detection(BinaryDetection::quit(0))
            // Truncating a mapped file would kill the process with SIGBUS.
            .memory_map(MmapChoice::never())
            .heap_limit(Some(MAX_BUFFER_BYTES));
        Ok(Self {
            matcher,
            searcher,
            globs: Globs::new(&options.globs)?,
            visibility: Visibility { hidden: options.hidden, ignored: options.ignored },
            after: options.after,
            max_matches: options.max_matches,
        })
    }

    /// Runs the search; blocks. Calls `found` with each match, ordered by path and line, until
    /// `found` breaks. Checks `cancelled` before each file, each block of a file and each match.
    ///
    /// A `root` that is a file is searched, whatever its name. Symlinks below the root are not
    /// followed, and only regular files are opened. A file is searched up to its first NUL byte.
    pub fn run(
        &self,
        root: &Path,
        cancelled: &AtomicBool,
        found: &mut dyn FnMut(Match) -> ControlFlow<()>,
    ) -> Result<Summary, FsError> {
        let node = resolve::node(root, Symlinks::Follow, RequiredAccess::Read)?;
        let stat = rustix::fs::fstat(&node).map_err(FsError::os("stat", root))?;
        if self.max_matches == 0 {
            return Ok(Summary { truncated: true, ..Summary::default() });
        }
        let mut run = Run {
            search: self,
            searcher: self.searcher.build(),
            cancelled,
            found,
            bytes_left: MAX_RESULT_BYTES,
            summary: Summary::default(),
        };
        match FileKind::from(FileType::from_raw_mode(stat.st_mode)) {
            FileKind::Regular => {
                let file = resolve::content("open", root, node.as_fd(), size(&stat), READING)?;
                let _ = run.file(root, file);
            }
            FileKind::Directory => run.tree(root)?,
            found => {
                let wanted = "a regular file or a directory";
                return Err(FsError::WrongKind { path: root.to_owned(), found, wanted });
            }
        }
        run.summary.cancelled = cancelled.load(Ordering::Relaxed);
        Ok(run.summary)
    }
}

struct Run<'a> {
    search: &'a Search,
    /// Its buffers are reused for each file.
    searcher: Searcher,
    cancelled: &'a AtomicBool,
    found: &'a mut dyn FnMut(Match) -> ControlFlow<()>,
    bytes_left: usize,
    summary: Summary,
}

impl Run<'_> {
    fn tree(&mut self, root: &Path) -> Result<(), FsError> {
        visible::walk(root, self.search.visibility, &mut |found| match found {
            _ if self.cancelled.load(Ordering::Relaxed) => Next::Stop,
            Found::Unreadable { .. } => {
                self.summary.unreadable += 1;
                Next::Pass
            }
            Found::Entry(entry) => self.entry(root, &entry),
        })
    }

    fn entry(&mut self, root: &Path, entry: &Entry<'_>) -> Next {
        let is_directory = entry.file_type == FileType::Directory;
        match (self.search.globs.judge(entry.way, is_directory), entry.file_type) {
            (Verdict::Excluded, _) => Next::Pass,
            (_, FileType::Directory) => Next::Enter,
            (Verdict::Match, FileType::RegularFile) => match entry.open() {
                Ok(Some(file)) => match self.file(&root.join(entry.way), file) {
                    ControlFlow::Continue(()) => Next::Pass,
                    ControlFlow::Break(()) => Next::Stop,
                },
                // Removed or replaced in the meantime.
                Ok(None) | Err(Errno::NOENT) => Next::Pass,
                Err(_) => {
                    self.summary.unreadable += 1;
                    Next::Pass
                }
            },
            _ => Next::Pass,
        }
    }

    fn file(&mut self, path: &Path, file: OwnedFd) -> ControlFlow<()> {
        self.summary.files_searched += 1;
        let matcher = &self.search.matcher;
        let mut sink = FileSink {
            path,
            matcher,
            cancelled: self.cancelled,
            after: self.search.after,
            max_matches: self.search.max_matches,
            before: Vec::new(),
            current: None,
            found: self.found,
            bytes_left: &mut self.bytes_left,
            summary: &mut self.summary,
        };
        let reader = UntilCancelled { file: File::from(file), cancelled: self.cancelled };
        let searched: io::Result<()> = self.searcher.search_reader(matcher, reader, &mut sink);
        sink.tell();
        if searched.is_err() {
            self.summary.unreadable += 1;
        }
        match self.summary.truncated || self.cancelled.load(Ordering::Relaxed) {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    }
}

/// Builds the matcher. `$` must match before CRLF too, since the text of a match excludes the CR.
/// In CRLF mode, the library matches a CR only if the pattern names it. So patterns without `$` run
/// without that mode: `.` then matches the lone CRs that a progress bar leaves in a log.
fn matcher(options: &SearchOptions) -> Result<(RegexMatcher, LineTerminator), SearchError> {
    let mut builder = RegexMatcherBuilder::new();
    builder
        .multi_line(true)
        .fixed_strings(options.literal)
        .case_insensitive(options.ignore_case)
        .word(options.word)
        .size_limit(MAX_REGEX_BYTES)
        .dfa_size_limit(MAX_REGEX_BYTES);
    let has_line_ends = !options.literal && options.pattern.contains('$');
    if has_line_ends && let Ok(matcher) = builder.crlf(true).build(&options.pattern) {
        return Ok((matcher, LineTerminator::crlf()));
    }
    let plain = builder.crlf(false).line_terminator(Some(b'\n')).build(&options.pattern);
    let matcher = plain.map_err(|error| SearchError::Pattern {
        pattern: options.pattern.chars().take(SHOWN_CHARS).collect(),
        why: last_line(&error.to_string()),
    })?;
    Ok((matcher, LineTerminator::byte(b'\n')))
}

/// Returns the reason. Regular expression errors show the pattern with a marker below, and the
/// reason last.
fn last_line(message: &str) -> String {
    let line = message.lines().rfind(|line| !line.trim().is_empty()).unwrap_or(message);
    line.trim_start_matches("error: ").to_owned()
}

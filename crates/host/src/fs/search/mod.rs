//! Lines that match a pattern, in a file or in all visible files of a tree.
//!
//! The work is done by the parts of ripgrep: its matcher and its searcher. Every result is bounded, and so is the memory
//! that a search takes, whatever is in the files.

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

/// A parsed pattern takes a hundred times its length.
const MAX_PATTERN_BYTES: usize = 64 << 10;
/// Of the compiled pattern, and once more of what is computed from it while it runs.
const MAX_REGEX_BYTES: usize = 10 << 20;
/// A line must fit, although only its beginning is told.
const MAX_BUFFER_BYTES: usize = 32 << 20;
/// Of all results together.
const MAX_RESULT_BYTES: usize = 16 << 20;

#[derive(Debug, Clone, Default)]
pub struct SearchOptions {
    /// A regular expression, or the very text if `literal`.
    pub pattern: String,
    pub literal: bool,
    pub ignore_case: bool,
    /// Only whole words.
    pub word: bool,
    /// Only files that these match, as in [`GlobOptions`](crate::fs::tree::glob::GlobOptions).
    pub globs: Vec<String>,
    /// Also names that start with a dot.
    pub hidden: bool,
    /// Also what ignore files exclude.
    pub ignored: bool,
    /// Lines of context.
    pub before: usize,
    pub after: usize,
    /// After so many the search ends.
    pub max_matches: u64,
}

#[derive(Debug, thiserror::Error)]
pub enum SearchError {
    #[error("pattern is not valid: {why}")]
    Pattern { why: String },
    #[error("pattern of {len} bytes exceeds the limit of {max}")]
    PatternTooLong { len: usize, max: usize },
    #[error(transparent)]
    Glob(#[from] PatternError),
}

/// One line that matches.
///
/// A line of the file is told once: if the contexts of two matches meet, the lines between them belong to `after` of the first
/// as far as that reaches, then to `before` of the second. So `before`, the line and `after` of all matches in turn are what
/// `grep` prints.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Match {
    pub path: PathBuf,
    /// From 1.
    pub line_number: u64,
    /// Without its line end; what is not UTF-8 is replaced, and of a line that is longer than 4 KiB the rest is missing.
    pub text: String,
    /// The rest is missing.
    pub is_cut: bool,
    /// Where in `text`. Empty ones are left out, and those in the missing rest.
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
    /// Files, directories and ignore files that could not be read, or not to their end.
    pub unreadable: u64,
    /// A limit was reached before the end, or the receiver wanted no more.
    pub truncated: bool,
    pub cancelled: bool,
}

/// A search that can be run.
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
            // A file that is truncated while it is mapped ends the process.
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

    /// Blocks. Calls `found` with each match, ordered by path and line, until it breaks. `cancelled` is looked at before each
    /// file, each block of a file and each match.
    ///
    /// A `root` that is a file is searched itself, whatever its name. Symlinks below are not followed, nothing but regular
    /// files is opened, and the rest of a file from its first NUL byte on is not searched.
    pub fn run(
        &self,
        root: &Path,
        cancelled: &AtomicBool,
        found: &mut dyn FnMut(Match) -> ControlFlow<()>,
    ) -> Result<Summary, FsError> {
        let node = resolve::node(root, Symlinks::Follow, RequiredAccess::Read)?;
        let stat = rustix::fs::fstat(&node).map_err(FsError::os("look at", root))?;
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
    /// Has buffers, which serve one file after the other.
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
                // Removed or replaced a moment ago.
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

/// `$` is before CRLF too, as the text of a match comes without the CR. To that end the library lets nothing but a pattern that asks for it
/// match a CR, so other patterns are left alone: `.` finds the lone ones that a progress bar leaves in a log.
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
    let why = |error: grep_regex::Error| last_line(&error.to_string());
    let matcher = plain.map_err(|error| SearchError::Pattern { why: why(error) })?;
    Ok((matcher, LineTerminator::byte(b'\n')))
}

/// Errors of regular expressions show the pattern with a mark below, and give the reason last.
fn last_line(message: &str) -> String {
    let line = message.lines().rfind(|line| !line.trim().is_empty()).unwrap_or(message);
    line.trim_start_matches("error: ").to_owned()
}

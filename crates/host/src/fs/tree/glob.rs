//! Finds names below a directory that match patterns.

use std::path::{Path, PathBuf};

use ignore::Match;
use ignore::overrides::{Override, OverrideBuilder};
use rustix::fs::FileType;

use super::cancel::CancelFlag;
use super::walk::{Tree, TreeEntry, TreeError, TreeKind, cost};
use crate::fs::FsError;
use crate::fs::search::visible::{self, Entry, Found, Next, Obstacle, Visibility};

/// Limit on the total size of all patterns. Compiled patterns take a multiple of that.
const MAX_PATTERN_BYTES: usize = 64 << 10;
/// A tree may have many unreadable directories.
const MAX_ERRORS: usize = 1000;
/// Limit on the directories that are read, including the root.
const MAX_DIRECTORIES: usize = 10_000;

#[derive(Debug, Clone, Default)]
pub struct GlobOptions {
    /// Relative to the root, as in a `.gitignore`: `*` and `?` do not match `/`, `**` does. A
    /// pattern with a `/` before its end matches only from the root, any other at any depth. A
    /// pattern that ends in `/` matches directories only. A leading `!` excludes what matches, and
    /// everything below a matching directory. The last matching pattern decides. If there are no
    /// patterns, or only excluding ones, everything else matches.
    pub patterns: Vec<String>,
    /// Include names that start with a dot.
    pub hidden: bool,
    /// Include files excluded by ignore files.
    pub ignored: bool,
    pub max_entries: usize,
    /// As [`WalkOptions::max_bytes`](crate::fs::WalkOptions::max_bytes).
    pub max_bytes: usize,
}

#[derive(Debug, thiserror::Error)]
pub enum GlobError {
    #[error(transparent)]
    Pattern(#[from] PatternError),
    #[error(transparent)]
    Fs(#[from] FsError),
}

#[derive(Debug, thiserror::Error)]
pub enum PatternError {
    #[error("invalid glob {pattern:?}: {why}")]
    Invalid { pattern: String, why: String },
    #[error("globs with a total of {len} bytes exceed the limit of {max}")]
    TooLong { len: usize, max: usize },
}

/// Returns matching directories and regular files, sorted. A symlink is listed as a directory if
/// its target is one, otherwise as a file, and is not followed.
pub fn glob(root: &Path, options: &GlobOptions, cancel: &CancelFlag) -> Result<Tree, GlobError> {
    let globs = Globs::new(&options.patterns)?;
    let visibility = Visibility { hidden: options.hidden, ignored: options.ignored };
    let mut result = Collected { options, tree: Tree::default(), bytes: 0, directories: 1 };
    cancel.check(root)?;
    visible::walk(root, visibility, &mut |found| match found {
        _ if cancel.is_requested() => Next::Stop,
        Found::Unreadable { way, obstacle } => result.error(root.join(way), obstacle),
        Found::Entry(entry) => {
            let is_directory = entry.file_type == FileType::Directory;
            let next = match globs.judge(entry.way, is_directory) {
                Verdict::Match => result.entry(root, &entry),
                Verdict::NoMatch => Next::Enter,
                Verdict::Excluded => Next::Pass,
            };
            match next {
                Next::Enter if is_directory => result.enter(),
                next => next,
            }
        }
    })?;
    cancel.check(root)?;
    Ok(result.tree)
}

struct Collected<'a> {
    options: &'a GlobOptions,
    tree: Tree,
    bytes: usize,
    directories: usize,
}

impl Collected<'_> {
    fn entry(&mut self, root: &Path, entry: &Entry<'_>) -> Next {
        let kind = match entry.file_type {
            FileType::Directory => TreeKind::Directory,
            FileType::RegularFile => TreeKind::File,
            FileType::Symlink if entry.leads_to_directory() => TreeKind::Directory,
            FileType::Symlink => TreeKind::File,
            _ => return Next::Pass,
        };
        let path = root.join(entry.way);
        if self.tree.entries.len() >= self.options.max_entries || !self.pay(cost(&path)) {
            return self.truncate();
        }
        self.tree.entries.push(TreeEntry { path, kind });
        Next::Enter
    }

    fn enter(&mut self) -> Next {
        if self.directories == MAX_DIRECTORIES {
            return self.truncate();
        }
        self.directories += 1;
        Next::Enter
    }

    fn error(&mut self, path: PathBuf, obstacle: Obstacle) -> Next {
        let message = obstacle.to_string();
        if self.tree.errors.len() == MAX_ERRORS || !self.pay(cost(&path) + message.len()) {
            return self.truncate();
        }
        self.tree.errors.push(TreeError { path, message });
        Next::Pass
    }

    /// Adds to the size of the response. Returns whether it is still within the limit.
    fn pay(&mut self, bytes: usize) -> bool {
        self.bytes = self.bytes.saturating_add(bytes);
        self.bytes <= self.options.max_bytes
    }

    fn truncate(&mut self) -> Next {
        self.tree.truncated = true;
        Next::Stop
    }
}

/// Compiled patterns. They are not given to the walker of crate `ignore`: there, a match would
/// include hidden and ignored files.
#[derive(Debug)]
pub(in crate::fs) struct Globs(Override);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::fs) enum Verdict {
    Match,
    /// No match, but entries of a directory may match.
    NoMatch,
    /// With everything below.
    Excluded,
}

impl Globs {
    pub(in crate::fs) fn new(patterns: &[String]) -> Result<Self, PatternError> {
        let len = patterns.iter().map(String::len).sum();
        if len > MAX_PATTERN_BYTES {
            return Err(PatternError::TooLong { len, max: MAX_PATTERN_BYTES });
        }
        let mut builder = OverrideBuilder::new("");
        for pattern in patterns {
            let invalid =
                |why: &str| PatternError::Invalid { pattern: pattern.clone(), why: why.to_owned() };
            let (sign, body) = match pattern.strip_prefix('!') {
                Some(body) => ("!", body),
                None => ("", pattern.as_str()),
            };
            let body = body.strip_prefix("./").unwrap_or(body);
            if body.trim_end().is_empty() {
                return Err(invalid("it is empty"));
            }
            // A glob has no comments, so a leading `#` is literal.
            let escape = if sign.is_empty() && body.starts_with('#') { "\\" } else { "" };
            builder
                .add(&format!("{sign}{escape}{body}"))
                .map_err(|error| invalid(&reason(&error)))?;
        }
        let globs = builder.build().map_err(|error| PatternError::Invalid {
            pattern: patterns.join(" "),
            why: reason(&error),
        })?;
        Ok(Self(globs))
    }

    pub(in crate::fs) fn judge(&self, way: &Path, is_directory: bool) -> Verdict {
        match self.0.matched(way, is_directory) {
            Match::Whitelist(_) => Verdict::Match,
            Match::None if self.0.num_whitelists() == 0 => Verdict::Match,
            Match::None => Verdict::NoMatch,
            // For a file this also means that there are including patterns and none matches.
            Match::Ignore(_) => Verdict::Excluded,
        }
    }
}

/// Returns the reason without the glob, which the error names itself.
fn reason(error: &ignore::Error) -> String {
    match error {
        ignore::Error::Glob { err, .. } => err.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judge(patterns: &[&str], way: &str) -> Verdict {
        let patterns: Vec<String> = patterns.iter().map(ToString::to_string).collect();
        let (way, is_directory) = match way.strip_suffix('/') {
            Some(way) => (way, true),
            None => (way, false),
        };
        Globs::new(&patterns).unwrap().judge(Path::new(way), is_directory)
    }

    #[test]
    fn patterns_are_those_of_a_gitignore() {
        for (patterns, way, expected) in [
            (&["*.rs"][..], "a.rs", Verdict::Match),
            (&["*.rs"], "a/b.rs", Verdict::Match),
            (&["*.rs"], "a.c", Verdict::Excluded),
            (&["*.rs"], "src/", Verdict::NoMatch),
            (&["src/*.rs"], "src/a.rs", Verdict::Match),
            (&["src/*.rs"], "src/deep/a.rs", Verdict::Excluded),
            (&["src/**/*.rs"], "src/deep/a.rs", Verdict::Match),
            (&["src/**/*.rs"], "src/a.rs", Verdict::Match),
            (&["src/*.rs"], "x/src/a.rs", Verdict::Excluded),
            (&["/a.rs"], "x/a.rs", Verdict::Excluded),
            (&["./a.rs", "./b/*"], "b/c", Verdict::Match),
            (&["build/"], "x/build/", Verdict::Match),
            (&["build/"], "build", Verdict::Excluded),
            (&["!target"], "target/", Verdict::Excluded),
            (&["!target"], "other", Verdict::Match),
            (&["*.rs", "!a.rs"], "a.rs", Verdict::Excluded),
            (&["!a.rs", "*.rs"], "a.rs", Verdict::Match),
            (&["#a"], "#a", Verdict::Match),
            (&["!#a"], "#a", Verdict::Excluded),
            (&["*.{rs,c}"], "a.c", Verdict::Match),
            (&[], "anything", Verdict::Match),
        ] {
            assert_eq!(judge(patterns, way), expected, "{patterns:?} {way}");
        }
    }

    #[test]
    fn errors_name_the_bad_pattern() {
        for bad in ["a[", "", "!", "{a"] {
            let error = Globs::new(&[bad.to_owned()]).unwrap_err().to_string();
            assert!(error.contains(&format!("{bad:?}")) && !error.contains('\n'), "{error}");
        }
        let long = vec!["x".repeat(1000); 70];
        assert!(matches!(Globs::new(&long), Err(PatternError::TooLong { .. })));
    }
}

//! Globs that deny access. [`split`] also serves globs that grant it.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::PolicyError;
use super::pattern::Pattern;
use super::plain::{PlainPath, first_components};

/// The default depth, which hardly any tree reaches.
pub(super) const DEFAULT_MAX_DEPTH: usize = 64;

/// Denies every path that it matches and everything below. No rule overrides it, not even one for a
/// path below a match.
#[derive(Clone)]
pub struct DeniedGlob {
    base: PathBuf,
    max_depth: usize,
    pattern: Pattern,
}

impl DeniedGlob {
    pub(super) fn new(base: PathBuf, max_depth: usize, pattern: Pattern) -> Self {
        Self { base, max_depth, pattern }
    }

    /// The directory where the pattern starts. Only paths strictly below it can match.
    pub fn base(&self) -> &Path {
        &self.base
    }

    /// The depth to which a path can match, in components below the base. Everything below a match
    /// is denied at any depth.
    pub fn max_depth(&self) -> usize {
        self.max_depth
    }

    /// The pattern, relative to the base.
    pub fn pattern(&self) -> &str {
        self.pattern.text()
    }

    #[cfg(target_os = "linux")]
    pub(in crate::sandbox) fn symbols(&self) -> usize {
        self.pattern.symbols()
    }

    /// Whether the path, or a path between it and the base, matches.
    pub fn matches(&self, real_path: &Path) -> bool {
        // A path without a plain form is denied.
        PlainPath::with(real_path, |path| self.matches_plain(path)).unwrap_or(true)
    }

    pub(super) fn matches_plain(&self, path: PlainPath<'_>) -> bool {
        PlainPath::of_rule(&self.base)
            .way_to(path)
            .is_some_and(|way| self.pattern.matches(first_components(way, self.max_depth)))
    }

    /// Whether something strictly below the path may match although the path does not.
    pub(super) fn may_match_below(&self, path: PlainPath<'_>) -> bool {
        let base = PlainPath::of_rule(&self.base);
        if path.covers(base) {
            return self.max_depth > 0;
        }
        base.way_to(path).is_some_and(|way| {
            way.split(|byte| *byte == b'/').count() < self.max_depth
                && self.pattern.may_match_below(way)
        })
    }

    fn key(&self) -> (&[u8], usize, &str) {
        (self.base.as_os_str().as_bytes(), self.max_depth, self.pattern.text())
    }
}

impl PartialEq for DeniedGlob {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for DeniedGlob {}

impl PartialOrd for DeniedGlob {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for DeniedGlob {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.key().cmp(&other.key())
    }
}

impl Hash for DeniedGlob {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.key().hash(state);
    }
}

impl fmt::Debug for DeniedGlob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whole = self.base.join(self.pattern.text());
        write!(f, "{whole:?} (at most {} deep)", self.max_depth)
    }
}

/// Splits a glob before its first component with a wildcard, or before the last component if none
/// has a wildcard.
pub(super) fn split(glob: &str) -> Result<(PathBuf, Pattern), PolicyError> {
    let invalid =
        |why: &str| PolicyError::InvalidGlob { pattern: glob.to_owned(), why: why.to_owned() };
    // A URI would be taken as a relative glob that matches nothing.
    if glob.get(..6).is_some_and(|start| start.eq_ignore_ascii_case("file:/")) {
        return Err(invalid("URIs are not supported; write the path"));
    }
    let is_pattern = |name: &&str| name.contains(['*', '?', '[', ']', '{', '}', '\\']);
    let names: Vec<&str> = glob.split('/').filter(|name| !matches!(*name, "" | ".")).collect();
    if names.contains(&"..") {
        return Err(invalid("it contains `..`"));
    }
    let Some(last) = names.len().checked_sub(1) else { return Err(invalid("it is empty")) };
    let start = names.iter().position(is_pattern).unwrap_or(last);
    let root = if glob.starts_with('/') { "/" } else { "" };
    let base = Path::new(root).join(names[..start].join("/"));
    let pattern = Pattern::new(&names[start..].join("/")).map_err(|why| invalid(&why))?;
    Ok((base, pattern))
}

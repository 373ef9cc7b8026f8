//! Paths compared as bytes.

use std::cmp::Ordering;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

/// An absolute path without `.`, `..`, empty components and a final `/`. The root is the empty
/// string. So path A is above path B if B starts with A followed by `/`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PlainPath<'a>(&'a [u8]);

impl<'a> PlainPath<'a> {
    /// Calls `ask` with the path in plain form, without allocating if it is plain already. Returns
    /// `None` for a relative path and for one with `..`, whose meaning depends on the file system.
    pub(super) fn with<T>(path: &Path, ask: impl FnOnce(PlainPath<'_>) -> T) -> Option<T> {
        let bytes = path.as_os_str().as_bytes();
        let below_root = bytes.strip_prefix(b"/")?;
        if below_root.is_empty() {
            return Some(ask(PlainPath(b"")));
        }
        if below_root.split(|byte| *byte == b'/').all(|name| !matches!(name, b"" | b"." | b"..")) {
            return Some(ask(PlainPath(bytes)));
        }
        let path = plain(path)?;
        Some(ask(PlainPath::of_rule(&path)))
    }

    /// The path must already be in plain form, as the paths of rules are. Not checked.
    pub(super) fn of_rule(path: &'a Path) -> Self {
        let bytes = path.as_os_str().as_bytes();
        Self(if bytes == b"/" { b"" } else { bytes })
    }

    pub(super) fn covers(self, other: PlainPath<'_>) -> bool {
        self == other || self.is_above(other)
    }

    pub(super) fn is_above(self, other: PlainPath<'_>) -> bool {
        self.way_to(other).is_some()
    }

    /// Returns the relative path from here to `other`, if `other` is strictly below.
    pub(super) fn way_to<'b>(self, other: PlainPath<'b>) -> Option<&'b [u8]> {
        other.0.strip_prefix(self.0)?.strip_prefix(b"/")
    }
}

impl PartialOrd for PlainPath<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Like [`Path`]: compares by components, so `/` sorts before every other byte.
impl Ord for PlainPath<'_> {
    fn cmp(&self, other: &Self) -> Ordering {
        match self.0.iter().zip(other.0).find(|(ours, theirs)| ours != theirs) {
            None => self.0.len().cmp(&other.0.len()),
            Some((b'/', _)) => Ordering::Less,
            Some((_, b'/')) => Ordering::Greater,
            Some((ours, theirs)) => ours.cmp(theirs),
        }
    }
}

pub(super) fn plain(path: &Path) -> Option<PathBuf> {
    let normal = |component| !matches!(component, Component::ParentDir);
    (path.is_absolute() && path.components().all(normal)).then(|| path.components().collect())
}

pub(super) fn first_components(way: &[u8], count: usize) -> &[u8] {
    let mut slashes = way.iter().enumerate().filter(|(_, byte)| **byte == b'/');
    match count.checked_sub(1) {
        None => &[],
        Some(before) => slashes.nth(before).map_or(way, |(end, _)| &way[..end]),
    }
}

//! Globs that are matched component by component.
//!
//! The usual crates do not fit: they match one expression over the bytes of a path. So `?` and
//! `[!a]` miss multi-byte characters, and a class may match a `/`. With them, a denying pattern
//! would deny less than it says.

mod name;
mod parse;

use std::sync::Arc;

use self::name::NamePattern;

/// A glob relative to a directory: `*` matches any part of a name, `**` any number of names, `?`
/// one character, `[a-z]` and `[!a-z]` a class, `{a,b}` alternatives, and `\` escapes the next
/// character. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct Pattern {
    text: Arc<str>,
    /// The alternatives after expanding braces.
    alternatives: Arc<[Vec<Part>]>,
    symbols: usize,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    /// Never the last part.
    AnyNames,
    Name(NamePattern),
}

impl Pattern {
    /// Fails with the reason why the text is no glob.
    pub(super) fn new(text: &str) -> Result<Self, String> {
        let (alternatives, symbols) = parse::parse(text)?;
        Ok(Self { text: text.into(), alternatives: alternatives.into(), symbols })
    }

    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// Returns the total length of the alternatives: the cost of the pattern in memory, and in time
    /// for every byte of a path.
    pub(super) fn symbols(&self) -> usize {
        self.symbols
    }

    /// Returns the depth to which the pattern can match, capped at `max`.
    pub(super) fn reach(&self, max: usize) -> usize {
        let reach = |parts: &Vec<Part>| match parts.contains(&Part::AnyNames) {
            true => max,
            false => parts.len().min(max),
        };
        self.alternatives.iter().map(reach).max().unwrap_or(0)
    }

    /// Whether the relative path or one of its ancestors matches.
    pub(super) fn matches(&self, way: &[u8]) -> bool {
        self.alternatives.iter().any(|parts| matches_start(parts, way))
    }

    /// Whether a path below `way` could match although `way` does not. `false` is certain, `true`
    /// is not.
    pub(super) fn may_match_below(&self, way: &[u8]) -> bool {
        self.alternatives.iter().any(|parts| leads_on(parts, way))
    }
}

/// Whether the first names of `way` match all parts.
fn matches_start(parts: &[Part], way: &[u8]) -> bool {
    let (mut parts, mut rest) = (parts, Some(way));
    // Where to resume if the names after the last `**` do not match: that `**` then takes one more
    // name. Earlier `**` need no backtracking, since consuming fewer names is never worse.
    let mut retry: Option<(&[Part], &[u8])> = None;
    loop {
        match (parts, rest) {
            ([], _) => return true,
            (_, None) => return false,
            ([Part::AnyNames, after @ ..], Some(way)) => {
                retry = Some((after, way));
                parts = after;
            }
            ([Part::Name(pattern), after @ ..], Some(way)) => {
                let (name, below) = split_name(way);
                if pattern.matches(name) {
                    (parts, rest) = (after, below);
                } else if let Some((after, way)) = retry {
                    let below = split_name(way).1;
                    retry = below.map(|below| (after, below));
                    (parts, rest) = (after, below);
                } else {
                    return false;
                }
            }
        }
    }
}

fn leads_on(parts: &[Part], way: &[u8]) -> bool {
    let mut rest = Some(way);
    for part in parts {
        let (Part::Name(pattern), Some(way)) = (part, rest) else { return true };
        let (name, below) = split_name(way);
        if !pattern.matches(name) {
            return false;
        }
        rest = below;
    }
    false
}

fn split_name(way: &[u8]) -> (&[u8], Option<&[u8]>) {
    match way.iter().position(|byte| *byte == b'/') {
        Some(end) => (&way[..end], Some(&way[end + 1..])),
        None => (way, None),
    }
}

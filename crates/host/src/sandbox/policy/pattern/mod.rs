//! Globs that are matched name by name.
//!
//! Not those of a crate: they are matched as one expression over the bytes of a path, where `?` and `[!a]` miss characters that take
//! several bytes and a class may match a `/`. A pattern that denies would deny less than it says.

mod name;
mod parse;

use std::sync::Arc;

use self::name::NamePattern;
use super::PolicyError;

/// A glob relative to a directory: `*` is any part of a name, `**` any number of names, `?` a character, `[a-z]` and `[!a-z]` one
/// of a class, `{a,b}` either, and `\` takes the meaning from what follows. It is cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct Pattern {
    text: Arc<str>,
    /// Without `{` and `}`: any of these.
    alternatives: Arc<[Vec<Part>]>,
    symbols: usize,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    /// Never the last one.
    AnyNames,
    Name(NamePattern),
}

impl Pattern {
    pub(super) fn new(text: &str) -> Result<Self, PolicyError> {
        match parse::parse(text) {
            Ok((alternatives, symbols)) => {
                Ok(Self { text: text.into(), alternatives: alternatives.into(), symbols })
            }
            Err(why) => Err(PolicyError::InvalidGlob { pattern: text.to_owned(), why }),
        }
    }

    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// How long its alternatives are in all, which is what it takes of memory, and of time for every byte that it is compared with.
    pub(super) fn symbols(&self) -> usize {
        self.symbols
    }

    /// How deep it can match, if at most `max` deep.
    pub(super) fn reach(&self, max: usize) -> usize {
        let reach = |parts: &Vec<Part>| match parts.contains(&Part::AnyNames) {
            true => max,
            false => parts.len().min(max),
        };
        self.alternatives.iter().map(reach).max().unwrap_or(0)
    }

    /// The way, or where it passes, matches.
    pub(super) fn matches(&self, way: &[u8]) -> bool {
        self.alternatives.iter().any(|parts| matches_start(parts, way))
    }

    /// Something below could match. Only if not is it certain.
    pub(super) fn may_match_below(&self, way: &[u8]) -> bool {
        self.alternatives.iter().any(|parts| leads_on(parts, way))
    }
}

/// The first names of the way match all the parts.
fn matches_start(parts: &[Part], way: &[u8]) -> bool {
    let (mut parts, mut rest) = (parts, Some(way));
    // Where to go on if the names after the last `**` do not match: with one more that it takes. What was taken by those before
    // it need not be tried again, since the fewer names are used up the better.
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

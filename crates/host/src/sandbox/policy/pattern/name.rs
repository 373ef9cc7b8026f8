//! Matches one name against one component of a pattern.

use std::sync::Arc;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NamePattern(pub(super) Vec<Token>);

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Token {
    /// Any number of characters.
    Run,
    Any,
    Class(Class),
    Literal(char),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Class {
    pub(super) negated: bool,
    /// Inclusive ranges. Shared by all alternatives, which can be many while parsing.
    pub(super) ranges: Arc<[(char, char)]>,
}

impl NamePattern {
    pub(super) fn matches(&self, name: &[u8]) -> bool {
        let (mut tokens, mut rest) = (&self.0[..], name);
        // Where to resume if the tokens after the last run do not match: that run then takes one
        // more character.
        let mut retry: Option<(&[Token], &[u8])> = None;
        loop {
            match tokens {
                [] if rest.is_empty() => return true,
                [Token::Run] => return true,
                [Token::Run, after @ ..] => {
                    retry = Some((after, rest));
                    tokens = after;
                    continue;
                }
                [token, after @ ..] if !rest.is_empty() => {
                    let (character, len) = first_character(rest);
                    if token.matches(character) {
                        (tokens, rest) = (after, &rest[len..]);
                        continue;
                    }
                }
                _ => {}
            }
            match retry {
                Some((after, from)) if !from.is_empty() => {
                    rest = &from[first_character(from).1..];
                    retry = Some((after, rest));
                    tokens = after;
                }
                _ => return false,
            }
        }
    }
}

impl Token {
    fn matches(&self, character: Option<char>) -> bool {
        match self {
            Self::Run | Self::Any => true,
            Self::Literal(literal) => character == Some(*literal),
            Self::Class(class) => {
                let holds = |character| {
                    class.ranges.iter().any(|(first, last)| (*first..=*last).contains(&character))
                };
                character.is_some_and(holds) != class.negated
            }
        }
    }
}

/// A byte that is not part of a valid character counts as one unknown character.
fn first_character(name: &[u8]) -> (Option<char>, usize) {
    let Some(first) = name.first() else { return (None, 0) };
    let len = match first {
        0..=0x7f => return (Some(char::from(*first)), 1),
        0xc2..=0xdf => 2,
        0xe0..=0xef => 3,
        0xf0..=0xf4 => 4,
        _ => return (None, 1),
    };
    let text = name.get(..len).and_then(|bytes| str::from_utf8(bytes).ok());
    match text.and_then(|text| text.chars().next()) {
        Some(character) => (Some(character), len),
        None => (None, 1),
    }
}

//! Parses the text of a pattern into alternatives.

use std::iter::Peekable;
use std::str::Chars;

use super::Part;
use super::name::{Class, NamePattern, Token};

const MAX_BYTES: usize = 1 << 10;
// Every pair of braces multiplies the number of alternatives and of symbols.
const MAX_ALTERNATIVES: usize = 256;
const MAX_SYMBOLS: usize = 8 << 10;
const MAX_NESTING: usize = 16;

/// Returns the alternatives and their total number of symbols.
pub(super) fn parse(text: &str) -> Result<(Vec<Vec<Part>>, usize), String> {
    if text.len() > MAX_BYTES {
        return Err(format!("it is longer than {MAX_BYTES} bytes"));
    }
    let symbols = symbols(text)?;
    let mut rest = symbols.iter();
    let alternatives = sequence(&mut rest, 0)?;
    let count = alternatives.iter().flatten().map(Piece::symbols).sum();
    if count > MAX_SYMBOLS {
        return Err(format!("its alternatives exceed {MAX_SYMBOLS} characters in total"));
    }
    let alternatives = alternatives.iter().map(|pieces| parts(pieces)).collect::<Result<_, _>>()?;
    Ok((alternatives, count))
}

enum Symbol {
    Piece(Piece),
    Open,
    Comma,
    Close,
}

/// A symbol after expanding braces.
#[derive(Clone)]
enum Piece {
    Token(Token),
    Slash,
}

impl Piece {
    /// Counts every range of a class, since a character may have to be compared with each.
    fn symbols(&self) -> usize {
        match self {
            Self::Token(Token::Class(class)) => class.ranges.len(),
            Self::Token(_) | Self::Slash => 1,
        }
    }
}

fn symbols(text: &str) -> Result<Vec<Symbol>, String> {
    let mut symbols = Vec::new();
    let mut rest = text.chars().peekable();
    while let Some(character) = rest.next() {
        let token = |token| Symbol::Piece(Piece::Token(token));
        symbols.push(match character {
            '*' => token(Token::Run),
            '?' => token(Token::Any),
            '[' => token(Token::Class(class(&mut rest)?)),
            '\\' => token(Token::Literal(escaped(&mut rest)?)),
            '/' => Symbol::Piece(Piece::Slash),
            '{' => Symbol::Open,
            ',' => Symbol::Comma,
            '}' => Symbol::Close,
            literal => token(Token::Literal(literal)),
        });
    }
    Ok(symbols)
}

/// Parses a character class. `rest` begins after its `[`. A leading `]` and a `-` at either end are
/// literal.
fn class(rest: &mut Peekable<Chars<'_>>) -> Result<Class, String> {
    let negated = rest.next_if(|next| matches!(next, '!' | '^')).is_some();
    let mut ranges: Vec<(char, char)> = Vec::new();
    loop {
        let first = match rest.next().ok_or("unclosed `[`")? {
            ']' if !ranges.is_empty() => {
                return Ok(Class { negated, ranges: ranges.into() });
            }
            '\\' => escaped(rest)?,
            character => character,
        };
        let mut last = first;
        let mut ahead = rest.clone();
        if ahead.next() == Some('-') && ahead.peek().is_some_and(|next| *next != ']') {
            *rest = ahead;
            last = match rest.next().ok_or("unclosed `[`")? {
                '\\' => escaped(rest)?,
                character => character,
            };
        }
        if first == '/' || last == '/' {
            return Err("a character class cannot contain `/`".to_owned());
        }
        if first > last {
            return Err(format!("the range {first}-{last} is empty"));
        }
        ranges.push((first, last));
    }
}

fn escaped(rest: &mut Peekable<Chars<'_>>) -> Result<char, String> {
    match rest.next() {
        None => Err("a `\\` at the end escapes nothing".to_owned()),
        Some('/') => Err("a `/` cannot be escaped".to_owned()),
        Some(character) => Ok(character),
    }
}

/// Parses up to the end, or inside braces up to the next `,` or `}`, which is not consumed.
fn sequence(
    rest: &mut std::slice::Iter<'_, Symbol>,
    nesting: usize,
) -> Result<Vec<Vec<Piece>>, String> {
    let mut alternatives = vec![Vec::new()];
    loop {
        let piece = match rest.as_slice().first() {
            None if nesting > 0 => return Err("unclosed `{`".to_owned()),
            None => return Ok(alternatives),
            Some(Symbol::Comma | Symbol::Close) if nesting > 0 => return Ok(alternatives),
            Some(Symbol::Close) => return Err("unmatched `}`".to_owned()),
            Some(Symbol::Open) => {
                let choices = choices(rest, nesting + 1)?;
                if alternatives.len() * choices.len() > MAX_ALTERNATIVES {
                    return Err(format!("it has more than {MAX_ALTERNATIVES} alternatives"));
                }
                let joined = |start: &Vec<Piece>| {
                    let start = start.clone();
                    choices.iter().map(move |choice| [start.as_slice(), choice].concat())
                };
                alternatives = alternatives.iter().flat_map(joined).collect();
                continue;
            }
            Some(Symbol::Comma) => Piece::Token(Token::Literal(',')),
            Some(Symbol::Piece(piece)) => piece.clone(),
        };
        rest.next();
        alternatives.iter_mut().for_each(|alternative| alternative.push(piece.clone()));
    }
}

/// Parses a pair of braces into its choices. `rest` begins at the `{`, and the `}` is consumed.
fn choices(
    rest: &mut std::slice::Iter<'_, Symbol>,
    nesting: usize,
) -> Result<Vec<Vec<Piece>>, String> {
    if nesting > MAX_NESTING {
        return Err(format!("braces are nested more than {MAX_NESTING} levels deep"));
    }
    let mut choices = Vec::new();
    while !matches!(rest.next(), Some(Symbol::Close)) {
        choices.extend(sequence(rest, nesting)?);
        if choices.len() > MAX_ALTERNATIVES {
            return Err(format!("it has more than {MAX_ALTERNATIVES} alternatives"));
        }
    }
    Ok(choices)
}

fn parts(pieces: &[Piece]) -> Result<Vec<Part>, String> {
    let mut parts = Vec::new();
    for name in pieces.split(|piece| matches!(piece, Piece::Slash)) {
        let tokens = name.iter().filter_map(|piece| match piece {
            Piece::Token(token) => Some(token.clone()),
            Piece::Slash => None,
        });
        let tokens: Vec<Token> = tokens.collect();
        match tokens.as_slice() {
            [] | [Token::Literal('.')] => {}
            [Token::Literal('.'), Token::Literal('.')] => {
                return Err("it contains `..`".to_owned());
            }
            [Token::Run, Token::Run] => {
                if parts.last() != Some(&Part::AnyNames) {
                    parts.push(Part::AnyNames);
                }
            }
            // The author of `**.pem` means `**/*.pem`, but `*` would match in one directory only.
            _ if tokens.windows(2).any(|pair| matches!(pair, [Token::Run, Token::Run])) => {
                return Err("`**` must be a whole path component, as in `**/*.pem`".to_owned());
            }
            _ => parts.push(Part::Name(NamePattern(tokens))),
        }
    }
    // A final `**` matches any name, with everything below it.
    if let Some(last @ Part::AnyNames) = parts.last_mut() {
        *last = Part::Name(NamePattern(vec![Token::Run]));
    }
    if parts.is_empty() {
        Err("it, or one of its alternatives, is empty".to_owned())
    } else {
        Ok(parts)
    }
}

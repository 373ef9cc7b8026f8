//! Translates denied globs into regular expressions for Seatbelt.
//!
//! A regular expression does not count components, so it denies at any depth. If a glob cannot be
//! translated, everything below its base is denied.

use std::path::Path;

use super::{expressible, quoted};
use crate::sandbox::policy::DeniedGlob;

/// Returns one Seatbelt filter per glob. It matches at least the paths that the glob denies.
pub(super) fn exceptions(globs: &[DeniedGlob]) -> Vec<String> {
    globs.iter().map(exception).collect()
}

/// Returns a filter that matches the path and everything below it. The last component matches
/// regardless of ASCII case.
pub(super) fn name_in_any_case(path: &Path) -> Option<String> {
    let mut regex = String::from("^");
    for letter in path.parent()?.to_str()?.trim_end_matches('/').chars() {
        push_literal(&mut regex, letter)?;
    }
    regex.push('/');
    for letter in path.file_name()?.to_str()?.chars() {
        if letter.is_ascii_alphabetic() {
            let (lower, upper) = (letter.to_ascii_lowercase(), letter.to_ascii_uppercase());
            regex.extend(['[', lower, upper, ']']);
        } else {
            push_literal(&mut regex, letter)?;
        }
    }
    Some(format!("(regex #\"{regex}(/.*)?$\")"))
}

fn exception(glob: &DeniedGlob) -> String {
    let base = glob.base();
    let whole = expressible(base).unwrap_or(Path::new("/"));
    match (whole == base).then(|| regex(base, glob.pattern())).flatten() {
        Some(regex) => format!("(regex #\"{regex}\")"),
        None => format!("(subpath {})", quoted(whole)),
    }
}

/// Returns an expression that matches whatever the glob matches, and everything below a match;
/// `None` if the glob has no equivalent.
fn regex(base: &Path, glob: &str) -> Option<String> {
    let mut start = String::from("^");
    for letter in base.to_string_lossy().trim_end_matches('/').chars() {
        push_literal(&mut start, letter)?;
    }
    Some(format!("{start}/{}(/.*)?$", translate(glob)?))
}

/// Returns `None` if the glob has no equivalent.
fn translate(glob: &str) -> Option<String> {
    let mut regex = String::new();
    let mut rest = glob;
    let mut open_braces = 0;
    let mut after_separator = true;
    while let Some(letter) = rest.chars().next() {
        let was_after_separator = std::mem::replace(&mut after_separator, letter == '/');
        let mut behind = &rest[letter.len_utf8()..];
        match letter {
            // Inside braces the meaning of `**` depends on both sides of a brace.
            '*' if open_braces > 0 && behind.starts_with('*') => return None,
            '*' if was_after_separator && behind.starts_with("*/") => {
                regex.push_str("(.*/)?");
                behind = &behind[2..];
                after_separator = true;
            }
            '*' if was_after_separator && behind == "*" => {
                regex.push_str(".*");
                behind = "";
            }
            '*' => {
                regex.push_str("[^/]*");
                behind = behind.trim_start_matches('*');
            }
            '?' => regex.push_str("[^/]"),
            '{' => {
                open_braces += 1;
                regex.push('(');
            }
            '}' if open_braces > 0 => {
                open_braces -= 1;
                regex.push(')');
            }
            ',' if open_braces > 0 => regex.push('|'),
            '[' => {
                let (class, after) = class(behind)?;
                regex.push_str(&class);
                behind = after;
            }
            '\\' => {
                let escaped = behind.chars().next()?;
                push_literal(&mut regex, escaped)?;
                behind = &behind[escaped.len_utf8()..];
            }
            _ => push_literal(&mut regex, letter)?,
        }
        rest = behind;
    }
    (open_braces == 0).then_some(regex)
}

/// Translates a character class. `rest` begins after its `[`. Returns the translation and the text
/// after the `]`, or `None` unless the class is simple.
fn class(rest: &str) -> Option<(String, &str)> {
    let (start, members) = match rest.strip_prefix(['!', '^']) {
        Some(members) => ("[^", members),
        None => ("[", rest),
    };
    let (members, after) = members.split_once(']')?;
    let is_simple = |letter: char| letter.is_ascii_alphanumeric() || "-_.,+ ".contains(letter);
    let simple = !members.is_empty() && members.chars().all(is_simple);
    simple.then(|| (format!("{start}{members}]"), after))
}

/// Returns `None` for a letter that cannot be part of a profile's string.
fn push_literal(regex: &mut String, letter: char) -> Option<()> {
    if letter == '"' || letter.is_control() {
        return None;
    }
    if r"\^$.|?*+()[]{}".contains(letter) {
        regex.push('\\');
    }
    regex.push(letter);
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn globs_become_regular_expressions() {
        let table = [
            ("*.pem", r"[^/]*\.pem"),
            ("**/*.pem", r"(.*/)?[^/]*\.pem"),
            ("secrets/**", r"secrets/.*"),
            ("a/**/b", "a/(.*/)?b"),
            ("**", ".*"),
            ("key?", "key[^/]"),
            ("{a,b*}.txt", r"(a|b[^/]*)\.txt"),
            ("[a-c]x[!0-9]", "[a-c]x[^0-9]"),
            (r"\*", r"\*"),
            ("a,b", "a,b"),
            ("a**b", "a[^/]*b"),
            (".env", r"\.env"),
        ];
        for (glob, regex) in table {
            assert_eq!(translate(glob).as_deref(), Some(regex), "{glob}");
        }
    }

    #[test]
    fn globs_without_an_equivalent_are_not_translated() {
        for glob in
            ["{**/a,b}", "a\"b", "[/]", r"[a\]]", "[]a]", "[a", "\u{7}", "{a", "**/{x**,y}", r"a\"]
        {
            assert_eq!(translate(glob), None, "{glob}");
        }
    }
}

//! Sanitises text from servers, such as names, paths and errors, for a terminal. The output of
//! processes and the files that `cat` prints are not sanitised.

use serde::Serialize;

/// Whether a character must not reach a terminal: it could move the cursor, change the state of the
/// terminal, or reorder text.
pub(crate) fn is_harmful(letter: char) -> bool {
    letter.is_control() || turns_text_around(letter)
}

/// Returns the text as one line without harmful characters.
pub(crate) fn printable(text: &str) -> String {
    text.replace(is_harmful, "\u{fffd}")
}

/// Replaces harmful characters in each line; only newlines between lines are kept.
pub(crate) fn printable_lines(text: &str) -> String {
    text.split('\n').map(printable).collect::<Vec<_>>().join("\n")
}

/// Returns one line of JSON, with escapes for harmful characters. Its meaning for programs is
/// unchanged.
pub(crate) fn json_line(value: &impl Serialize) -> String {
    let text = serde_json::to_string(value).expect("the keys are strings");
    let mut line = String::with_capacity(text.len() + 1);
    for letter in text.chars() {
        // Harmful characters occur only in strings, and each is one UTF-16 unit.
        match letter {
            _ if is_harmful(letter) => line += &format!("\\u{:04x}", u32::from(letter)),
            _ => line.push(letter),
        }
    }
    line.push('\n');
    line
}

/// The bidirectional controls of Unicode.
fn turns_text_around(letter: char) -> bool {
    matches!(
        letter,
        '\u{61c}'
            | '\u{200e}'
            | '\u{200f}'
            | '\u{202a}'..='\u{202e}'
            | '\u{2066}'..='\u{2069}'
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn controls_of_all_kinds_are_replaced() {
        let hostile = "a\x1b[2J\n\r\x07\u{9b}2J\x7f\u{202e}b";
        let shown = printable(hostile);
        assert!(!shown.contains(is_harmful), "{shown:?}");
        assert!(shown.starts_with("a\u{fffd}[2J") && shown.ends_with('b'));
    }

    #[test]
    fn escaping_does_not_change_the_meaning_of_json() {
        let hostile = "\x1b[2J\u{9b}\u{7f}\u{202e}\u{61c}é\u{10348}";
        let line = json_line(&[hostile]);
        assert!(!line.trim_end_matches('\n').contains(is_harmful), "{line:?}");
        assert_eq!(serde_json::from_str::<Vec<String>>(&line).unwrap(), [hostile]);
    }
}

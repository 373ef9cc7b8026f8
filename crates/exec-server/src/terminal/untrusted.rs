//! Text written by servers, by their processes, or in the names of their files. All of it that a person sees goes through here.

use serde::Serialize;

/// What must not reach a terminal: it would move the cursor, change the state of the terminal, or the order of letters.
pub(crate) fn is_harmful(letter: char) -> bool {
    letter.is_control() || turns_text_around(letter)
}

/// One line without harm.
pub(crate) fn printable(text: &str) -> String {
    text.replace(is_harmful, "\u{fffd}")
}

/// Lines without harm: only the newlines between them stay.
pub(crate) fn printable_lines(text: &str) -> String {
    text.split('\n').map(printable).collect::<Vec<_>>().join("\n")
}

/// One line of JSON, with escapes where the text has something harmful. To a program it says the same.
pub(crate) fn json_line(value: &impl Serialize) -> String {
    let text = serde_json::to_string(value).expect("keys are texts");
    let mut line = String::with_capacity(text.len() + 1);
    for letter in text.chars() {
        // Only strings can have such letters, and each is one unit of UTF-16.
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
    fn json_means_the_same_without_them() {
        let hostile = "\x1b[2J\u{9b}\u{7f}\u{202e}\u{61c}é\u{10348}";
        let line = json_line(&[hostile]);
        assert!(!line.trim_end_matches('\n').contains(is_harmful), "{line:?}");
        assert_eq!(serde_json::from_str::<Vec<String>>(&line).unwrap(), [hostile]);
    }
}

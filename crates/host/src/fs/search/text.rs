//! Converts a line of a file to text: bounded, valid UTF-8, and with a mapping of positions.

use std::ops::Range;

/// Longer lines are cut.
pub(super) const MAX_LINE_BYTES: usize = 4 << 10;

#[derive(Debug)]
pub(super) struct LineText {
    pub(super) text: String,
    /// The line continues after the text.
    pub(super) is_cut: bool,
    pieces: Vec<Piece>,
}

/// Maps a range of the line to a range of the text.
#[derive(Debug)]
struct Piece {
    source: Range<usize>,
    text: Range<usize>,
    /// The source was not valid UTF-8.
    replaced: bool,
}

#[derive(Debug, Clone, Copy)]
enum Edge {
    Start,
    End,
}

impl LineText {
    pub(super) fn new(line: &[u8]) -> Self {
        let line = without_end(line);
        // More cannot be shown. The three extra bytes complete a character that crosses the limit,
        // so that it is left out instead of replaced.
        let line = &line[..line.len().min(MAX_LINE_BYTES + 3)];
        let mut shown = Self { text: String::new(), is_cut: false, pieces: Vec::new() };
        for chunk in line.utf8_chunks() {
            let replacement = if chunk.invalid().is_empty() { "" } else { "\u{fffd}" };
            // Text is never shorter than its source, so anything beyond the limit does not fit.
            shown.is_cut = !shown.push(chunk.valid(), chunk.valid().len(), false)
                || !shown.push(replacement, chunk.invalid().len(), true);
            if shown.is_cut {
                break;
            }
        }
        shown
    }

    /// Returns the range of a match in the text. `None` if the match is empty or was cut off.
    pub(super) fn locate(&self, found: Range<usize>) -> Option<Range<usize>> {
        // A regular expression may match bytes, and so a part of a character.
        let start = self.text.floor_char_boundary(self.place(found.start, Edge::Start));
        let end = self.text.ceil_char_boundary(self.place(found.end, Edge::End));
        (!found.is_empty() && start < end).then_some(start..end)
    }

    /// Returns whether all of the text fit.
    fn push(&mut self, text: &str, source_len: usize, replaced: bool) -> bool {
        let room = MAX_LINE_BYTES - self.text.len();
        let shown = &text[..text.floor_char_boundary(room)];
        let source_start = self.pieces.last().map_or(0, |piece| piece.source.end);
        let text_start = self.text.len();
        self.text.push_str(shown);
        self.pieces.push(Piece {
            source: source_start..source_start + source_len,
            text: text_start..self.text.len(),
            replaced,
        });
        shown.len() == text.len()
    }

    fn place(&self, offset: usize, edge: Edge) -> usize {
        let piece = self.pieces.iter().find(|piece| match edge {
            Edge::Start => offset < piece.source.end,
            Edge::End => offset <= piece.source.end,
        });
        match (piece, edge) {
            (None, _) => self.text.len(),
            (Some(Piece { text, replaced: true, .. }), Edge::Start) => text.start,
            (Some(Piece { text, replaced: true, .. }), Edge::End) => text.end,
            (Some(Piece { text, source, .. }), _) => {
                (text.start + offset - source.start).min(text.end)
            }
        }
    }
}

fn without_end(line: &[u8]) -> &[u8] {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    line.strip_suffix(b"\r").unwrap_or(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_ends_are_removed() {
        for line in ["text", "text\n", "text\r\n"] {
            assert_eq!(LineText::new(line.as_bytes()).text, "text");
        }
        assert_eq!(LineText::new(b"\n").text, "");
    }

    #[test]
    fn positions_after_invalid_utf8_are_right() {
        let line = b"\xffab\xf0\x9f\x98cd\xc3\xa9";
        let shown = LineText::new(line);
        assert_eq!(shown.text, "\u{fffd}ab\u{fffd}cdé");
        let located = |range: Range<usize>| shown.locate(range).map(|place| &shown.text[place]);
        assert_eq!(located(1..3), Some("ab"));
        assert_eq!(located(6..8), Some("cd"));
        assert_eq!(located(0..1), Some("\u{fffd}"));
        assert_eq!(
            located(4..5),
            Some("\u{fffd}"),
            "a part of an invalid sequence maps to all of it"
        );
        assert_eq!(located(2..7), Some("b\u{fffd}c"));
        assert_eq!(located(9..10), Some("é"), "a part of a character maps to all of it");
        assert_eq!(located(0..line.len()), Some(shown.text.as_str()));
        assert_eq!(located(2..2), None);
    }

    #[test]
    fn a_long_line_is_cut_between_characters() {
        let line = format!("x{}", "é".repeat(MAX_LINE_BYTES));
        let shown = LineText::new(line.as_bytes());
        assert_eq!(shown.text.len(), MAX_LINE_BYTES - 1);
        assert!(shown.is_cut);
        assert_eq!(shown.locate(4090..5000), Some(4089..4095));
        assert_eq!(shown.locate(4095..4097), None);
        assert_eq!(shown.locate(6000..7000), None);

        let broken = [b"\xff".repeat(MAX_LINE_BYTES), b"tail".to_vec()].concat();
        let shown = LineText::new(&broken);
        assert!(shown.text.len() <= MAX_LINE_BYTES && shown.text.chars().all(|c| c == '\u{fffd}'));
        assert!(shown.is_cut);
        assert_eq!(shown.locate(MAX_LINE_BYTES..MAX_LINE_BYTES + 4), None);
    }

    #[test]
    fn only_a_line_that_exceeds_the_limit_is_cut() {
        let plain = |len: usize| "x".repeat(len).into_bytes();
        for (line, is_cut) in [
            (plain(MAX_LINE_BYTES), false),
            ([plain(MAX_LINE_BYTES), b"\r\n".to_vec()].concat(), false),
            (plain(MAX_LINE_BYTES + 1), true),
            (plain(MAX_LINE_BYTES + 4), true),
            // The last character ends at the limit, or crosses it.
            ([plain(MAX_LINE_BYTES - 4), "😀".into()].concat(), false),
            ([plain(MAX_LINE_BYTES - 1), "😀".into()].concat(), true),
            // The replacement character is longer than the byte that it replaces.
            ([plain(MAX_LINE_BYTES - 3), b"\xff".to_vec()].concat(), false),
            ([plain(MAX_LINE_BYTES - 2), b"\xff".to_vec()].concat(), true),
            (Vec::new(), false),
        ] {
            let shown = LineText::new(&line);
            assert_eq!(shown.is_cut, is_cut, "{} bytes", line.len());
            // A match that crosses the cut is shown up to the cut.
            let end = shown.locate(line.len().saturating_sub(8)..line.len()).map(|place| place.end);
            assert_eq!(end.unwrap_or(0), shown.text.len());
        }
    }
}

//! Output of any length in bounded memory: the beginning, the end, and the number of bytes omitted
//! between them.

use std::collections::VecDeque;

/// In bytes.
pub const DEFAULT_OUTPUT_BOUND: usize = 1 << 20;

/// Collects bytes, keeping the first and the last of them.
#[derive(Debug, Clone)]
pub struct HeadTail {
    bound: usize,
    head: Vec<u8>,
    /// Whether nothing is added to the head any more: it is full, or a gap follows it.
    sealed: bool,
    tail: VecDeque<u8>,
    omitted: u64,
}

/// Collected bytes: all of them, or the first and the last.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CollectedOutput {
    pub head: Vec<u8>,
    /// The exact number of bytes missing between head and tail.
    pub omitted_bytes: u64,
    pub tail: Vec<u8>,
}

impl HeadTail {
    #[must_use]
    pub fn new(bound: usize) -> Self {
        Self { bound, head: Vec::new(), sealed: false, tail: VecDeque::new(), omitted: 0 }
    }

    pub fn push(&mut self, mut bytes: &[u8]) {
        if !self.sealed {
            let room = (self.bound / 2).saturating_sub(self.head.len());
            let (first, rest) = bytes.split_at(room.min(bytes.len()));
            self.head.extend_from_slice(first);
            self.sealed = !rest.is_empty();
            bytes = rest;
        }
        let room = self.bound - self.head.len();
        let (passing, kept) = bytes.split_at(bytes.len().saturating_sub(room));
        let displaced = (self.tail.len() + kept.len()).saturating_sub(room);
        self.tail.drain(..displaced);
        self.tail.extend(kept);
        self.omitted += (passing.len() + displaced) as u64;
    }

    /// Records `lost` bytes as missing at this position. Discards the tail, so that output is
    /// missing in only one place.
    pub fn skip(&mut self, lost: u64) {
        self.sealed = true;
        self.omitted += lost + self.tail.len() as u64;
        self.tail.clear();
    }

    /// Keeps at most `bound` bytes from now on.
    pub fn limit(&mut self, bound: usize) {
        let so_far = self.take();
        self.bound = bound;
        self.append(&so_far);
    }

    fn append(&mut self, output: &CollectedOutput) {
        self.push(&output.head);
        if output.omitted_bytes > 0 {
            self.skip(output.omitted_bytes);
            self.push(&output.tail);
        }
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.head.is_empty() && self.tail.is_empty() && self.omitted == 0
    }

    /// Returns the output collected so far, and starts over.
    #[must_use]
    pub fn take(&mut self) -> CollectedOutput {
        std::mem::replace(self, Self::new(self.bound)).finish()
    }

    #[must_use]
    pub fn finish(self) -> CollectedOutput {
        let Self { mut head, mut tail, omitted, .. } = self;
        if omitted == 0 {
            head.extend(tail.drain(..));
        }
        CollectedOutput { head, omitted_bytes: omitted, tail: tail.into() }
    }
}

impl Default for HeadTail {
    fn default() -> Self {
        Self::new(DEFAULT_OUTPUT_BOUND)
    }
}

impl CollectedOutput {
    /// Returns the number of bytes present.
    #[must_use]
    pub fn len(&self) -> usize {
        self.head.len() + self.tail.len()
    }

    /// Whether there was no output.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0 && self.omitted_bytes == 0
    }

    /// Returns the whole output, if nothing is omitted.
    #[must_use]
    pub fn complete(&self) -> Option<&[u8]> {
        (self.omitted_bytes == 0).then_some(self.head.as_slice())
    }

    /// Shortens the output to at most `bound` bytes.
    #[must_use]
    pub fn within(self, bound: usize) -> Self {
        if self.len() <= bound {
            return self;
        }
        let mut shorter = HeadTail::new(bound);
        shorter.append(&self);
        shorter.finish()
    }

    /// Converts to text, with a line in place of the omitted bytes. Replaces bytes that are not
    /// UTF-8, including characters cut in two.
    #[must_use]
    pub fn to_text(&self) -> String {
        let mut text = String::from_utf8_lossy(&self.head).into_owned();
        if self.omitted_bytes > 0 {
            if !text.is_empty() && !text.ends_with('\n') {
                text.push('\n');
            }
            text.push_str(&format!("[… {} bytes left out …]\n", self.omitted_bytes));
            text.push_str(&String::from_utf8_lossy(&self.tail));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn collected(bound: usize, pieces: &[&str]) -> (String, u64, String) {
        let mut buffer = HeadTail::new(bound);
        for piece in pieces {
            buffer.push(piece.as_bytes());
        }
        parts(buffer.finish())
    }

    fn parts(output: CollectedOutput) -> (String, u64, String) {
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (text(output.head), output.omitted_bytes, text(output.tail))
    }

    fn expected(head: &str, omitted: u64, tail: &str) -> (String, u64, String) {
        (head.to_owned(), omitted, tail.to_owned())
    }

    #[test]
    fn output_within_the_bound_is_complete() {
        assert_eq!(collected(8, &[]), expected("", 0, ""));
        assert_eq!(collected(8, &["abc", "defgh"]), expected("abcdefgh", 0, ""));
        assert_eq!(collected(8, &["abcdefgh"]), expected("abcdefgh", 0, ""));
        assert_eq!(collected(7, &["a", "b", "c", "d", "e", "f", "g"]), expected("abcdefg", 0, ""));
    }

    #[test]
    fn output_beyond_the_bound_is_counted() {
        assert_eq!(collected(8, &["abcdefghi"]), expected("abcd", 1, "fghi"));
        assert_eq!(collected(4, &["ab", "cd", "efghij", "k"]), expected("ab", 7, "jk"));
        assert_eq!(collected(1, &["abc"]), expected("", 2, "c"));
        assert_eq!(collected(0, &["abc", "d"]), expected("", 4, ""));
    }

    #[test]
    fn the_result_does_not_depend_on_chunk_boundaries() {
        let text: String = ('a'..='z').collect();
        for bound in 0..30 {
            let whole = collected(bound, &[&text]);
            assert_eq!(whole.0.len() as u64 + whole.1 + whole.2.len() as u64, 26);
            for at in 0..text.len() {
                let (first, second) = text.split_at(at);
                assert_eq!(collected(bound, &[first, second]), whole, "{bound} {at}");
            }
        }
    }

    #[test]
    fn after_a_gap_output_is_missing_in_one_place() {
        let mut buffer = HeadTail::new(8);
        buffer.push(b"ab");
        buffer.skip(100);
        buffer.push(b"cdefgh");
        assert_eq!(parts(buffer.clone().finish()), expected("ab", 100, "cdefgh"));
        buffer.skip(1);
        buffer.push(b"i");
        assert_eq!(parts(buffer.take()), expected("ab", 107, "i"));
        assert!(buffer.is_empty());
    }

    #[test]
    fn a_collection_can_be_shortened() {
        let whole = CollectedOutput { head: b"abcdefgh".to_vec(), ..CollectedOutput::default() };
        assert_eq!(parts(whole.clone().within(8)), expected("abcdefgh", 0, ""));
        assert_eq!(parts(whole.within(4)), expected("ab", 4, "gh"));
        let cut =
            CollectedOutput { head: b"abcd".to_vec(), omitted_bytes: 9, tail: b"uvwxyz".to_vec() };
        assert_eq!(parts(cut.within(6)), expected("abc", 13, "xyz"));
    }

    #[test]
    fn text_shows_the_number_of_omitted_bytes() {
        let output =
            CollectedOutput { head: b"ab".to_vec(), omitted_bytes: 3, tail: b"\xffz".to_vec() };
        assert_eq!(output.to_text(), "ab\n[… 3 bytes left out …]\n\u{fffd}z");
    }
}

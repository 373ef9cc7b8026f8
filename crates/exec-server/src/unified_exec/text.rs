//! Finds a character of UTF-8 that is cut off at the end of a chunk.

/// Returns the number of bytes at the end that form an incomplete character.
pub(super) fn incomplete_suffix(bytes: &[u8]) -> usize {
    const LONGEST_BEGINNING: usize = 3;
    let last = &bytes[bytes.len().saturating_sub(LONGEST_BEGINNING)..];
    // Tries each possible start of a character; the first may be in the middle of a character.
    (0..last.len())
        .map(|at| &last[at..])
        .find(|end| {
            let error = std::str::from_utf8(end).err();
            error.is_some_and(|error| error.valid_up_to() == 0 && error.error_len().is_none())
        })
        .map_or(0, <[u8]>::len)
}

#[cfg(test)]
mod tests {
    use super::incomplete_suffix;

    #[test]
    fn only_incomplete_characters_count() {
        for (bytes, expected) in [
            (&b""[..], 0),
            (b"abc", 0),
            ("é".as_bytes(), 0),
            (&"é".as_bytes()[..1], 1),
            (&"a…".as_bytes()[..3], 2),
            (&"😀".as_bytes()[..3], 3),
            (&"xx😀".as_bytes()[..5], 3),
            (b"ab\xff", 0),
            (b"\x80\x80\x80", 0),
            (b"\xe2\x82A", 0),
        ] {
            assert_eq!(incomplete_suffix(bytes), expected, "{bytes:?}");
        }
    }
}

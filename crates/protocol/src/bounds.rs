//! Limits that are checked before a message is parsed.
//!
//! One scan, which allocates only for keys, checks that the whole message is JSON, counts values
//! and nesting, and refuses duplicate keys. A string in the message may be a file of many
//! megabytes, so this is the only scan over the whole text: it reports the text of each top-level
//! member, and readers parse only the members that they need. This module does not know which
//! members exist or what they mean.

use std::borrow::Cow;
use std::collections::HashSet;

use serde::de::{Error as _, IgnoredAny};

/// Maximum size of a message in either direction.
pub const MAX_MESSAGE_BYTES: usize = 64 << 20;
/// Maximum number of JSON values (containers and scalars, not keys) in one message.
pub const MAX_JSON_VALUES: usize = 262_144;
pub const MAX_JSON_DEPTH: usize = 127;

/// Refuses text that is not JSON or exceeds the limits.
pub(crate) fn check(text: &[u8]) -> Result<(), serde_json::Error> {
    walk(text, &mut |_, _| {})
}

/// Checks JSON text. If it is an object, calls `member` with each key, unescaped, and the text of
/// its value.
pub(crate) fn walk<'a>(
    text: &'a [u8],
    member: &mut dyn FnMut(&[u8], &'a [u8]),
) -> Result<(), serde_json::Error> {
    let mut scan = Scan { text, at: 0, values: 0, member };
    match scan.document() {
        Ok(()) => Ok(()),
        Err(Fault::Refused(error)) => Err(error),
        // Slow path: `serde_json` reports the position of the error.
        Err(Fault::NotJson) => match serde_json::from_slice::<IgnoredAny>(text) {
            Err(error) => Err(error),
            Ok(_) => Err(serde_json::Error::custom("the message is not JSON")),
        },
    }
}

struct Scan<'a, 'm> {
    text: &'a [u8],
    at: usize,
    values: usize,
    member: &'m mut dyn FnMut(&[u8], &'a [u8]),
}

enum Fault {
    NotJson,
    Refused(serde_json::Error),
}

impl Fault {
    fn refused(why: impl std::fmt::Display) -> Self {
        Self::Refused(serde_json::Error::custom(why))
    }
}

impl<'a> Scan<'a, '_> {
    fn document(&mut self) -> Result<(), Fault> {
        self.value(0)?;
        match self.next_token() {
            None => Ok(()),
            Some(_) => Err(Fault::NotJson),
        }
    }

    /// `depth` is the number of enclosing containers, and therefore the depth of the recursion.
    fn value(&mut self, depth: usize) -> Result<&'a [u8], Fault> {
        self.values += 1;
        if self.values > MAX_JSON_VALUES {
            return Err(Fault::refused(format_args!(
                "more than {MAX_JSON_VALUES} values in one message"
            )));
        }
        let token = self.next_token();
        let begin = self.at;
        match token {
            Some(b'{' | b'[') if depth == MAX_JSON_DEPTH => {
                return Err(Fault::refused(format_args!(
                    "nesting deeper than {MAX_JSON_DEPTH} levels"
                )));
            }
            Some(b'{') => self.object(depth + 1)?,
            Some(b'[') => self.array(depth + 1)?,
            Some(b'"') => self.string().map(drop)?,
            Some(b'-' | b'0'..=b'9') => self.number()?,
            _ => self.word()?,
        }
        Ok(&self.text[begin..self.at])
    }

    fn object(&mut self, depth: usize) -> Result<(), Fault> {
        self.expect(b'{')?;
        if self.skip(b'}') {
            return Ok(());
        }
        let mut keys = Keys::default();
        loop {
            let key = self.key()?;
            let member_of_message = (depth == 1).then(|| key.clone());
            if let Some(repeated) = keys.repeated(key) {
                let repeated = String::from_utf8_lossy(&repeated).into_owned();
                return Err(Fault::refused(format_args!("duplicate key {repeated:?}")));
            }
            self.expect(b':')?;
            let value = self.value(depth)?;
            if let Some(key) = member_of_message {
                (self.member)(&key, value);
            }
            if self.skip(b'}') {
                return Ok(());
            }
            self.expect(b',')?;
        }
    }

    fn array(&mut self, depth: usize) -> Result<(), Fault> {
        self.expect(b'[')?;
        if self.skip(b']') {
            return Ok(());
        }
        loop {
            self.value(depth)?;
            if self.skip(b']') {
                return Ok(());
            }
            self.expect(b',')?;
        }
    }

    /// Reads a key and resolves its escapes.
    fn key(&mut self) -> Result<Cow<'a, [u8]>, Fault> {
        let quoted = self.string()?;
        let spelled = &quoted[1..quoted.len() - 1];
        if !spelled.contains(&b'\\') {
            return Ok(Cow::Borrowed(spelled));
        }
        let meant: String = serde_json::from_slice(quoted).map_err(Fault::Refused)?;
        Ok(Cow::Owned(meant.into_bytes()))
    }

    /// Reads a string, including its quotation marks.
    fn string(&mut self) -> Result<&'a [u8], Fault> {
        self.expect(b'"')?;
        let begin = self.at - 1;
        let mut is_ascii = true;
        loop {
            self.skip_plain_blocks();
            for _ in 0..PLAIN_BLOCK {
                match self.next_byte()? {
                    b'"' if is_ascii => return Ok(&self.text[begin..self.at]),
                    b'"' => return self.utf8(begin),
                    b'\\' => self.escape()?,
                    0..=0x1f => return Err(Fault::NotJson),
                    0x80.. => is_ascii = false,
                    _ => {}
                }
            }
        }
    }

    fn skip_plain_blocks(&mut self) {
        let (blocks, _) = self.text[self.at..].as_chunks();
        let plain = blocks.iter().position(|block| !is_plain(block)).unwrap_or(blocks.len());
        self.at += plain * PLAIN_BLOCK;
    }

    fn escape(&mut self) -> Result<(), Fault> {
        match self.next_byte()? {
            b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => Ok(()),
            b'u' => {
                for _ in 0..4 {
                    if !self.next_byte()?.is_ascii_hexdigit() {
                        return Err(Fault::NotJson);
                    }
                }
                Ok(())
            }
            _ => Err(Fault::NotJson),
        }
    }

    /// Checks the text from `begin` to the current position as UTF-8.
    fn utf8(&self, begin: usize) -> Result<&'a [u8], Fault> {
        let text = &self.text[begin..self.at];
        match str::from_utf8(text) {
            Ok(_) => Ok(text),
            Err(error) => {
                let at = begin + error.valid_up_to();
                Err(Fault::refused(format_args!("byte {at} of the message is not UTF-8")))
            }
        }
    }

    fn number(&mut self) -> Result<(), Fault> {
        self.take_one(b"-");
        if !self.take_one(b"0") {
            self.digits()?;
        }
        if self.take_one(b".") {
            self.digits()?;
        }
        if self.take_one(b"eE") {
            self.take_one(b"+-");
            self.digits()?;
        }
        Ok(())
    }

    fn digits(&mut self) -> Result<(), Fault> {
        let rest = &self.text[self.at..];
        match rest.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(rest.len()) {
            0 => Err(Fault::NotJson),
            len => {
                self.at += len;
                Ok(())
            }
        }
    }

    fn word(&mut self) -> Result<(), Fault> {
        let rest = &self.text[self.at..];
        let mut words = [&b"null"[..], b"true", b"false"].into_iter();
        let word = words.find(|word| rest.starts_with(word)).ok_or(Fault::NotJson)?;
        self.at += word.len();
        Ok(())
    }

    fn next_byte(&mut self) -> Result<u8, Fault> {
        let byte = self.text.get(self.at).ok_or(Fault::NotJson)?;
        self.at += 1;
        Ok(*byte)
    }

    fn take_one(&mut self, of: &[u8]) -> bool {
        let found = self.text.get(self.at).is_some_and(|byte| of.contains(byte));
        self.at += usize::from(found);
        found
    }

    /// Skips white space and peeks at the next byte.
    fn next_token(&mut self) -> Option<u8> {
        let rest = &self.text[self.at..];
        let is_space = |byte: &u8| matches!(byte, b' ' | b'\n' | b'\r' | b'\t');
        let space = rest.iter().position(|byte| !is_space(byte)).unwrap_or(rest.len());
        self.at += space;
        rest.get(space).copied()
    }

    fn skip(&mut self, token: u8) -> bool {
        let found = self.next_token() == Some(token);
        self.at += usize::from(found);
        found
    }

    fn expect(&mut self, token: u8) -> Result<(), Fault> {
        if self.skip(token) { Ok(()) } else { Err(Fault::NotJson) }
    }
}

const PLAIN_BLOCK: usize = 64;

/// Whether every byte is an ordinary character of a string: ASCII from 0x20 on, but no quotation
/// mark and no backslash.
fn is_plain(block: &[u8; PLAIN_BLOCK]) -> bool {
    const ONES: u64 = u64::MAX / 0xff;
    const HIGH_BITS: u64 = ONES << 7;
    let (words, _) = block.as_chunks();
    // In each byte of a word, the high bit is set by a non-ASCII byte and by a subtraction that
    // underflows. An underflow borrows from the byte above, so a false mark appears only above a
    // correct one: any mark means that the block is not plain. The loop has no early exit, so that
    // the compiler can use vector instructions.
    let marks = words.iter().fold(0, |marks, word| {
        let word = u64::from_le_bytes(*word);
        let control = word.wrapping_sub(ONES * 0x20);
        let quotation = (word ^ (ONES * u64::from(b'"'))).wrapping_sub(ONES);
        let backslash = (word ^ (ONES * u64::from(b'\\'))).wrapping_sub(ONES);
        marks | word | control | quotation | backslash
    });
    marks & HIGH_BITS == 0
}

/// The keys of one object so far. Most objects have few keys, for which a linear search is faster
/// than hashing.
#[derive(Default)]
struct Keys<'a> {
    few: Vec<Cow<'a, [u8]>>,
    many: HashSet<Cow<'a, [u8]>>,
}

impl<'a> Keys<'a> {
    const FEW: usize = 16;

    /// Records a key, or returns it if it is a duplicate.
    fn repeated(&mut self, key: Cow<'a, [u8]>) -> Option<Cow<'a, [u8]>> {
        if self.few.contains(&key) {
            return Some(key);
        }
        if self.few.len() < Self::FEW {
            self.few.push(key);
            return None;
        }
        self.many.replace(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ordinary_json_passes() {
        check(br#"{"a":[1,2.5,-3,true,null,"x\n"],"b":{"a":{}}} "#).unwrap();
    }

    #[test]
    fn duplicate_keys_are_refused_at_any_depth_and_in_any_spelling() {
        for text in [r#"{"a":1,"a":2}"#, r#"[{"b":{"a":1,"a":1}}]"#, r#"{"a":1,"\u0061":2}"#] {
            let error = check(text.as_bytes()).unwrap_err().to_string();
            assert!(error.contains("duplicate key \"a\""), "{error}");
        }
    }

    #[test]
    fn a_repeated_key_is_found_among_many() {
        let members: Vec<_> = (0..1000).map(|number| format!("\"{number}\":0")).collect();
        check(format!("{{{}}}", members.join(",")).as_bytes()).unwrap();
        for repeated in [0, 15, 16, 17, 999] {
            let text = format!("{{{},\"{repeated}\":1}}", members.join(","));
            let error = check(text.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(&format!("duplicate key \"{repeated}\"")), "{error}");
        }
    }

    #[test]
    fn values_are_counted() {
        // The array itself is a value too.
        let fits = format!("[{}0]", "0,".repeat(MAX_JSON_VALUES - 2));
        check(fits.as_bytes()).unwrap();
        let one_more = format!("[{}0]", "0,".repeat(MAX_JSON_VALUES - 1));
        assert!(check(one_more.as_bytes()).unwrap_err().to_string().contains("262144 values"));
    }

    #[test]
    fn depth_is_bounded() {
        let deep = |n: usize| format!("{}{}", "[".repeat(n), "]".repeat(n));
        check(deep(MAX_JSON_DEPTH).as_bytes()).unwrap();
        assert!(check(deep(MAX_JSON_DEPTH + 1).as_bytes()).is_err());
        assert!(check("[".repeat(100_000).as_bytes()).is_err());
        assert!(check("{\"a\":".repeat(100_000).as_bytes()).is_err());
    }

    #[test]
    fn invalid_json_is_reported_with_its_position() {
        for (text, expected) in [
            ("", "EOF"),
            ("  ", "EOF"),
            ("{} {}", "trailing characters"),
            ("{\"a\":1,}", "column 8"),
            ("{\"a\" 1}", "column 6"),
            ("{\"a\":}", "column 6"),
            ("{,}", "column 2"),
            ("[1 2]", "column 4"),
            ("[1,]", "column 4"),
            ("[}", "column 2"),
            ("{]", "column 2"),
            ("\"a", "EOF while parsing a string"),
            ("\"a\\", "EOF while parsing a string"),
            ("\"a\\\"", "EOF while parsing a string"),
            ("{\"a\":[1", "EOF"),
            ("{1:2}", "key must be a string"),
        ] {
            let error = check(text.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }

    #[test]
    fn no_message_passes_that_serde_would_refuse() {
        for value in [
            &b"\"\xff\""[..],
            b"\"\x01\"",
            b"\"\\x\"",
            b"01",
            b"1.",
            b"-",
            b"+1",
            b"1e",
            b"tru",
            b"truefalse",
            b"nan",
            b"{\"a\":tru}",
            b"[\"\xc3\"]",
        ] {
            let message = [&b"{\"id\":1,\"method\":\"m\",\"params\":"[..], value, b"}"].concat();
            assert!(crate::decode(&message).is_err(), "{:?}", String::from_utf8_lossy(value));
        }
    }

    #[test]
    fn a_plain_block_holds_only_plain_bytes() {
        for byte in 0..=0xff {
            let is_special = !matches!(byte, b' '..=0x7f) || matches!(byte, b'"' | b'\\');
            for at in 0..PLAIN_BLOCK {
                for others in [b' ', b'!', b'#', b'[', b']', 0x7f] {
                    let mut block = [others; PLAIN_BLOCK];
                    block[at] = byte;
                    assert_eq!(is_plain(&block), !is_special, "{byte:#x} at {at} in {others:#x}");
                }
            }
        }
    }

    /// Covers every position of a byte within the blocks that the scan checks at once.
    #[test]
    fn the_bytes_allowed_in_a_string_do_not_depend_on_their_position() {
        for before in 0..150 {
            for after in [0, 1, 63, 64, 65, 130] {
                let text = |middle: &[u8]| {
                    let (before, after) = ("x".repeat(before), "y".repeat(after));
                    [b"[\"", before.as_bytes(), middle, after.as_bytes(), b"\"]"].concat()
                };
                for good in ["", "\\\"", "\\\\", "\\u00e9", "\\n", "é", "€", "\u{10ffff}", "\u{7f}"]
                {
                    check(&text(good.as_bytes())).unwrap();
                }
                for bad in
                    [&b"\x1f"[..], b"\n", b"\\x", b"\\u00g0", b"\\u0", b"\xff", b"\xc3", b"\""]
                {
                    let text = text(bad);
                    assert!(check(&text).is_err(), "{}", String::from_utf8_lossy(&text));
                }
            }
        }
    }

    #[test]
    fn bad_utf8_is_reported_with_its_position() {
        let error = check(b"{\"a\":\"\xc3\xa9\xc3\"}").unwrap_err().to_string();
        assert!(error.contains("byte 8 of the message is not UTF-8"), "{error}");
    }

    #[test]
    fn only_top_level_members_are_reported() {
        let text = br#" { "a" : {"b":[{"c":1}]} , "\u0064\n":"\"x","e":-1.5e3, "":null } "#;
        let mut members = Vec::new();
        walk(text, &mut |key, value| {
            let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
            members.push((text(key), text(value)));
        })
        .unwrap();
        let expected =
            [("a", r#"{"b":[{"c":1}]}"#), ("d\n", r#""\"x""#), ("e", "-1.5e3"), ("", "null")];
        assert_eq!(members, expected.map(|(key, value)| (key.to_owned(), value.to_owned())));

        walk(br#"[{"a":1}]"#, &mut |_, _| panic!("an array has no members")).unwrap();
    }

    #[test]
    fn any_structure_that_serde_reads_passes() {
        for text in [
            "\t{ \"a\" : [ ] , \"b\" : { } }\r\n",
            r#""\\""#,
            r#""\"""#,
            r#"["\\\"",{"\\":"\u0000"}]"#,
            "-1.5E+10",
            "[0,-0,0.0,10e-1,1E5,1e999,123456789012345678901234567890]",
            "[true,false,null]",
            "null",
            r#""\ud800""#,
            "[[],[[]],{\"\":\"\"}]",
        ] {
            serde_json::from_str::<IgnoredAny>(text).unwrap();
            check(text.as_bytes()).unwrap();
        }
    }

    #[test]
    fn scan_and_serde_agree_about_damaged_messages() {
        const MESSAGE: &[u8] = br#"{"id":1,"method":"m\"","params":{"a":[1,-2.5e3,true,null],"b\\":{"c":"d\n"},"e":[]}}"#;
        const PIECES: &[u8] = br#"{}[]",:\ 019-+.eaut"#;
        let mut state = 1_u64;
        let mut random = |below: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) as usize % below
        };
        let mut refused = 0;
        for _ in 0..50_000 {
            let mut text = MESSAGE.to_vec();
            for _ in 0..=random(2) {
                let at = random(text.len());
                match random(3) {
                    0 => text[at] = PIECES[random(PIECES.len())],
                    1 => text.insert(at, PIECES[random(PIECES.len())]),
                    _ => drop(text.remove(at)),
                }
            }
            let shown = String::from_utf8_lossy(&text);
            match (serde_json::from_slice::<IgnoredAny>(&text), check(&text)) {
                (Ok(_), Ok(())) => {}
                (Ok(_), Err(error)) => {
                    assert!(error.to_string().contains("duplicate key"), "{shown}: {error}");
                }
                (Err(_), _) => {
                    refused += 1;
                    assert!(crate::decode(&text).is_err(), "{shown}");
                }
            }
        }
        assert!((10_000..50_000).contains(&refused), "{refused}");
    }
}

//! File names in output: programs get the exact bytes, and terminals an escaped form that cannot
//! move the cursor.

use std::fmt::Write as _;
use std::io::IsTerminal;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use super::untrusted::is_harmful;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Names {
    Raw,
    Escaped,
}

impl Names {
    pub(crate) fn for_stream(stream: &impl IsTerminal) -> Self {
        if stream.is_terminal() { Self::Escaped } else { Self::Raw }
    }

    pub(crate) fn of(self, name: impl AsRef<Path>) -> Vec<u8> {
        let name = name.as_ref();
        match self {
            Self::Raw => name.as_os_str().as_bytes().to_vec(),
            Self::Escaped => escaped(name).into_bytes(),
        }
    }
}

/// Escapes a name as `ls` does: `\n`, `\033`, `\377`.
pub(crate) fn escaped(name: impl AsRef<Path>) -> String {
    let mut shown = String::new();
    for chunk in name.as_ref().as_os_str().as_bytes().utf8_chunks() {
        for letter in chunk.valid().chars() {
            match letter {
                '\n' => shown.push_str("\\n"),
                '\t' => shown.push_str("\\t"),
                '\\' => shown.push_str("\\\\"),
                _ if is_harmful(letter) => {
                    let mut bytes = [0; 4];
                    push_octal(&mut shown, letter.encode_utf8(&mut bytes).as_bytes());
                }
                _ => shown.push(letter),
            }
        }
        push_octal(&mut shown, chunk.invalid());
    }
    shown
}

fn push_octal(shown: &mut String, bytes: &[u8]) {
    for byte in bytes {
        let _ = write!(shown, "\\{byte:03o}");
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use super::*;

    #[test]
    fn only_unprintable_characters_are_escaped() {
        for (name, shown) in [
            (&b"plain name"[..], "plain name"),
            ("größe".as_bytes(), "größe"),
            (b"a\nb\x1b[2J", "a\\nb\\033[2J"),
            (b"\xff\xfe.txt", "\\377\\376.txt"),
            (b"back\\slash", "back\\\\slash"),
            ("\u{202e}gpj".as_bytes(), "\\342\\200\\256gpj"),
        ] {
            assert_eq!(escaped(OsStr::from_bytes(name)), shown);
            assert_eq!(Names::Raw.of(OsStr::from_bytes(name)), name);
        }
    }
}

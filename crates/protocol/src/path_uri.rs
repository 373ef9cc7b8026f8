//! Paths on the wire: `file:` URIs whose percent-encoding carries any bytes, UTF-8 or not.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

const SCHEME: &str = "file://";

/// An absolute path on the server.
///
/// Serializes as a `file:` URI. Deserializes from a URI or an absolute native path. `..` is kept
/// for the kernel to resolve: removing it lexically would be wrong after a symlink.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PathUri(PathBuf);

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PathUriError {
    #[error("{text:?} is not an absolute path or file: URI")]
    NotAbsolute { text: String },
    #[error("{text:?} has no absolute path; expected file:///PATH")]
    RelativeUri { text: String },
    #[error("{text:?} has the scheme {scheme:?}; only file: URIs are supported")]
    Scheme { text: String, scheme: String },
    #[error("{text:?} names the host {host:?}; a file: URI must not have a host")]
    Host { text: String, host: String },
    #[error("{text:?} contains a {what}, which must be percent-encoded in a file: URI")]
    Unencoded { text: String, what: &'static str },
    #[error("{text:?} has an invalid percent-encoding")]
    Encoding { text: String },
    #[error("{text:?} contains a percent-encoded {what}, which is not allowed")]
    Disguised { text: String, what: &'static str },
    #[error("{text:?} contains a NUL byte")]
    Nul { text: String },
}

impl PathUri {
    /// Returns `None` if the path is not absolute or contains a NUL byte.
    pub fn from_path(path: impl Into<PathBuf>) -> Option<Self> {
        let path = path.into();
        let sound = path.is_absolute() && !path.as_os_str().as_bytes().contains(&0);
        sound.then_some(Self(path))
    }

    #[must_use]
    pub fn as_path(&self) -> &Path {
        &self.0
    }

    #[must_use]
    pub fn into_path(self) -> PathBuf {
        self.0
    }

    /// Returns the length of the path as a URI.
    #[must_use]
    pub fn encoded_len(&self) -> usize {
        SCHEME.len() + encoded_len(self.0.as_os_str().as_bytes())
    }

    /// Returns the number of bytes that a name adds to the URI of its directory, without the slash.
    #[must_use]
    pub fn encoded_len_of(name: &OsStr) -> usize {
        encoded_len(name.as_bytes())
    }
}

fn encoded_len(bytes: &[u8]) -> usize {
    let encoded = bytes.iter().filter(|byte| !is_literal(**byte)).count();
    bytes.len() + 2 * encoded
}

impl FromStr for PathUri {
    type Err = PathUriError;

    fn from_str(text: &str) -> Result<Self, PathUriError> {
        let owned = || text.to_owned();
        if text.contains('\0') {
            return Err(PathUriError::Nul { text: owned() });
        }
        if text.starts_with('/') {
            return Ok(Self(PathBuf::from(text)));
        }
        let (scheme, rest) =
            split_scheme(text).ok_or(PathUriError::NotAbsolute { text: owned() })?;
        if !scheme.eq_ignore_ascii_case("file") {
            return Err(PathUriError::Scheme { text: owned(), scheme: scheme.to_owned() });
        }
        let encoded = match rest.strip_prefix("//") {
            Some(authority) => {
                let (host, _) = authority.split_at(authority.find('/').unwrap_or(authority.len()));
                if !host.is_empty() {
                    return Err(PathUriError::Host { text: owned(), host: host.to_owned() });
                }
                authority
            }
            None => rest,
        };
        if !encoded.starts_with('/') {
            return Err(PathUriError::RelativeUri { text: owned() });
        }
        let bytes = decode(text, encoded)?;
        Ok(Self(PathBuf::from(OsString::from_vec(bytes))))
    }
}

impl fmt::Display for PathUri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(SCHEME)?;
        let mut rest = self.0.as_os_str().as_bytes();
        // Fast path: nearly all names need no encoding, and a response may hold fifty thousand of
        // them.
        loop {
            let run = rest.iter().position(|byte| !is_literal(*byte)).unwrap_or(rest.len());
            f.write_str(str::from_utf8(&rest[..run]).expect("literals are ASCII"))?;
            let [byte, after @ ..] = &rest[run..] else { break };
            write!(f, "%{byte:02X}")?;
            rest = after;
        }
        Ok(())
    }
}

impl Serialize for PathUri {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for PathUri {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;
        impl de::Visitor<'_> for Text {
            type Value = PathUri;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a path as a string")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<PathUri, E> {
                text.parse().map_err(E::custom)
            }
        }
        deserializer.deserialize_str(Text)
    }
}

/// Splits `scheme:rest`. Returns `None` if the scheme is invalid by RFC 3986: `a/b:c` is a relative
/// path.
fn split_scheme(text: &str) -> Option<(&str, &str)> {
    let (scheme, rest) = text.split_once(':')?;
    let mut letters = scheme.bytes();
    let sound = letters.next().is_some_and(|first| first.is_ascii_alphabetic())
        && letters.all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte));
    sound.then_some((scheme, rest))
}

fn decode(text: &str, encoded: &str) -> Result<Vec<u8>, PathUriError> {
    let owned = || text.to_owned();
    if !encoded.bytes().any(|byte| matches!(byte, b'%' | b'?' | b'#')) {
        return Ok(encoded.as_bytes().to_vec());
    }
    let mut path = Vec::with_capacity(encoded.len());
    for segment in encoded.split('/').skip(1) {
        let decoded = decode_segment(text, segment)?;
        if matches!(decoded.as_slice(), b"." | b"..") && segment.contains('%') {
            return Err(PathUriError::Disguised { text: owned(), what: "dot segment" });
        }
        path.push(b'/');
        path.extend_from_slice(&decoded);
    }
    Ok(path)
}

fn decode_segment(text: &str, segment: &str) -> Result<Vec<u8>, PathUriError> {
    let owned = || text.to_owned();
    let mut decoded = Vec::with_capacity(segment.len());
    let mut bytes = segment.bytes();
    while let Some(byte) = bytes.next() {
        let byte = match byte {
            b'?' => return Err(PathUriError::Unencoded { text: owned(), what: "question mark" }),
            b'#' => return Err(PathUriError::Unencoded { text: owned(), what: "number sign" }),
            b'%' => {
                let hex = |digit: Option<u8>| digit.and_then(|d| char::from(d).to_digit(16));
                match (hex(bytes.next()), hex(bytes.next())) {
                    (Some(high), Some(low)) => (high * 16 + low) as u8,
                    _ => return Err(PathUriError::Encoding { text: owned() }),
                }
            }
            literal => {
                decoded.push(literal);
                continue;
            }
        };
        match byte {
            0 => return Err(PathUriError::Nul { text: owned() }),
            b'/' => return Err(PathUriError::Disguised { text: owned(), what: "slash" }),
            byte => decoded.push(byte),
        }
    }
    Ok(decoded)
}

/// Whether RFC 3986 allows the byte unencoded in a path.
fn is_literal(byte: u8) -> bool {
    const LITERAL: [bool; 256] = {
        let mut literal = [false; 256];
        let mut byte = 0;
        while byte < literal.len() {
            literal[byte] = (byte as u8).is_ascii_alphanumeric();
            byte += 1;
        }
        let marks = b"/-._~!$&'()*+,;=:@";
        let mut mark = 0;
        while mark < marks.len() {
            literal[marks[mark] as usize] = true;
            mark += 1;
        }
        literal
    };
    LITERAL[usize::from(byte)]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path_of(text: &str) -> Vec<u8> {
        text.parse::<PathUri>().unwrap().as_path().as_os_str().as_bytes().to_vec()
    }

    #[test]
    fn uris_and_native_paths_decode() {
        assert_eq!(path_of("file:///tmp/a%20b"), b"/tmp/a b");
        assert_eq!(path_of("FILE:/tmp"), b"/tmp");
        assert_eq!(path_of("/tmp/100%"), b"/tmp/100%");
        assert_eq!(path_of("file:///tmp/%ff%FE"), b"/tmp/\xff\xfe");
        assert_eq!(path_of("file:///"), b"/");
        assert_eq!(path_of("file:///a/../b"), b"/a/../b");
        assert_eq!(path_of("file:///caf\u{e9}"), "/café".as_bytes());
    }

    #[test]
    fn every_byte_round_trips() {
        let mut bytes = b"/x".to_vec();
        bytes.extend(1..=255u8);
        let uri = PathUri::from_path(OsStr::from_bytes(&bytes)).unwrap();
        let text = uri.to_string();
        assert!(text.is_ascii());
        assert_eq!(text.len(), uri.encoded_len());
        assert_eq!(text.parse::<PathUri>().unwrap(), uri);
        let json = serde_json::to_string(&uri).unwrap();
        assert_eq!(serde_json::from_str::<PathUri>(&json).unwrap(), uri);
    }

    #[test]
    fn only_bytes_not_allowed_in_a_path_are_encoded() {
        for (path, expected) in [
            (&b"/"[..], "file:///"),
            (b"/a b/c", "file:///a%20b/c"),
            (b"/-._~!$&'()*+,;=:@", "file:///-._~!$&'()*+,;=:@"),
            (b"/\"%?#\\ ", "file:///%22%25%3F%23%5C%20"),
            ("/é".as_bytes(), "file:///%C3%A9"),
            (b"/\xff\x01x\x7f", "file:///%FF%01x%7F"),
        ] {
            let uri = PathUri::from_path(OsStr::from_bytes(path)).unwrap();
            assert_eq!(uri.to_string(), expected);
        }
    }

    #[test]
    fn only_a_json_string_decodes_to_a_path() {
        let expected = PathUri::from_path("/tmp").unwrap();
        for json in [r#""/tmp""#, r#""\u002ftmp""#, r#""file:\/\/\/tmp""#] {
            assert_eq!(serde_json::from_str::<PathUri>(json).unwrap(), expected, "{json}");
            let value: serde_json::Value = serde_json::from_str(json).unwrap();
            assert_eq!(serde_json::from_value::<PathUri>(value).unwrap(), expected, "{json}");
        }
        for json in ["7", "null", r#"["/tmp"]"#, r#""tmp""#] {
            assert!(serde_json::from_str::<PathUri>(json).is_err(), "{json}");
        }
    }

    #[test]
    fn errors_state_the_reason() {
        for (text, expected) in [
            ("tmp", "not an absolute"),
            ("", "not an absolute"),
            ("a/b:c", "not an absolute"),
            ("file:tmp", "has no absolute path"),
            ("file://", "has no absolute path"),
            ("http://x/y", "scheme \"http\""),
            ("file://localhost/tmp", "host \"localhost\""),
            ("file://server", "host \"server\""),
            ("file:///a%2fb", "percent-encoded slash"),
            ("file:///a/%2e%2E/b", "percent-encoded dot segment"),
            ("file:///a/.%2e", "percent-encoded dot segment"),
            ("file:///a%00b", "NUL"),
            ("/a\0b", "NUL"),
            ("file:///a%4", "invalid percent-encoding"),
            ("file:///a%zz", "invalid percent-encoding"),
            ("file:///a?b", "question mark"),
            ("file:///a#b", "number sign"),
        ] {
            let error = text.parse::<PathUri>().unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}

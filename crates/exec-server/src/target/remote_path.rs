//! Paths as users write them: `box:/srv/x` is on the machine of the environment `box`, and
//! `:/srv/x` on that of the command's server. Knows no servers.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ServerPath {
    /// `None`: the server of the command.
    pub(crate) environment: Option<String>,
    /// May be relative.
    pub(crate) path: PathBuf,
    /// The whole argument as written.
    pub(crate) written: OsString,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum AnyPath {
    Here(PathBuf),
    There(ServerPath),
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum PathError {
    #[error("a path must not be empty")]
    Empty,
    #[error(
        "{environment:?} before the colon is not valid UTF-8, so it names no environment; for a file with a colon, write ./ before it"
    )]
    Environment { environment: OsString },
    #[error("a path is missing after the colon")]
    NothingAfterColon,
    #[error(
        "- does not mean standard input or output here; use cat to print a file, or ./- for a file of that name"
    )]
    Dash,
    #[error("refusing to remove the root directory")]
    Root,
    #[error("refusing to remove a path that ends with . or ..")]
    NoName,
}

impl ServerPath {
    /// The prefix `[ENVIRONMENT]:` is optional.
    pub(crate) fn parse(written: &OsStr) -> Result<Self, PathError> {
        let there = split(written)?;
        let (environment, path) = there.unwrap_or((None, written));
        Ok(Self { environment, path: path.into(), written: written.to_owned() })
    }

    /// Parses a path to remove, which must have a name: a typo such as `rm -r box:` for `rm -r
    /// box:x` must not remove everything.
    pub(crate) fn parse_named(written: &OsStr) -> Result<Self, PathError> {
        let path = Self::parse(written)?;
        let bytes = path.path.as_os_str().as_bytes();
        if bytes.is_empty() {
            return Err(PathError::NothingAfterColon);
        }
        let end = bytes.iter().rposition(|byte| *byte != b'/').map_or(0, |last| last + 1);
        match bytes[..end].rsplit(|byte| *byte == b'/').next() {
            None | Some(b"") => Err(PathError::Root),
            Some(b"." | b"..") => Err(PathError::NoName),
            Some(_) => Ok(path),
        }
    }
}

impl AnyPath {
    /// Only a path with the prefix `[ENVIRONMENT]:` is on a server.
    pub(crate) fn parse(written: &OsStr) -> Result<Self, PathError> {
        if written == "-" {
            return Err(PathError::Dash);
        }
        Ok(match split(written)? {
            Some(_) => Self::There(ServerPath::parse(written)?),
            None => Self::Here(written.into()),
        })
    }

    pub(crate) fn there(&self) -> Option<&ServerPath> {
        match self {
            Self::Here(_) => None,
            Self::There(path) => Some(path),
        }
    }
}

/// Splits a path at a colon before the first slash. So `./a:b` is a file with a colon in its name.
fn split(written: &OsStr) -> Result<Option<(Option<String>, &OsStr)>, PathError> {
    let bytes = written.as_bytes();
    if bytes.is_empty() {
        return Err(PathError::Empty);
    }
    let end = bytes.iter().position(|byte| b":/".contains(byte));
    let Some(colon) = end.filter(|end| bytes[*end] == b':') else { return Ok(None) };
    let path = OsStr::from_bytes(&bytes[colon + 1..]);
    let environment = OsStr::from_bytes(&bytes[..colon]);
    match environment.to_str() {
        Some("") => Ok(Some((None, path))),
        Some(name) => Ok(Some((Some(name.to_owned()), path))),
        None => Err(PathError::Environment { environment: environment.to_owned() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn there(environment: Option<&str>, path: &str, written: &str) -> ServerPath {
        let environment = environment.map(str::to_owned);
        ServerPath { environment, path: path.into(), written: written.into() }
    }

    #[test]
    fn a_colon_before_the_first_slash_names_the_server() {
        for (written, environment, path) in [
            ("box:/srv/x", Some("box"), "/srv/x"),
            (":/srv/x", None, "/srv/x"),
            ("box:a:b", Some("box"), "a:b"),
            ("box:", Some("box"), ""),
            (":x", None, "x"),
        ] {
            let expected = there(environment, path, written);
            assert_eq!(ServerPath::parse(OsStr::new(written)).unwrap(), expected);
            assert_eq!(AnyPath::parse(OsStr::new(written)).unwrap(), AnyPath::There(expected));
        }
    }

    #[test]
    fn other_paths_use_the_server_of_the_command() {
        for written in ["./a:b", "/a:b", "a", "a/b:c"] {
            let text = OsStr::new(written);
            assert_eq!(ServerPath::parse(text).unwrap(), there(None, written, written));
            assert_eq!(AnyPath::parse(text).unwrap(), AnyPath::Here(written.into()));
        }
    }

    #[test]
    fn only_paths_with_a_name_can_be_removed() {
        for path in [":", "/", "//", ".", "..", "./", "a/.", "a/..", "/a/..//", "box:", "box:/"] {
            assert!(ServerPath::parse_named(OsStr::new(path)).is_err(), "{path}");
        }
        for path in ["a", "/a", "./a", "../a/", ".a", "...", "a/..b", "box:a"] {
            assert!(ServerPath::parse_named(OsStr::new(path)).is_ok(), "{path}");
        }
    }

    #[test]
    fn paths_may_hold_any_bytes_but_environments_must_be_text() {
        let path = ServerPath::parse(OsStr::from_bytes(b"box:\xff")).unwrap();
        assert_eq!(path.path.as_os_str().as_bytes(), b"\xff");
        assert!(ServerPath::parse(OsStr::from_bytes(b"\xff:x")).is_err());
        assert_eq!(AnyPath::parse(OsStr::new("")), Err(PathError::Empty));
        assert_eq!(AnyPath::parse(OsStr::new("-")), Err(PathError::Dash));
        assert_eq!(AnyPath::parse(OsStr::new("./-")), Ok(AnyPath::Here("./-".into())));
    }
}

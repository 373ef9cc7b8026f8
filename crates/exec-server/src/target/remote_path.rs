//! Paths as users write them: `box:/srv/x` is on the machine of the environment `box`, `:/srv/x` on that of the server
//! which the command uses. Knows no server.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;

/// A path on the machine of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ServerPath {
    /// `None`: the server that the command uses.
    pub(crate) environment: Option<String>,
    /// May be relative.
    pub(crate) path: PathBuf,
    /// All of it, as it was written.
    pub(crate) written: OsString,
}

/// A path that may also be one of this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum AnyPath {
    Here(PathBuf),
    There(ServerPath),
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum PathError {
    #[error("a path must not be empty")]
    Empty,
    #[error("{environment:?} before the colon is not the name of an environment")]
    Environment { environment: OsString },
    #[error("a path is missing after the colon")]
    NothingAfterColon,
    #[error(
        "- is neither standard input nor standard output here (see cat); a file of that name is ./-"
    )]
    Dash,
    #[error("the root directory is not removed")]
    Root,
    #[error("a path that ends with . or .. is not removed")]
    NoName,
}

impl ServerPath {
    /// The path of a server with or without `[ENVIRONMENT]:` in front.
    pub(crate) fn parse(written: &OsStr) -> Result<Self, PathError> {
        let there = split(written)?;
        let (environment, path) = there.unwrap_or((None, written));
        Ok(Self { environment, path: path.into(), written: written.to_owned() })
    }

    /// Of what is to be removed. What a path without a name stands for is easily not what its writer had in mind: `rm
    /// -r box:` is one slip away from `rm -r box:x`.
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
    /// The path of a server only with `[ENVIRONMENT]:` in front.
    pub(crate) fn parse(written: &OsStr) -> Result<Self, PathError> {
        if written == "-" {
            return Err(PathError::Dash);
        }
        Ok(match split(written)? {
            Some(_) => Self::There(ServerPath::parse(written)?),
            None => Self::Here(written.into()),
        })
    }

    /// Of a server.
    pub(crate) fn there(&self) -> Option<&ServerPath> {
        match self {
            Self::Here(_) => None,
            Self::There(path) => Some(path),
        }
    }
}

/// A colon counts only before the first slash, so that `./a:b` can name any file.
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
    fn other_paths_are_those_of_the_command() {
        for written in ["./a:b", "/a:b", "a", "a/b:c"] {
            let text = OsStr::new(written);
            assert_eq!(ServerPath::parse(text).unwrap(), there(None, written, written));
            assert_eq!(AnyPath::parse(text).unwrap(), AnyPath::Here(written.into()));
        }
    }

    #[test]
    fn only_what_has_a_name_is_removed() {
        for path in [":", "/", "//", ".", "..", "./", "a/.", "a/..", "/a/..//", "box:", "box:/"] {
            assert!(ServerPath::parse_named(OsStr::new(path)).is_err(), "{path}");
        }
        for path in ["a", "/a", "./a", "../a/", ".a", "...", "a/..b", "box:a"] {
            assert!(ServerPath::parse_named(OsStr::new(path)).is_ok(), "{path}");
        }
    }

    #[test]
    fn names_need_not_be_text_but_environments_do() {
        let path = ServerPath::parse(OsStr::from_bytes(b"box:\xff")).unwrap();
        assert_eq!(path.path.as_os_str().as_bytes(), b"\xff");
        assert!(ServerPath::parse(OsStr::from_bytes(b"\xff:x")).is_err());
        assert_eq!(AnyPath::parse(OsStr::new("")), Err(PathError::Empty));
        assert_eq!(AnyPath::parse(OsStr::new("-")), Err(PathError::Dash));
        assert_eq!(AnyPath::parse(OsStr::new("./-")), Ok(AnyPath::Here("./-".into())));
    }
}

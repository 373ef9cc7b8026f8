//! The URL of a server, as users write it.

use std::fmt;
use std::str::FromStr;

use exec_server_transport::{DialUrl, DialUrlParseError};

#[derive(Clone, PartialEq, Eq)]
pub(crate) struct ServerUrl {
    written: String,
    parsed: DialUrl,
}

impl ServerUrl {
    /// Returns the whole text, including a query.
    pub(crate) fn as_written(&self) -> &str {
        &self.written
    }
}

impl FromStr for ServerUrl {
    type Err = DialUrlParseError;

    fn from_str(url: &str) -> Result<Self, DialUrlParseError> {
        Ok(Self { written: url.to_owned(), parsed: url.parse()? })
    }
}

/// Omits the query, which may hold a token.
impl fmt::Display for ServerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.parsed.fmt(f)
    }
}

impl fmt::Debug for ServerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.parsed.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_is_kept_and_never_shown() {
        let url: ServerUrl = "ws://a:1/b?token=secret".parse().unwrap();
        assert_eq!(url.as_written(), "ws://a:1/b?token=secret");
        assert!(!format!("{url} {url:?}").contains("secret"));
    }
}

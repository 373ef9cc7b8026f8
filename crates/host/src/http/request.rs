//! An unchecked request of a caller.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;

/// Checked by [`HttpClient::send`](super::HttpClient::send).
pub struct Request {
    pub method: String,
    /// `http` or `https`. The fragment is not sent; a user name and password become an
    /// `Authorization` header.
    pub url: String,
    pub headers: Vec<Header>,
    pub body: Bytes,
    /// Bounds the time until the headers of the last response, redirects included. If the body is
    /// read with [`Response::bytes`](super::Response::bytes), it covers the body too. A body that
    /// is read in chunks has no time limit.
    pub timeout: Option<Duration>,
    pub redirects: Redirects,
}

pub struct Header {
    pub name: String,
    pub value: String,
    /// A variable whose value is appended to `value`. Such a header is never sent to another
    /// origin.
    pub value_env_var: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Redirects {
    #[default]
    Follow,
    /// The redirect itself is the response.
    Stop,
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request")
            .field("headers", &self.headers)
            .field("body_len", &self.body.len())
            .field("timeout", &self.timeout)
            .field("redirects", &self.redirects)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Header {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Header")
            .field("name", &self.name)
            .field("value_env_var", &self.value_env_var)
            .finish_non_exhaustive()
    }
}

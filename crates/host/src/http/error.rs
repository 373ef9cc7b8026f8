//! What can go wrong, told apart by what a caller would do about it.
//!
//! Errors of the libraries below print URLs and host names, and certificates may name hosts. So their texts and sources end
//! in [`diagnosis`](super::diagnosis), and only facts come out.

use std::io;
use std::time::Duration;

#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    /// The caller's mistake: the same request would fail again.
    #[error(transparent)]
    BadRequest(#[from] BadRequest),
    /// The operator's mistake.
    #[error("environment variable {variable} does not hold the URL of a proxy")]
    ProxySetting { variable: &'static str },
    #[error("the HTTP client could not be set up")]
    Setup,
    #[error("the name of the host could not be resolved")]
    Resolve,
    #[error("could not connect: {source}")]
    Connect { source: io::Error },
    #[error("could not connect within {} s", after.as_secs())]
    ConnectTimedOut { after: Duration },
    /// Neither the network nor TLS: a proxy that answered, but not with a tunnel.
    #[error("could not connect: the proxy did not open a way to the host")]
    Proxy,
    #[error("tls: {problem}")]
    Tls { problem: TlsProblem },
    #[error("timed out after {} ms", after.as_millis())]
    TimedOut { after: Duration },
    #[error("the connection ended before a response came")]
    NoResponse,
    #[error("the response is not valid HTTP, or has too many headers")]
    Malformed,
    #[error("more than {max} redirects")]
    TooManyRedirects { max: usize },
    #[error("the connection ended before the body of the response did")]
    BodyCutOff,
    #[error("the body of the response is larger than {max} bytes")]
    BodyTooLarge { max: usize },
    /// Whoever reads it has no room for more.
    #[error("there is no room for the body of the response, because of others")]
    NoRoom,
    #[error("the exchange failed: {source}")]
    Exchange { source: io::Error },
}

/// Why a request was not even tried.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadRequest {
    #[error("the method is not one that can be sent")]
    Method,
    #[error("the URL is not valid")]
    Url,
    #[error("the URL is neither http nor https")]
    Scheme,
    #[error("the URL is longer than {max} bytes")]
    UrlTooLong { max: usize },
    /// Without the name, which may be anything.
    #[error("header {index}: not a valid name")]
    HeaderName { index: usize },
    #[error("header {name}: not a valid value")]
    HeaderValue { name: String },
    #[error("header {name} is about the connection, which is not the caller's")]
    HeaderOfConnection { name: String },
    #[error("header {name} is given twice")]
    HeaderTwice { name: String },
    #[error("header content-length is not the length of the body")]
    ContentLength,
    #[error("more than {max} headers")]
    TooManyHeaders { max: usize },
    #[error("headers of more than {max} bytes")]
    HeadersTooLarge { max: usize },
    #[error("header {header}: environment variable {variable:?} {problem}")]
    Variable { header: String, variable: String, problem: VariableProblem },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum VariableProblem {
    #[error("is not set")]
    Missing,
    #[error("is empty")]
    Empty,
    #[error("is protected")]
    Protected,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TlsProblem {
    #[error("certificate signed by an unknown authority")]
    UnknownAuthority,
    #[error("certificate expired")]
    Expired,
    #[error("certificate not valid yet")]
    NotValidYet,
    #[error("certificate made out to another name")]
    OtherName,
    #[error("certificate revoked")]
    Revoked,
    #[error("certificate invalid")]
    InvalidCertificate,
    #[error("the peer refused the handshake")]
    Refused,
    #[error("the peer does not speak TLS")]
    NotTls,
    #[error("handshake failed")]
    Handshake,
}

//! Errors of HTTP requests, distinguished by how a caller would react.
//!
//! Errors of the HTTP and TLS libraries contain URLs and host names, and certificates may name
//! hosts. So their texts and sources stay in [`diagnosis`](super::diagnosis), and only facts leave
//! it. The exception is [`HttpError::Setup`], which concerns no request.

use std::io;
use std::time::Duration;

#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    /// A caller error: the same request would fail again.
    #[error(transparent)]
    BadRequest(#[from] BadRequest),
    /// An operator error.
    #[error(
        "the server's environment variable {variable} (or its lower-case form) is not a valid \
         proxy URL; set it to http://HOST:PORT"
    )]
    ProxySetting { variable: &'static str },
    #[error("cannot set up the HTTP client: {cause}")]
    Setup { cause: String },
    #[error("cannot resolve the host name")]
    Resolve,
    #[error("cannot connect: {source}")]
    Connect { source: io::Error },
    #[error("cannot connect within {} s", after.as_secs())]
    ConnectTimedOut { after: Duration },
    /// Neither network nor TLS failed: the proxy responded but did not open a tunnel.
    #[error(
        "cannot connect: the server's proxy (HTTPS_PROXY or ALL_PROXY) did not open a tunnel to \
         the host"
    )]
    Proxy,
    #[error("TLS failed: {problem}")]
    Tls { problem: TlsProblem },
    #[error("timed out after {} ms", after.as_millis())]
    TimedOut { after: Duration },
    #[error("the connection or HTTP/2 stream closed before the response")]
    NoResponse,
    #[error("the response is not valid HTTP or has too many headers")]
    Malformed,
    #[error("the request was redirected more than {max} times")]
    TooManyRedirects { max: usize },
    #[error("the response body ended early, or is not valid HTTP")]
    BodyCutOff,
    #[error("the response body is larger than {max} bytes")]
    BodyTooLarge { max: usize },
    #[error(
        "no memory left for the response body: other responses use the whole budget; try again later"
    )]
    NoRoom,
    #[error("the HTTP exchange failed: {source}")]
    Exchange { source: io::Error },
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadRequest {
    #[error("the method is not allowed; use a name such as GET or POST, but not CONNECT")]
    Method,
    #[error("the URL is not valid; expected http://HOST[:PORT][/PATH] or https://…")]
    Url,
    #[error("the URL is neither http nor https")]
    Scheme,
    #[error("the URL is longer than {max} bytes")]
    UrlTooLong { max: usize },
    /// The message omits the name, which may contain anything.
    #[error("header number {}: the name is not valid; use letters, digits and '-'", index + 1)]
    HeaderName { index: usize },
    #[error("header {name}: the value is not valid; control characters are not allowed")]
    HeaderValue { name: String },
    #[error("header host is not valid; write HOST or HOST:PORT")]
    Host,
    #[error("header {name} controls the connection and cannot be set")]
    HeaderOfConnection { name: String },
    #[error("header {name} is given twice")]
    HeaderTwice { name: String },
    #[error("header content-length differs from the length of the body; omit the header")]
    ContentLength,
    #[error("the request has more than {max} headers")]
    TooManyHeaders { max: usize },
    #[error("the headers exceed {max} bytes")]
    HeadersTooLarge { max: usize },
    #[error("header {header}: the environment variable {variable:?} {problem}")]
    Variable { header: String, variable: String, problem: VariableProblem },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum VariableProblem {
    #[error("is not set on the server")]
    Missing,
    #[error("is empty on the server")]
    Empty,
    #[error(
        "is protected; the operator can allow it with http.allowed_variables, unless it is one of \
         the server's own"
    )]
    Protected,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TlsProblem {
    #[error(
        "the certificate is signed by an unknown authority; the server trusts those of its \
         system, or of CODEX_CA_CERTIFICATE, SSL_CERT_FILE and SSL_CERT_DIR"
    )]
    UnknownAuthority,
    #[error("the certificate has expired")]
    Expired,
    #[error(
        "the certificate is not yet valid; check the clock of the machine that runs exec-server"
    )]
    NotValidYet,
    #[error("the certificate was issued for another name")]
    OtherName,
    #[error("the certificate was revoked")]
    Revoked,
    #[error("the certificate is invalid: {flaw}")]
    InvalidCertificate { flaw: &'static str },
    #[error("the peer refused the handshake (TLS alert {alert:?})")]
    Refused { alert: rustls::AlertDescription },
    #[error("the peer does not speak TLS")]
    NotTls,
    #[error("the peer has no TLS version, cipher suite or key exchange in common with the server")]
    Incompatible,
    #[error("the handshake failed for a reason other than the certificate")]
    Handshake,
}

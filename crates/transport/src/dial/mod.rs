//! Dials a server: connects and performs the handshakes. Retries and timeouts are up to the caller;
//! dropping a dial closes its socket.

mod handshake;
mod url;

use std::fmt;
use std::io;

use hyper::StatusCode;
use rustls::CertificateError;
use rustls::pki_types::ServerName;
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::{TlsConnector, TlsStream};

use crate::auth::is_token;
use crate::connection::Connection;
use crate::tls::{TlsError, TlsOptions, client_config};
use crate::websocket::KeepAlive;
use handshake::{Failure, Request};
use url::Target;
pub use url::{DialUrl, DialUrlParseError};

#[derive(Clone)]
pub struct DialOptions {
    /// Sent as `Authorization: Bearer`.
    pub bearer_token: Option<String>,
    /// For `wss://`.
    pub tls: TlsOptions,
    pub keep_alive: KeepAlive,
}

/// The reason why a dial failed, grouped by remedy. URLs are printed without their query.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    #[error(transparent)]
    BadUrl(#[from] DialUrlParseError),
    #[error(
        "the bearer token is empty or contains a space, a line break or another character that is \
         not allowed in a header"
    )]
    BadToken,
    /// The host cannot be resolved or reached, no server listens there, or the server closed the
    /// connection during the handshake.
    #[error("cannot connect to {url}")]
    Unreachable { url: DialUrl, source: io::Error },
    /// A file needed for TLS is missing or invalid, or the system has no certificate authorities.
    #[error("cannot connect to {url}: {reason}")]
    Tls { url: DialUrl, reason: Box<TlsError> },
    /// The server cannot prove its identity.
    #[error("{url} is not trusted: {}", distrust(reason))]
    Untrusted { url: DialUrl, reason: Box<rustls::Error> },
    /// The server rejects the certificate of this client, or its TLS version.
    #[error(
        "{url} refused the TLS handshake of this client ({alert:?}); the client certificate \
         (--tls-client-cert) may be missing or invalid"
    )]
    Rejected { url: DialUrl, alert: rustls::AlertDescription },
    #[error("{url} answered {status} instead of opening a WebSocket{}", advice(*status))]
    Refused { url: DialUrl, status: StatusCode },
    #[error("{url} is not a WebSocket server: {why}")]
    NotWebSocket { url: DialUrl, why: NotWebSocket },
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotWebSocket {
    #[error("its response is not HTTP: {0}")]
    NotHttp(httparse::Error),
    #[error("the head of its response exceeds {max} bytes")]
    HeadTooLarge { max: usize },
    #[error("its response to the WebSocket key is wrong")]
    WrongKey,
    #[error("it does not speak TLS; did you mean ws://?")]
    NotTls,
}

/// Opens a connection to `ws://HOST[:PORT][/PATH][?QUERY]`, `wss://…` or `unix:///PATH`.
///
/// Tries all addresses of a host name in sequence. Waits indefinitely for a server that accepts but
/// never responds, until the future is dropped.
pub async fn dial(url: &str, options: &DialOptions) -> Result<Connection, DialError> {
    let url: DialUrl = url.parse()?;
    let token = options.bearer_token.as_deref();
    if !token.is_none_or(is_token) {
        return Err(DialError::BadToken);
    }
    let keep_alive = options.keep_alive;
    let opened = match &url.target {
        Target::Tcp { host, port, authority, path_and_query, is_tls } => {
            let request = Request { host: authority, path_and_query, token };
            match TcpStream::connect((host.as_str(), *port)).await {
                Ok(socket) if *is_tls => match encrypt(socket, host, &options.tls).await {
                    Ok(socket) => handshake::shake_hands(socket, &request, keep_alive).await,
                    Err(failure) => Err(failure),
                },
                Ok(socket) => handshake::shake_hands(socket, &request, keep_alive).await,
                Err(error) => Err(error.into()),
            }
        }
        Target::Unix(path) => {
            let request = Request { host: "localhost", path_and_query: "/", token };
            match UnixStream::connect(path).await {
                Ok(socket) => handshake::shake_hands(socket, &request, keep_alive).await,
                Err(error) => Err(error.into()),
            }
        }
    };
    opened.map_err(|failure| failure.of(url))
}

async fn encrypt(
    socket: TcpStream,
    host: &str,
    options: &TlsOptions,
) -> Result<TlsStream<TcpStream>, Failure> {
    let name = ServerName::try_from(host.to_owned())
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
    let options = options.clone();
    // The files may be on a slow disk.
    let config = tokio::task::spawn_blocking(move || client_config(&options)).await;
    let config = config.map_err(io::Error::other)?.map_err(|error| Failure::Tls(error.into()))?;
    // The handshake consists of several small messages each way.
    let _ = socket.set_nodelay(true);
    Ok(TlsConnector::from(config).connect(name, socket).await?.into())
}

/// Describes the problem with a server's certificate and the remedy.
fn distrust(error: &rustls::Error) -> String {
    let rustls::Error::InvalidCertificate(reason) = error else { return error.to_string() };
    match reason {
        // `BadSignature` means that the authority only shares its name with a trusted one.
        CertificateError::UnknownIssuer | CertificateError::BadSignature => {
            "no trusted authority has signed its certificate; name \
             its authority with --tls-ca, or pin the certificate with --tls-fingerprint"
                .to_owned()
        }
        CertificateError::ApplicationVerificationFailure => {
            "its certificate does not have the expected fingerprint; check --tls-fingerprint"
                .to_owned()
        }
        CertificateError::Expired => {
            "its certificate has expired; renew it on the server".to_owned()
        }
        CertificateError::ExpiredContext { not_after, .. } => format!(
            "its certificate has expired (notAfter: {} seconds since 1970); renew it on the server",
            not_after.as_secs()
        ),
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            "its certificate is for another name; connect by a name in the certificate".to_owned()
        }
        other => format!("its certificate is invalid: {other}"),
    }
}

fn advice(status: StatusCode) -> &'static str {
    match status {
        StatusCode::UNAUTHORIZED => {
            "; the token (--token-file) or client certificate is missing, wrong or expired"
        }
        StatusCode::FORBIDDEN => {
            "; it refuses this user, host name or origin (its settings allow_other_users, \
             allow_host and allow_origin)"
        }
        StatusCode::TOO_MANY_REQUESTS => {
            "; this client has too many connections (max_connections_per_subject)"
        }
        StatusCode::SERVICE_UNAVAILABLE => {
            "; it is shutting down, or has too many connections (max_connections)"
        }
        status if status.is_success() || status == StatusCode::NOT_FOUND => {
            "; it may not be an exec-server"
        }
        _ => "",
    }
}

impl DialError {
    /// Whether a retry is pointless.
    pub fn is_permanent(&self) -> bool {
        match self {
            Self::BadUrl(_)
            | Self::BadToken
            | Self::Tls { .. }
            | Self::Untrusted { .. }
            | Self::Rejected { .. }
            | Self::NotWebSocket { .. } => true,
            Self::Unreachable { .. } => false,
            Self::Refused { status, .. } => {
                !status.is_server_error() && *status != StatusCode::TOO_MANY_REQUESTS
            }
        }
    }
}

impl Default for DialOptions {
    fn default() -> Self {
        let keep_alive = KeepAlive::for_client();
        Self { bearer_token: None, tls: TlsOptions::default(), keep_alive }
    }
}

impl fmt::Debug for DialOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let token = self.bearer_token.as_ref().map(|_| format_args!("(hidden)"));
        f.debug_struct("DialOptions")
            .field("bearer_token", &token)
            .field("tls", &self.tls)
            .field("keep_alive", &self.keep_alive)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_token_is_not_printed() {
        let options = DialOptions { bearer_token: Some("SECRET".into()), ..Default::default() };
        let printed = format!("{options:?} {options:#?}");
        assert!(printed.contains("hidden") && !printed.contains("SECRET"), "{printed}");
    }

    #[tokio::test]
    async fn a_token_that_cannot_be_sent_is_refused_before_connecting() {
        for token in ["", "two words", "x\r\nEvil: yes", "x\n", "ü", "\0"] {
            let options = DialOptions { bearer_token: Some(token.into()), ..Default::default() };
            let error = dial("unix:///nonexistent", &options).await.unwrap_err();
            assert!(matches!(error, DialError::BadToken) && error.is_permanent(), "{token:?}");
        }
    }

    #[test]
    fn only_temporary_errors_are_worth_a_retry() {
        let url: DialUrl = "ws://box".parse().unwrap();
        for (status, permanent) in [
            (200, true),
            (301, true),
            (401, true),
            (403, true),
            (404, true),
            (426, true),
            (429, false),
            (500, false),
            (503, false),
        ] {
            let status = StatusCode::from_u16(status).unwrap();
            let error = DialError::Refused { url: url.clone(), status };
            assert_eq!(error.is_permanent(), permanent, "{status}");
        }
    }
}

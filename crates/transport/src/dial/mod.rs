//! The client's side of a new connection: reach the server, shake hands. Nothing is retried here and
//! nothing has a time limit: whoever dials knows both, and dropping a dial closes its socket.

mod handshake;
mod url;

use std::fmt;
use std::io;

use hyper::StatusCode;
use tokio::net::{TcpStream, UnixStream};

use crate::connection::Connection;
use crate::websocket::KeepAlive;
use handshake::Request;
use url::Target;
pub use url::{DialUrl, DialUrlParseError};

/// How to introduce ourselves, and how to keep the connection.
#[derive(Clone)]
pub struct DialOptions {
    /// Sent as `Authorization: Bearer`.
    pub bearer_token: Option<String>,
    pub keep_alive: KeepAlive,
}

/// Why there is no connection, by what to do about it. URLs are printed without their query.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    #[error(transparent)]
    BadUrl(#[from] DialUrlParseError),
    #[error(
        "the bearer token is empty or holds a space, a line break or another character that cannot \
         stand in a header"
    )]
    BadToken,
    /// Nobody listens there, or whoever does went away before the handshake was done.
    #[error("cannot connect to {url}")]
    Unreachable { url: DialUrl, source: io::Error },
    #[error("{url} answered {status} instead of opening a WebSocket")]
    Refused { url: DialUrl, status: StatusCode },
    #[error("{url} is not a WebSocket server: {why}")]
    NotWebSocket { url: DialUrl, why: NotWebSocket },
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotWebSocket {
    #[error("its answer is not HTTP: {0}")]
    NotHttp(httparse::Error),
    #[error("the head of its answer exceeds {max} bytes")]
    HeadTooLarge { max: usize },
    #[error("it did not answer the WebSocket key")]
    WrongKey,
}

/// Opens a connection to `ws://HOST[:PORT][/PATH][?QUERY]` or `unix:///PATH`.
///
/// All addresses of a host name are tried, one after the other. A server that accepts and never
/// answers is waited for until the call is dropped.
pub async fn dial(url: &str, options: &DialOptions) -> Result<Connection, DialError> {
    let url: DialUrl = url.parse()?;
    let token = options.bearer_token.as_deref();
    if !token.is_none_or(can_stand_in_a_header) {
        return Err(DialError::BadToken);
    }
    let keep_alive = options.keep_alive;
    let opened = match &url.target {
        Target::Tcp { host, port, authority, path_and_query } => {
            let request = Request { host: authority, path_and_query, token };
            match TcpStream::connect((host.as_str(), *port)).await {
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

impl DialError {
    /// Whether trying the same again is pointless.
    pub fn is_permanent(&self) -> bool {
        match self {
            Self::BadUrl(_) | Self::BadToken | Self::NotWebSocket { .. } => true,
            Self::Unreachable { .. } => false,
            Self::Refused { status, .. } => {
                !status.is_server_error() && *status != StatusCode::TOO_MANY_REQUESTS
            }
        }
    }
}

impl Default for DialOptions {
    fn default() -> Self {
        Self { bearer_token: None, keep_alive: KeepAlive::for_client() }
    }
}

impl fmt::Debug for DialOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let token = self.bearer_token.as_ref().map(|_| format_args!("(hidden)"));
        f.debug_struct("DialOptions")
            .field("bearer_token", &token)
            .field("keep_alive", &self.keep_alive)
            .finish()
    }
}

/// A line break would add headers of its own, and a space would end the token.
fn can_stand_in_a_header(token: &str) -> bool {
    !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_graphic())
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
    fn only_what_may_pass_is_worth_another_try() {
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

//! The client's half of the opening handshake (RFC 6455, section 4.1).

use std::fmt::Write as _;
use std::io;

use bytes::{Buf, BytesMut};
use hyper::StatusCode;
use hyper::header::SEC_WEBSOCKET_ACCEPT;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tungstenite::handshake::client::generate_key;
use tungstenite::handshake::derive_accept_key;

use super::{DialError, DialUrl, NotWebSocket};
use crate::connection::Connection;
use crate::socket::Socket;
use crate::tls::TlsError;
use crate::websocket::{self, KeepAlive, Role};

const MAX_RESPONSE_HEAD: usize = 16 << 10;
const MAX_HEADERS: usize = 100;

/// The parts of the request. No part may contain a line break.
pub(super) struct Request<'a> {
    pub(super) host: &'a str,
    pub(super) path_and_query: &'a str,
    pub(super) token: Option<&'a str>,
}

/// A [`DialError`] without its URL.
#[derive(Debug)]
pub(super) enum Failure {
    Io(io::Error),
    Tls(Box<TlsError>),
    Untrusted(Box<rustls::Error>),
    /// The server aborted the TLS handshake.
    Rejected(rustls::AlertDescription),
    Refused(StatusCode),
    NotWebSocket(NotWebSocket),
}

impl Failure {
    pub(super) fn of(self, url: DialUrl) -> DialError {
        match self {
            Self::Io(source) => DialError::Unreachable { url, source },
            Self::Tls(reason) => DialError::Tls { url, reason },
            Self::Rejected(alert) => DialError::Rejected { url, alert },
            Self::Untrusted(reason) => DialError::Untrusted { url, reason },
            Self::Refused(status) => DialError::Refused { url, status },
            Self::NotWebSocket(why) => DialError::NotWebSocket { url, why },
        }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        match error.get_ref().and_then(|inner| inner.downcast_ref()) {
            Some(rustls::Error::InvalidMessage(_)) => Self::NotWebSocket(NotWebSocket::NotTls),
            Some(refusal @ rustls::Error::InvalidCertificate(_)) => {
                Self::Untrusted(refusal.clone().into())
            }
            Some(rustls::Error::AlertReceived(alert)) => Self::Rejected(*alert),
            _ => Self::Io(error),
        }
    }
}

impl From<NotWebSocket> for Failure {
    fn from(why: NotWebSocket) -> Self {
        Self::NotWebSocket(why)
    }
}

pub(super) async fn shake_hands<S: Socket>(
    mut socket: S,
    request: &Request<'_>,
    keep_alive: KeepAlive,
) -> Result<Connection, Failure> {
    socket.prepare();
    let key = generate_key();
    socket.write_all(request.head(&key).as_bytes()).await?;
    socket.flush().await?;

    let mut received = BytesMut::new();
    loop {
        if socket.read_buf(&mut received).await? == 0 {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
        if let Some(head_len) = judge(&received, &key)? {
            received.advance(head_len);
            return Ok(websocket::connection(socket, Role::Client, &received, keep_alive));
        }
        if received.len() > MAX_RESPONSE_HEAD {
            return Err(NotWebSocket::HeadTooLarge { max: MAX_RESPONSE_HEAD }.into());
        }
    }
}

impl Request<'_> {
    fn head(&self, key: &str) -> String {
        let Self { host, path_and_query, token } = self;
        let mut head = format!(
            "GET {path_and_query} HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\n\
             Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n"
        );
        if let Some(token) = token {
            let _ = write!(head, "Authorization: Bearer {token}\r\n");
        }
        head.push_str("\r\n");
        head
    }
}

/// Returns the length of the response head that opens the WebSocket, or `None` until the head is
/// complete.
///
/// The body of a refusal is not read: proxies often repeat the URL in it, including its query.
fn judge(received: &[u8], key: &str) -> Result<Option<usize>, Failure> {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut response = httparse::Response::new(&mut headers);
    let parsed = response.parse(received).map_err(NotWebSocket::NotHttp)?;
    let httparse::Status::Complete(head_len) = parsed else {
        return Ok(None);
    };
    let status = response.code.and_then(|code| StatusCode::from_u16(code).ok());
    match status {
        Some(StatusCode::SWITCHING_PROTOCOLS) => {}
        Some(status) => return Err(Failure::Refused(status)),
        None => return Err(NotWebSocket::NotHttp(httparse::Error::Status).into()),
    }
    let accept = derive_accept_key(key.as_bytes());
    let is_accept = |header: &httparse::Header<'_>| {
        header.name.eq_ignore_ascii_case(SEC_WEBSOCKET_ACCEPT.as_str())
            && header.value == accept.as_bytes()
    };
    if !response.headers.iter().any(is_accept) {
        return Err(NotWebSocket::WrongKey.into());
    }
    Ok(Some(head_len))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of RFC 6455.
    const KEY: &str = "dGhlIHNhbXBsZSBub25jZQ==";
    const OPENED: &str = "HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\n\
        connection: Upgrade\r\nsec-websocket-accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n";

    #[test]
    fn the_request_has_the_expected_form() {
        let request = Request { host: "box:80", path_and_query: "/rpc?a=b", token: Some("T") };
        assert_eq!(
            request.head(KEY),
            "GET /rpc?a=b HTTP/1.1\r\nHost: box:80\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
             Authorization: Bearer T\r\n\r\n"
        );
        assert!(!Request { token: None, ..request }.head(KEY).contains("Authorization"));
    }

    #[test]
    fn a_response_is_judged_once_its_head_is_complete() {
        for len in 0..OPENED.len() {
            assert!(matches!(judge(&OPENED.as_bytes()[..len], KEY), Ok(None)), "{len}");
        }
        let with_a_frame = [OPENED.as_bytes(), b"\x81\x02{}"].concat();
        assert!(matches!(judge(&with_a_frame, KEY), Ok(Some(len)) if len == OPENED.len()));
    }

    #[test]
    fn refusals_keep_their_status() {
        for (answer, expected) in [
            ("HTTP/1.1 401 Unauthorized\r\n\r\n", 401),
            ("HTTP/1.0 503 Service Unavailable\r\n\r\n<html>", 503),
            ("HTTP/1.1 200 \r\n\r\n", 200),
        ] {
            let failure = judge(answer.as_bytes(), KEY).unwrap_err();
            assert!(matches!(failure, Failure::Refused(status) if status == expected), "{answer}");
        }
    }

    #[test]
    fn a_server_without_websockets_is_reported() {
        for answer in ["SSH-2.0-OpenSSH_9.6\r\n", "HTTP/1.1 ok\r\n\r\n", "HTTP/1.1 099 x\r\n\r\n"] {
            let failure = judge(answer.as_bytes(), KEY).unwrap_err();
            let expected = matches!(failure, Failure::NotWebSocket(NotWebSocket::NotHttp(_)));
            assert!(expected, "{answer}: {failure:?}");
        }
        let failure = judge(OPENED.as_bytes(), "AnotherKeyThanThatOne===").unwrap_err();
        assert!(matches!(failure, Failure::NotWebSocket(NotWebSocket::WrongKey)));
    }
}

//! The client's side of a connection: dial, shake hands. Nothing is retried here.

use std::io;

use bytes::{Buf, BytesMut};
use hyper::StatusCode;
use hyper::header::SEC_WEBSOCKET_ACCEPT;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tungstenite::handshake::client::{Response, generate_key};
use tungstenite::handshake::derive_accept_key;
use tungstenite::handshake::machine::TryParse;

use crate::connection::Connection;
use crate::socket::Socket;
use crate::websocket::{self, KeepAlive, Role};

const MAX_RESPONSE_HEAD: usize = 16 << 10;

/// Connects to `ws://HOST:PORT[/PATH]` or `unix:///PATH`.
pub async fn connect(url: &str) -> io::Result<Connection> {
    if let Some(path) = url.strip_prefix("unix://") {
        return shake_hands(UnixStream::connect(path).await?, "localhost", "/").await;
    }
    // A line break in the path would end the request line and add headers.
    let address = url
        .strip_prefix("ws://")
        .filter(|address| address.bytes().all(|byte| byte.is_ascii_graphic()))
        .ok_or_else(|| {
            let expected = "expected ws://HOST:PORT[/PATH] or unix:///PATH";
            io::Error::new(io::ErrorKind::InvalidInput, expected)
        })?;
    let (authority, path) = match address.find('/') {
        Some(slash) => address.split_at(slash),
        None => (address, "/"),
    };
    shake_hands(TcpStream::connect(authority).await?, authority, path).await
}

async fn shake_hands<S: Socket>(mut socket: S, host: &str, path: &str) -> io::Result<Connection> {
    socket.prepare();
    let key = generate_key();
    let request = format!(
        "GET {path} HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n\r\n"
    );
    socket.write_all(request.as_bytes()).await?;

    let mut received = BytesMut::new();
    loop {
        if received.len() > MAX_RESPONSE_HEAD {
            return Err(refused("the response's headers are too large"));
        }
        if socket.read_buf(&mut received).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if let Some((len, response)) = Response::try_parse(&received).map_err(refused)? {
            received.advance(len);
            check(&response, &key)?;
            let keep_alive = KeepAlive::default();
            return Ok(websocket::connection(socket, Role::Client, &received, keep_alive));
        }
    }
}

fn check(response: &Response, key: &str) -> io::Result<()> {
    if response.status() != StatusCode::SWITCHING_PROTOCOLS {
        return Err(refused(format!("the server answered {}", response.status())));
    }
    let accept = response.headers().get(SEC_WEBSOCKET_ACCEPT);
    if accept.is_none_or(|accept| accept != derive_accept_key(key.as_bytes()).as_str()) {
        return Err(refused("the server did not answer the WebSocket key"));
    }
    Ok(())
}

fn refused(why: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionRefused, why)
}

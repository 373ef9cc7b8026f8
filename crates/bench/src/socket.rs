//! The transport of a client's messages: the benchmark's own WebSocket, or a connection of the
//! product's client code.

use super::relay::ProductSocket;
use super::websocket::WebSocket;

#[derive(Debug)]
pub(super) enum Socket {
    WebSocket(WebSocket),
    Product(Box<ProductSocket>),
}

impl Socket {
    pub(super) fn send(&mut self, text: &[u8]) -> anyhow::Result<()> {
        match self {
            Self::WebSocket(socket) => Ok(socket.send(text)?),
            Self::Product(socket) => socket.send(text),
        }
    }

    pub(super) fn receive_message(&mut self) -> anyhow::Result<&[u8]> {
        match self {
            Self::WebSocket(socket) => socket.receive_message(),
            Self::Product(socket) => socket.receive_message(),
        }
    }
}

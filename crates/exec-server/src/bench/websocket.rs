//! A blocking WebSocket client, as thin as one can be: a measurement should show the server, and not a
//! runtime on the client's side. It trusts its peer, which is a server of our own.

use std::io::{self, Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};

/// Whether the client lets the kernel hold small messages back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Nagle {
    /// What a socket does by default, and many clients never change.
    On,
    Off,
}

/// A server that says nothing for so long hangs.
const PATIENCE: Duration = Duration::from_secs(30);
const BUFFER_BYTES: usize = 1 << 20;
const LARGEST_HEADER: usize = 10;

const FINAL: u8 = 0x80;
const TEXT: u8 = 0x1;
const BINARY: u8 = 0x2;
const CLOSE: u8 = 0x8;
const PING: u8 = 0x9;
const PONG: u8 = 0xa;

#[derive(Debug)]
pub(super) struct WebSocket {
    socket: TcpStream,
    buffer: Vec<u8>,
    /// Received and not yet handed out: `buffer[begin..end]`.
    begin: usize,
    end: usize,
    outgoing: Vec<u8>,
}

impl WebSocket {
    pub(super) fn connect(address: &str, nagle: Nagle) -> anyhow::Result<Self> {
        let socket = TcpStream::connect(address).context("cannot connect to the server")?;
        socket.set_nodelay(nagle == Nagle::Off)?;
        socket.set_read_timeout(Some(PATIENCE))?;
        let mut connection =
            Self { socket, buffer: vec![0; 4096], begin: 0, end: 0, outgoing: Vec::new() };
        connection.upgrade(address).context("the server refused the connection")?;
        Ok(connection)
    }

    /// The key is the example of RFC 6455, and its answer is not checked: nothing is proved by it here.
    fn upgrade(&mut self, address: &str) -> anyhow::Result<()> {
        let request = format!(
            "GET / HTTP/1.1\r\nHost: {address}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        );
        self.socket.write_all(request.as_bytes())?;
        loop {
            self.receive(1)?;
            let received = &self.buffer[..self.end];
            if let Some(len) = received.windows(4).position(|window| window == b"\r\n\r\n") {
                ensure!(
                    received.starts_with(b"HTTP/1.1 101 "),
                    "it answered something else than 101"
                );
                self.begin = len + 4;
                return Ok(());
            }
        }
    }

    pub(super) fn send(&mut self, text: &[u8]) -> io::Result<()> {
        self.send_frame(TEXT, text)
    }

    /// The next message.
    pub(super) fn receive_message(&mut self) -> anyhow::Result<&[u8]> {
        loop {
            let (opcode, payload) = self.receive_frame()?;
            match opcode {
                TEXT | BINARY => return Ok(&self.buffer[payload]),
                PING => {
                    let payload = self.buffer[payload].to_vec();
                    self.send_frame(PONG, &payload)?;
                }
                PONG => {}
                CLOSE => bail!("the server closed the connection"),
                other => bail!("the server sent a frame of type {other}"),
            }
        }
    }

    fn receive_frame(&mut self) -> anyhow::Result<(u8, std::ops::Range<usize>)> {
        let mut needed = 2;
        loop {
            while self.end - self.begin < needed {
                self.receive(needed)?;
            }
            let received = &self.buffer[self.begin..self.end];
            let Some((header_len, payload_len)) = parse_lengths(received) else {
                needed = (needed + 1).min(LARGEST_HEADER);
                continue;
            };
            needed = header_len + payload_len;
            if received.len() >= needed {
                ensure!(received[0] & FINAL != 0, "the server sent a message in fragments");
                let opcode = received[0] & 0x0f;
                let payload = self.begin + header_len..self.begin + needed;
                self.begin += needed;
                return Ok((opcode, payload));
            }
        }
    }

    /// Reads some more, so that `needed` bytes in one piece will find room.
    fn receive(&mut self, needed: usize) -> anyhow::Result<()> {
        if self.begin == self.end {
            (self.begin, self.end) = (0, 0);
        }
        if self.begin + needed > self.buffer.len() || self.end == self.buffer.len() {
            self.buffer.copy_within(self.begin..self.end, 0);
            (self.begin, self.end) = (0, self.end - self.begin);
            if needed > self.buffer.len() || self.end == self.buffer.len() {
                self.buffer.resize(needed.max(BUFFER_BYTES), 0);
            }
        }
        let count = self.socket.read(&mut self.buffer[self.end..])?;
        ensure!(count > 0, "the server ended the connection");
        self.end += count;
        Ok(())
    }

    /// Clients must mask what they send. A mask of zeros is one, and costs nothing.
    fn send_frame(&mut self, opcode: u8, payload: &[u8]) -> io::Result<()> {
        const MASKED: u8 = 0x80;
        self.outgoing.clear();
        self.outgoing.push(FINAL | opcode);
        match payload.len() {
            len @ 0..=125 => self.outgoing.push(MASKED | len as u8),
            len @ 126..=0xffff => {
                self.outgoing.push(MASKED | 126);
                self.outgoing.extend_from_slice(&(len as u16).to_be_bytes());
            }
            len => {
                self.outgoing.push(MASKED | 127);
                self.outgoing.extend_from_slice(&(len as u64).to_be_bytes());
            }
        }
        self.outgoing.extend_from_slice(&[0; 4]);
        self.outgoing.extend_from_slice(payload);
        self.socket.write_all(&self.outgoing)
    }
}

/// The lengths of an unmasked frame's header and payload, once the header has come that far.
fn parse_lengths(received: &[u8]) -> Option<(usize, usize)> {
    match received.get(1)? {
        126 => {
            let len = received.get(2..4)?.try_into().ok()?;
            Some((4, u16::from_be_bytes(len).into()))
        }
        127 => {
            let len = received.get(2..10)?.try_into().ok()?;
            Some((10, u64::from_be_bytes(len).try_into().ok()?))
        }
        len => Some((2, usize::from(*len))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_show_as_soon_as_they_are_there() {
        assert_eq!(parse_lengths(&[0x81]), None);
        assert_eq!(parse_lengths(&[0x81, 125]), Some((2, 125)));
        assert_eq!(parse_lengths(&[0x81, 126, 1]), None);
        assert_eq!(parse_lengths(&[0x81, 126, 1, 2]), Some((4, 258)));
        assert_eq!(parse_lengths(&[0x81, 127, 0, 0, 0, 0, 0, 1, 0]), None);
        assert_eq!(parse_lengths(&[0x81, 127, 0, 0, 0, 0, 0, 1, 0, 0]), Some((10, 65536)));
    }
}

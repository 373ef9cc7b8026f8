//! A blocking WebSocket client with minimal overhead: a measurement should show the server, not a
//! runtime on the client's side. It trusts its peer, which is a server of the benchmark.

use std::io::{self, Read as _, Write as _};

use anyhow::{Context as _, anyhow, bail, ensure};

use super::endpoint::{Endpoint, Nagle, READ_TIMEOUT, Stream};

const BUFFER_BYTES: usize = 1 << 20;
/// Larger payloads are sent with a separate call instead of being copied behind their header.
const COPIED_BYTES: usize = 64 << 10;

const FINAL: u8 = 0x80;
pub(super) const MASKED: u8 = 0x80;
pub(super) const MASK_BYTES: usize = 4;
const CONTINUATION: u8 = 0x0;
pub(super) const TEXT: u8 = 0x1;
const BINARY: u8 = 0x2;
const CLOSE: u8 = 0x8;
const PING: u8 = 0x9;
const PONG: u8 = 0xa;

#[derive(Debug)]
pub(super) struct WebSocket {
    stream: Stream,
    buffer: Vec<u8>,
    /// Received and not yet returned: `buffer[begin..end]`.
    begin: usize,
    end: usize,
    outgoing: Vec<u8>,
}

impl WebSocket {
    pub(super) fn connect(endpoint: &Endpoint, nagle: Nagle) -> anyhow::Result<Self> {
        let mut connection = Self::over(endpoint.connect(nagle)?);
        let upgraded = connection.upgrade(endpoint);
        upgraded.with_context(|| format!("cannot open a WebSocket to {}", endpoint.address()))?;
        Ok(connection)
    }

    fn over(stream: Stream) -> Self {
        Self { stream, buffer: vec![0; 4096], begin: 0, end: 0, outgoing: Vec::new() }
    }

    /// Upgrades the connection. The key is the example of RFC 6455. `Sec-WebSocket-Accept` in the
    /// response is not checked, because it would prove nothing here.
    fn upgrade(&mut self, endpoint: &Endpoint) -> anyhow::Result<()> {
        let address = endpoint.address();
        let authorization = endpoint
            .token()
            .map_or_else(String::new, |token| format!("Authorization: Bearer {token}\r\n"));
        let request = format!(
            "GET / HTTP/1.1\r\nHost: {address}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
             {authorization}\r\n"
        );
        self.stream.write_all(request.as_bytes())?;
        loop {
            self.receive(1)?;
            let received = &self.buffer[..self.end];
            if let Some(len) = received.windows(4).position(|window| window == b"\r\n\r\n") {
                let status = received.split(|byte| *byte == b'\r').next().unwrap_or_default();
                ensure!(
                    status.starts_with(b"HTTP/1.1 101 "),
                    "the server answered \"{}\" instead of 101",
                    status.escape_ascii()
                );
                self.begin = len + 4;
                return Ok(());
            }
        }
    }

    pub(super) fn send(&mut self, text: &[u8]) -> io::Result<()> {
        self.send_frame(TEXT, text)
    }

    /// Returns the next message. Fragments are joined in the buffer, so that large messages are
    /// copied once.
    pub(super) fn receive_message(&mut self) -> anyhow::Result<&[u8]> {
        let mut frame = self.receive_header_at(0)?;
        self.begin += frame.header_len;
        let mut message_len = 0;
        loop {
            self.receive_at_least(message_len + frame.payload_len)?;
            match frame.opcode {
                CONTINUATION | TEXT | BINARY => message_len += frame.payload_len,
                PING => {
                    let payload = self.take_out(message_len, frame.payload_len);
                    self.send_frame(PONG, &payload)?;
                }
                PONG => drop(self.take_out(message_len, frame.payload_len)),
                CLOSE => bail!("the server closed the connection"),
                other => bail!("the server sent a frame with the unexpected opcode {other}"),
            }
            if frame.is_final && frame.opcode <= BINARY {
                let message = self.begin..self.begin + message_len;
                self.begin = message.end;
                return Ok(&self.buffer[message]);
            }
            frame = self.receive_header_at(message_len)?;
            self.take_out(message_len, frame.header_len);
        }
    }

    /// Receives the header of the frame that starts `offset` bytes after the received data begins.
    fn receive_header_at(&mut self, offset: usize) -> anyhow::Result<Frame> {
        loop {
            let received = &self.buffer[self.begin..self.end];
            if let Some(frame) = received.get(offset..).and_then(Frame::parse) {
                return Ok(frame);
            }
            self.receive_at_least((received.len() + 1).max(offset + 2))?;
        }
    }

    /// Removes bytes from the middle of the received data.
    fn take_out(&mut self, offset: usize, len: usize) -> Vec<u8> {
        let from = self.begin + offset;
        let taken = self.buffer[from..from + len].to_vec();
        self.buffer.copy_within(from + len..self.end, from);
        self.end -= len;
        taken
    }

    fn receive_at_least(&mut self, needed: usize) -> anyhow::Result<()> {
        while self.end - self.begin < needed {
            self.receive(needed)?;
        }
        Ok(())
    }

    /// Reads more bytes, after making contiguous room for `needed` bytes.
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
        let read = self.stream.read(&mut self.buffer[self.end..]);
        let count = read.map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => {
                anyhow!("the server sent nothing for {}s", READ_TIMEOUT.as_secs())
            }
            _ => error.into(),
        })?;
        ensure!(count > 0, "the server closed the connection");
        self.end += count;
        Ok(())
    }

    /// Sends a frame. Clients must mask their frames; a mask of zeros is valid and costs nothing.
    fn send_frame(&mut self, opcode: u8, payload: &[u8]) -> io::Result<()> {
        self.outgoing.clear();
        append_header(&mut self.outgoing, MASKED, opcode, payload.len());
        self.outgoing.extend_from_slice(&[0; MASK_BYTES]);
        if payload.len() <= COPIED_BYTES {
            self.outgoing.extend_from_slice(payload);
            self.stream.write_all(&self.outgoing)
        } else {
            self.stream.write_all(&self.outgoing)?;
            self.stream.write_all(payload)
        }
    }
}

/// The header of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Frame {
    pub(super) opcode: u8,
    pub(super) is_final: bool,
    /// Without the mask, if there is one.
    pub(super) header_len: usize,
    pub(super) payload_len: usize,
}

impl Frame {
    /// Returns `None` until the header is complete.
    pub(super) fn parse(received: &[u8]) -> Option<Self> {
        let (header_len, payload_len) = match received.get(1)? & !MASKED {
            126 => (4, u16::from_be_bytes(received.get(2..4)?.try_into().ok()?).into()),
            127 => {
                let len = u64::from_be_bytes(received.get(2..10)?.try_into().ok()?);
                (10, len.try_into().ok()?)
            }
            len => (2, usize::from(len)),
        };
        let [first, ..] = *received else { return None };
        Some(Self { opcode: first & 0x0f, is_final: first & FINAL != 0, header_len, payload_len })
    }
}

/// Appends a header. `masked` is [`MASKED`] or 0; the mask itself is not appended.
pub(super) fn append_header(buffer: &mut Vec<u8>, masked: u8, opcode: u8, payload_len: usize) {
    buffer.push(FINAL | opcode);
    match payload_len {
        len @ 0..=125 => buffer.push(masked | len as u8),
        len @ 126..=0xffff => {
            buffer.push(masked | 126);
            buffer.extend_from_slice(&(len as u16).to_be_bytes());
        }
        len => {
            buffer.push(masked | 127);
            buffer.extend_from_slice(&(len as u64).to_be_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_header_is_parsed_as_soon_as_it_is_complete() {
        let lengths = |received: &[u8]| {
            Frame::parse(received).map(|frame| (frame.header_len, frame.payload_len))
        };
        assert_eq!(lengths(&[0x81]), None);
        assert_eq!(lengths(&[0x81, 125]), Some((2, 125)));
        assert_eq!(lengths(&[0x81, 126, 1]), None);
        assert_eq!(lengths(&[0x81, 126, 1, 2]), Some((4, 258)));
        assert_eq!(lengths(&[0x81, 127, 0, 0, 0, 0, 0, 1, 0]), None);
        assert_eq!(lengths(&[0x81, 127, 0, 0, 0, 0, 0, 1, 0, 0]), Some((10, 65536)));
    }

    #[test]
    fn headers_are_parsed_as_they_were_written() {
        for payload_len in [0, 125, 126, 0xffff, 0x1_0000, 64 << 20] {
            for masked in [0, MASKED] {
                let mut header = Vec::new();
                append_header(&mut header, masked, TEXT, payload_len);
                let header_len = header.len();
                let expected = Frame { opcode: TEXT, is_final: true, header_len, payload_len };
                assert_eq!(Frame::parse(&header), Some(expected));
            }
        }
    }

    #[test]
    fn fragments_become_one_message_despite_control_frames_in_between() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut peer, _) = listener.accept().unwrap();
        for frame in [
            &[TEXT, 2, b'a', b'b'][..],
            &[FINAL | PING, 1, b'!'],
            &[CONTINUATION, 0],
            &[FINAL | PONG, 0],
            &[FINAL | CONTINUATION, 1, b'c'],
            &[FINAL | TEXT, 1, b'd'],
        ] {
            peer.write_all(frame).unwrap();
        }
        let mut connection = WebSocket::over(Stream::Plain(socket));
        assert_eq!(connection.receive_message().unwrap(), b"abc");
        assert_eq!(connection.receive_message().unwrap(), b"d");
        let mut pong = [0; 7];
        peer.read_exact(&mut pong).unwrap();
        assert_eq!(pong, [FINAL | PONG, MASKED | 1, 0, 0, 0, 0, b'!']);
    }

    #[test]
    fn the_error_after_a_timeout_says_that_the_server_is_silent() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
        let mut connection = WebSocket::over(Stream::Plain(socket));
        let error = connection.receive_message().unwrap_err();
        assert_eq!(error.to_string(), "the server sent nothing for 30s");
    }
}

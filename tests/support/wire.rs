//! Bytes to and from a server: WebSocket over TCP or a Unix socket, or the pipes of stdio.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::process::{ChildStdin, ChildStdout};
use std::time::Duration;

use exec_server_test_support::BlockingWire;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tungstenite::protocol::frame::coding::CloseCode;
use tungstenite::{Message, WebSocket};

use super::{HANG, eventually};

pub(crate) enum Wire {
    Tcp(WebSocket<TcpStream>),
    Unix(WebSocket<UnixStream>),
    Stdio { stdin: Option<ChildStdin>, stdout: BufReader<ChildStdout> },
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Arrival {
    Text(String),
    /// The end of the connection. A WebSocket may have a close code.
    End(Option<u16>),
}

/// How a client loses its connection.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Cut {
    /// Without a close frame.
    Fin,
    Rst,
    /// After half of a frame.
    MidFrame,
    MidFrameRst,
}

impl Cut {
    pub(crate) const ALL: [Self; 4] = [Self::Fin, Self::Rst, Self::MidFrame, Self::MidFrameRst];
}

impl Wire {
    pub(crate) fn connect(url: &str) -> Result<Self, Box<dyn std::error::Error>> {
        if let Some(path) = url.strip_prefix("unix://") {
            let stream = UnixStream::connect(path)?;
            stream.set_read_timeout(Some(HANG))?;
            let (socket, _) = tungstenite::client("ws://localhost/", stream)
                .map_err(|error| error.to_string())?;
            return Ok(Self::Unix(socket));
        }
        let stream = tcp(url)?;
        let (socket, _) = tungstenite::client(url, stream).map_err(|error| error.to_string())?;
        Ok(Self::Tcp(socket))
    }

    /// Sends bytes without any framing.
    pub(crate) fn send_raw(&mut self, bytes: &[u8]) {
        match self {
            Self::Tcp(socket) => socket.get_mut().write_all(bytes).unwrap(),
            Self::Unix(socket) => socket.get_mut().write_all(bytes).unwrap(),
            Self::Stdio { stdin, .. } => {
                stdin.as_mut().expect("stdin is open").write_all(bytes).unwrap();
            }
        }
    }

    pub(crate) fn arrival(&mut self) -> Arrival {
        match self {
            Self::Tcp(socket) => receive_message(socket),
            Self::Unix(socket) => receive_message(socket),
            Self::Stdio { stdout, .. } => receive_line(stdout),
        }
    }

    /// Closes the sending direction. Messages from the server can still be received.
    pub(crate) fn finish(&mut self) {
        match self {
            Self::Tcp(socket) => socket.get_ref().shutdown(std::net::Shutdown::Write).unwrap(),
            Self::Unix(socket) => socket.get_ref().shutdown(std::net::Shutdown::Write).unwrap(),
            Self::Stdio { stdin, .. } => *stdin = None,
        }
    }

    /// Waits until a stdio server has begun to respond and has read every request.
    pub(crate) fn wait_until_read(&self) {
        let Self::Stdio { stdin, stdout } = self else { panic!("only stdio has two pipes") };
        wait_readable(stdout.get_ref().as_fd());
        let unread = || rustix::io::ioctl_fionread(stdin.as_ref().unwrap()).unwrap();
        eventually("the server has read everything", || unread() == 0);
    }

    /// Closes the read end of a stdio server's output. Its input stays open until the returned pipe
    /// is dropped.
    pub(crate) fn stop_reading(self) -> Option<ChildStdin> {
        let Self::Stdio { stdin, stdout } = self else { panic!("only stdio has two pipes") };
        drop(stdout);
        stdin
    }

    pub(crate) fn cut(mut self, how: Cut) {
        let Self::Tcp(socket) = &mut self else { panic!("only TCP connections are cut") };
        if matches!(how, Cut::MidFrame | Cut::MidFrameRst) {
            let whole = frame(0x81, br#"{"id":"lost","method":"environment/status"}"#);
            // The server may have closed first: then the connection is cut already.
            let _ = socket.get_mut().write_all(&whole[..whole.len() / 2]);
        }
        if matches!(how, Cut::Rst | Cut::MidFrameRst) {
            rustix::net::sockopt::set_socket_linger(socket.get_ref(), Some(Duration::ZERO))
                .unwrap();
        }
    }
}

impl BlockingWire for Wire {
    fn send(&mut self, text: &str) {
        match self {
            Self::Tcp(socket) => socket.send(Message::text(text)).unwrap(),
            Self::Unix(socket) => socket.send(Message::text(text)).unwrap(),
            Self::Stdio { stdin, .. } => {
                let stdin = stdin.as_mut().expect("stdin is open");
                stdin.write_all(text.as_bytes()).unwrap();
                stdin.write_all(b"\n").unwrap();
            }
        }
    }

    fn receive(&mut self) -> Option<String> {
        match self.arrival() {
            Arrival::Text(text) => Some(text),
            Arrival::End(_) => None,
        }
    }
}

/// Returns a WebSocket frame of a client, with a zero mask. The first byte is FIN bit and opcode.
pub(crate) fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = frame_header(first, payload.len() as u64);
    frame.extend_from_slice(payload);
    frame
}

/// Returns the header of a frame that claims this length.
pub(crate) fn frame_header(first: u8, len: u64) -> Vec<u8> {
    let mut header = vec![first];
    match len {
        0..=125 => header.push(0x80 | len.to_be_bytes()[7]),
        126..=0xffff => {
            header.push(0x80 | 126);
            header.extend_from_slice(&len.to_be_bytes()[6..]);
        }
        _ => {
            header.push(0x80 | 127);
            header.extend_from_slice(&len.to_be_bytes());
        }
    }
    header.extend_from_slice(&[0; 4]);
    header
}

/// Opens a TCP connection to the server of a `ws://` URL.
pub(crate) fn tcp(url: &str) -> std::io::Result<TcpStream> {
    let address = url.strip_prefix("ws://").expect("a WebSocket URL");
    let (address, _) = address.split_once('/').unwrap_or((address, ""));
    let stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(HANG))?;
    Ok(stream)
}

fn receive_message<S: Read + Write>(socket: &mut WebSocket<S>) -> Arrival {
    loop {
        match socket.read() {
            Ok(Message::Text(text)) => return Arrival::Text(text.as_str().to_owned()),
            Ok(Message::Close(frame)) => {
                let code = frame.map_or(CloseCode::Status, |frame| frame.code);
                return Arrival::End(Some(code.into()));
            }
            Ok(Message::Ping(_) | Message::Pong(_)) => {}
            Ok(other) => panic!("unexpected message {other:?}"),
            Err(tungstenite::Error::Io(error))
                if error.kind() == std::io::ErrorKind::WouldBlock =>
            {
                panic!("the server sent nothing within {HANG:?}");
            }
            Err(_) => return Arrival::End(None),
        }
    }
}

fn receive_line(stdout: &mut BufReader<ChildStdout>) -> Arrival {
    if stdout.buffer().is_empty() {
        wait_readable(stdout.get_ref().as_fd());
    }
    let mut line = String::new();
    match stdout.read_line(&mut line).unwrap() {
        0 => Arrival::End(None),
        _ => Arrival::Text(line.strip_suffix('\n').expect("whole lines").to_owned()),
    }
}

pub(crate) fn wait_readable(descriptor: BorrowedFd<'_>) {
    let patience = Timespec::try_from(HANG).unwrap();
    let ready = poll(&mut [PollFd::from_borrowed_fd(descriptor, PollFlags::IN)], Some(&patience));
    assert_ne!(ready.unwrap(), 0, "nothing arrived within {HANG:?}");
}

/// Returns whether data arrives within a moment: for tests that expect none, or that act again
/// until some arrives.
pub(crate) fn is_readable_soon(descriptor: BorrowedFd<'_>) -> bool {
    let moment = Timespec::try_from(Duration::from_millis(100)).unwrap();
    let ready = poll(&mut [PollFd::from_borrowed_fd(descriptor, PollFlags::IN)], Some(&moment));
    ready.unwrap() > 0
}

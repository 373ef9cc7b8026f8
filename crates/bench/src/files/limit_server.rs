//! The minimal server: this executable in a hidden mode. WebSocket frames in, frames out, with one
//! thread for each connection. Responses to requests that arrived together are sent together.

use std::io::{self, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::ExitCode;
use std::thread;

use super::limit_work::Worker;
use super::request::PlainRequest;
use crate::server::BenchServer;
use crate::websocket::{Frame, MASK_BYTES, TEXT, append_header};

const FILE_SERVER_ARG: &str = "__bench-file-server";

const BUFFER_BYTES: usize = 256 << 10;
/// Responses up to this total size are held back while received requests are unanswered.
const HELD_BYTES: usize = 256 << 10;

pub(super) fn start() -> anyhow::Result<BenchServer> {
    BenchServer::launch(&[FILE_SERVER_ARG])
}

/// If the arguments select the minimal server, runs it until it is killed. Otherwise returns
/// `None`.
pub(crate) fn serve_files_if_asked() -> Option<ExitCode> {
    std::env::args_os().nth(1).filter(|argument| argument == FILE_SERVER_ARG)?;
    Some(if listen().is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn listen() -> io::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    writeln!(io::stdout(), "ws://{}", listener.local_addr()?)?;
    for socket in listener.incoming() {
        let socket = socket?;
        socket.set_nodelay(true)?;
        // A failed connection ends, and its client reports the error.
        thread::spawn(move || Connection::new(socket).serve());
    }
    Ok(())
}

struct Connection {
    socket: TcpStream,
    incoming: Vec<u8>,
    /// Received and not yet processed: `incoming[begin..end]`.
    begin: usize,
    end: usize,
    outgoing: Vec<u8>,
    worker: Worker,
}

impl Connection {
    fn new(socket: TcpStream) -> Self {
        Self {
            socket,
            incoming: vec![0; BUFFER_BYTES],
            begin: 0,
            end: 0,
            outgoing: Vec::new(),
            worker: Worker::default(),
        }
    }

    fn serve(mut self) -> io::Result<()> {
        self.accept_upgrade()?;
        loop {
            self.answer_received()?;
            self.socket.write_all(&self.outgoing)?;
            self.outgoing.clear();
            self.receive()?;
        }
    }

    /// Accepts every request as a WebSocket upgrade.
    fn accept_upgrade(&mut self) -> io::Result<()> {
        while !self.incoming[..self.end].ends_with(b"\r\n\r\n") {
            self.receive()?;
        }
        (self.begin, self.end) = (0, 0);
        self.socket.write_all(b"HTTP/1.1 101 Switching Protocols\r\n\r\n")
    }

    fn answer_received(&mut self) -> io::Result<()> {
        while let Some(frame) = Frame::parse(&self.incoming[self.begin..self.end]) {
            let payload = self.begin + frame.header_len + MASK_BYTES;
            let next = payload + frame.payload_len;
            if next > self.end {
                self.make_room(next - self.begin);
                break;
            }
            // The benchmark's client masks with zeros, so the payload needs no unmasking.
            let request = PlainRequest::parse(&self.incoming[payload..next])
                .ok_or(io::ErrorKind::InvalidData)?;
            let answer = self.worker.answer(&request)?;
            append_header(&mut self.outgoing, 0, TEXT, answer.len());
            if answer.len() > HELD_BYTES {
                self.socket.write_all(&self.outgoing)?;
                self.socket.write_all(answer)?;
                self.outgoing.clear();
            } else {
                self.outgoing.extend_from_slice(answer);
            }
            self.begin = next;
            if self.outgoing.len() > HELD_BYTES {
                self.socket.write_all(&self.outgoing)?;
                self.outgoing.clear();
            }
        }
        Ok(())
    }

    /// Makes contiguous room for a request of this length.
    fn make_room(&mut self, len: usize) {
        if self.begin + len > self.incoming.len() {
            self.incoming.copy_within(self.begin..self.end, 0);
            (self.begin, self.end) = (0, self.end - self.begin);
            if len > self.incoming.len() {
                self.incoming.resize(len, 0);
            }
        }
    }

    fn receive(&mut self) -> io::Result<()> {
        if self.begin == self.end {
            (self.begin, self.end) = (0, 0);
        } else if self.end == self.incoming.len() {
            self.make_room(self.incoming.len());
        }
        match self.socket.read(&mut self.incoming[self.end..])? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            count => {
                self.end += count;
                Ok(())
            }
        }
    }
}

//! The program that reaches a host: this executable in a hidden mode. The same program runs with a
//! managed network and directly.

use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::process::ExitCode;
use std::time::Instant;

use crate::program::Program;

const PEER_ARG: &str = "__bench-network-peer";
const SEND: &str = "send";
const RECEIVE: &str = "receive";
const CONNECT: &str = "connect";

/// The size of one write, and the maximum size of one read.
pub(super) const BLOCK: usize = 256 << 10;

/// Returns a program that connects, sends this many bytes, and waits until the host closes.
pub(super) fn sender(host: SocketAddr, bytes: u64) -> anyhow::Result<Program> {
    peer(SEND, host, bytes)
}

/// Returns a program that connects and receives to the end.
pub(super) fn receiver(host: SocketAddr) -> anyhow::Result<Program> {
    peer(RECEIVE, host, 0)
}

/// Returns a program that connects `count` times and receives one byte each time. It prints a line
/// for each connection: the nanoseconds until the byte arrived.
pub(super) fn connector(host: SocketAddr, count: usize) -> anyhow::Result<Program> {
    peer(CONNECT, host, count as u64)
}

fn peer(mode: &str, host: SocketAddr, count: u64) -> anyhow::Result<Program> {
    Ok(Program::this(PEER_ARG)?.args([mode.to_owned(), host.to_string(), count.to_string()]))
}

/// Runs the program if the arguments select it, and returns its exit code. Otherwise returns
/// `None`.
pub(crate) fn connect_if_asked() -> Option<ExitCode> {
    let mut arguments = std::env::args().skip(1);
    arguments.next().filter(|argument| argument == PEER_ARG)?;
    let arguments: Vec<String> = arguments.collect();
    Some(if run(&arguments).is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn run(arguments: &[String]) -> io::Result<()> {
    let invalid = || io::Error::from(io::ErrorKind::InvalidInput);
    let [mode, host, count] = arguments else { return Err(invalid()) };
    let host = host.parse().map_err(|_| invalid())?;
    let count = count.parse().map_err(|_| invalid())?;
    match mode.as_str() {
        SEND => send(&TcpStream::connect(host)?, count),
        RECEIVE => receive(&TcpStream::connect(host)?).map(drop),
        CONNECT => connect(host, count),
        _ => Err(invalid()),
    }
}

/// Sends this many bytes, and waits until the other end has received all of them and closed.
pub(super) fn send(mut stream: &TcpStream, bytes: u64) -> io::Result<()> {
    let block = vec![b'x'; BLOCK];
    for _ in 0..bytes / BLOCK as u64 {
        stream.write_all(&block)?;
    }
    stream.shutdown(Shutdown::Write)?;
    receive(stream).map(drop)
}

/// Receives to the end. Returns the number of bytes.
pub(super) fn receive(mut stream: &TcpStream) -> io::Result<u64> {
    let mut buffer = vec![0; BLOCK];
    let mut received = 0;
    loop {
        match stream.read(&mut buffer)? {
            0 => return Ok(received),
            bytes => received += bytes as u64,
        }
    }
}

fn connect(host: SocketAddr, count: u64) -> io::Result<()> {
    let mut lines = String::new();
    for _ in 0..count {
        let begin = Instant::now();
        let mut stream = TcpStream::connect(host)?;
        stream.read_exact(&mut [0])?;
        lines += &format!("{}\n", begin.elapsed().as_nanos());
        // Waits until the host has closed first, so that this side can reuse its port at once.
        receive(&stream)?;
    }
    io::stdout().write_all(lines.as_bytes())
}

//! Checks that messages pass between all NATS servers. Reading state from one of them does not
//! show that: it may come from the server's own replica.

use std::collections::BTreeSet;
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// A message that takes longer counts as lost.
const TIMEOUT: Duration = Duration::from_millis(500);

/// A subscriber at one server, over the text protocol of NATS.
struct Subscriber(BufReader<TcpStream>);

/// Returns whether a message sent to each server reaches all of them.
pub(super) fn is_connected(servers: &[SocketAddr]) -> bool {
    passes_messages(servers).unwrap_or(false)
}

fn passes_messages(servers: &[SocketAddr]) -> io::Result<bool> {
    let connect = |server: &SocketAddr| Subscriber::connect(*server);
    let mut subscribers = servers.iter().map(connect).collect::<io::Result<Vec<_>>>()?;
    for (number, subscriber) in subscribers.iter_mut().enumerate() {
        subscriber.send(&format!("PUB mesh {}\r\n{number}\r\n", number.to_string().len()))?;
    }
    let everyone: BTreeSet<_> = (0..servers.len()).map(|number| number.to_string()).collect();
    for subscriber in &mut subscribers {
        let mut missing = everyone.clone();
        while !missing.is_empty() {
            missing.remove(&subscriber.message()?);
        }
    }
    Ok(true)
}

impl Subscriber {
    fn connect(server: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect_timeout(&server, TIMEOUT)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        let mut subscriber = Self(BufReader::new(stream));
        subscriber.send("CONNECT {\"verbose\":false}\r\nSUB mesh 1\r\nPING\r\n")?;
        while subscriber.line()? != "PONG" {}
        Ok(subscriber)
    }

    fn message(&mut self) -> io::Result<String> {
        while !self.line()?.starts_with("MSG ") {}
        self.line()
    }

    fn send(&mut self, text: &str) -> io::Result<()> {
        self.0.get_mut().write_all(text.as_bytes())
    }

    fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        match self.0.read_line(&mut line)? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(line.trim_end().to_owned()),
        }
    }
}

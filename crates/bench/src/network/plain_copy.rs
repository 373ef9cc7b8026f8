//! The limit of a gate: this executable in a hidden mode copies between two TCP connections, with
//! one buffer and one thread for each direction, without rules or name resolution.

use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::ExitCode;
use std::sync::mpsc::sync_channel;
use std::thread;

use super::peer::BLOCK;
use crate::program::KilledOnDrop;
use crate::server::{listen, this_program};

const COPY_ARG: &str = "__bench-tcp-copy";
const SCHEME: &str = "tcp://";

/// A process that copies to a host and back. Dropping it kills the process.
#[derive(Debug)]
pub(super) struct PlainCopy {
    address: SocketAddr,
    _process: KilledOnDrop,
}

impl PlainCopy {
    pub(super) fn to(host: SocketAddr) -> anyhow::Result<Self> {
        let mut command = this_program()?;
        command.args([COPY_ARG, &host.to_string()]);
        let (process, address) = listen(command, SCHEME)?;
        Ok(Self { address, _process: process })
    }

    /// Returns the address whose connections are copied to the host.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }
}

/// If the arguments select the copy, runs it until it is killed. Otherwise returns `None`.
pub(crate) fn copy_if_asked() -> Option<ExitCode> {
    let mut arguments = std::env::args().skip(1);
    arguments.next().filter(|argument| argument == COPY_ARG)?;
    let host = arguments.next()?.parse().ok()?;
    Some(if serve(host).is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Serves one connection after another. Both threads are reused, so that no connection waits for a
/// new thread.
fn serve(host: SocketAddr) -> io::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    writeln!(io::stdout(), "{SCHEME}{}", listener.local_addr()?)?;
    let (upward, connections) = sync_channel::<(TcpStream, TcpStream)>(1);
    thread::spawn(move || {
        for (inside, outside) in connections {
            // A failed connection ends, and both of its ends report the error.
            let _ = copy(&inside, &outside);
        }
    });
    for inside in listener.incoming() {
        let inside = inside?;
        inside.set_nodelay(true)?;
        let outside = TcpStream::connect(host)?;
        outside.set_nodelay(true)?;
        let both = (inside.try_clone()?, outside.try_clone()?);
        upward.send(both).map_err(io::Error::other)?;
        let _ = copy(&outside, &inside);
    }
    Ok(())
}

fn copy(mut from: &TcpStream, mut to: &TcpStream) -> io::Result<()> {
    let mut buffer = vec![0; BLOCK];
    loop {
        match from.read(&mut buffer)? {
            0 => return to.shutdown(Shutdown::Write),
            bytes => to.write_all(&buffer[..bytes])?,
        }
    }
}

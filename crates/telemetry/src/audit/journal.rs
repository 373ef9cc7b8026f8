//! Records as entries of the systemd journal, in its native protocol: one datagram per entry, one
//! `NAME=VALUE` per line. The JSON of a record has no line breaks, so no value needs the binary
//! form.

use std::io;
use std::os::unix::net::UnixDatagram;
use std::path::Path;

const FIELDS: &str = "SYSLOG_IDENTIFIER=exec-server\nPRIORITY=5\nEXEC_SERVER_AUDIT=1\nMESSAGE=";

#[derive(Debug)]
pub(super) struct Journal {
    socket: UnixDatagram,
}

impl Journal {
    /// Connects to journald. Sends never block: if the socket buffer is full, the entry is not
    /// written.
    pub(super) fn connect(path: &Path) -> io::Result<Self> {
        let socket = UnixDatagram::unbound()?;
        socket.set_nonblocking(true)?;
        socket.connect(path)?;
        Ok(Self { socket })
    }

    pub(super) fn send(&self, record: &[u8]) -> io::Result<()> {
        let entry = [FIELDS.as_bytes(), record, b"\n"].concat();
        loop {
            match self.socket.send(&entry) {
                Ok(_) => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

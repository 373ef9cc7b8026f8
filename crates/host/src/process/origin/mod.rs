//! Finds the local processes at the other end of a connection, their ancestors, and the peer's
//! user.
//!
//! A sandboxed program with network access must not reach the server that sandboxes it: its
//! requests there would run outside the sandbox. The connection itself does not identify the
//! program, so the kernel is asked: for a Unix socket, which process connected; for TCP, where the
//! kernel does not record that, which processes hold the peer's end.

mod lineage;
#[cfg(target_os = "linux")]
mod socket_diag;
mod tcp;
mod unix;
mod user;

use std::net::SocketAddr;
use std::os::fd::{AsFd as _, OwnedFd};

pub use lineage::Lineage;
pub use user::{PeerUser, user_of_tcp_peer, user_of_unix_peer};

#[derive(Debug)]
pub enum PeerSocket {
    /// Both addresses, as the peer sees them.
    Tcp { own: SocketAddr, other: SocketAddr },
    /// The server's end, which carries the credentials of the process that connected.
    Unix { socket: OwnedFd },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// Another machine, another network namespace, or a user whom the server's processes cannot
    /// become.
    Elsewhere,
    /// The lineage of each process that may be the peer.
    Here(Vec<Lineage>),
    /// A local process that is gone or cannot be inspected.
    Unknown,
}

/// Finds the origin of a peer. Blocks: it may read large parts of /proc.
#[must_use]
pub fn trace(peer: PeerSocket) -> Origin {
    match peer {
        PeerSocket::Tcp { own, other } => tcp::trace(own, other),
        PeerSocket::Unix { socket } => unix::trace(socket.as_fd()),
    }
}

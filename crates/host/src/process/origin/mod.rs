//! Which processes are at the other end of a local socket, and whose descendants they are.
//!
//! A sandboxed program that may use the network must not reach the server that sandboxes it: what it asks for there would run
//! outside. Nothing in a connection tells, so the kernel is asked: for a Unix socket who connected, and for TCP, of which it does not
//! remember that, who holds the peer's end.

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

/// What leads to the peer of a connection.
#[derive(Debug)]
pub enum PeerSocket {
    /// Both ends, as the peer has them.
    Tcp { own: SocketAddr, other: SocketAddr },
    /// Our end, which has the credentials of whoever connected to it.
    Unix { socket: OwnedFd },
}

/// Where a connection comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// Another machine, another network, or a user whom our own processes cannot become.
    Elsewhere,
    /// Of each process that may be the peer, itself and its ancestors.
    Here(Vec<Lineage>),
    /// A process of this machine that is gone or cannot be looked into.
    Unknown,
}

/// Blocks: it reads much of /proc.
#[must_use]
pub fn trace(peer: PeerSocket) -> Origin {
    match peer {
        PeerSocket::Tcp { own, other } => tcp::trace(own, other),
        PeerSocket::Unix { socket } => unix::trace(socket.as_fd()),
    }
}

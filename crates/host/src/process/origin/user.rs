//! Determines the user of a connection's peer.

use std::fs;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;

use super::tcp::find_socket;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeerUser {
    /// The user of this process, or root.
    Trusted,
    Other(u32),
    /// The kernel does not report the user, the peer has closed its socket, or the uid stands for
    /// several users.
    Unknown,
}

/// Returns the user who created the peer's socket. `own` is the address of that socket, `other` the
/// address of this end.
#[must_use]
pub fn user_of_tcp_peer(own: SocketAddr, other: SocketAddr) -> PeerUser {
    let Some(entry) = find_socket(own, other) else { return PeerUser::Unknown };
    // A closed socket shows as root's, although data sent before the close may still be read. It
    // stays closed, so a socket that is open now was open when its user was reported.
    let is_open = find_socket(own, other).is_some_and(|now| now.inode == entry.inode);
    if entry.inode == 0 || !is_open {
        return PeerUser::Unknown;
    }
    PeerUser::of(entry.uid, rustix::process::geteuid().as_raw())
}

/// Returns the user who connected a Unix socket, whichever process holds the other end now.
#[cfg(target_os = "linux")]
#[must_use]
pub fn user_of_unix_peer(socket: BorrowedFd<'_>) -> PeerUser {
    let own_uid = rustix::process::geteuid().as_raw();
    rustix::net::sockopt::socket_peercred(socket)
        .map_or(PeerUser::Unknown, |credentials| PeerUser::of(credentials.uid.as_raw(), own_uid))
}

#[cfg(not(target_os = "linux"))]
#[must_use]
pub fn user_of_unix_peer(_socket: BorrowedFd<'_>) -> PeerUser {
    PeerUser::Unknown
}

impl PeerUser {
    fn of(uid: u32, own_uid: u32) -> Self {
        let is_anybody = || uid == overflow_uid() && !has_all_users();
        match uid {
            0 => Self::Trusted,
            _ if is_anybody() => Self::Unknown,
            uid if uid == own_uid => Self::Trusted,
            uid => Self::Other(uid),
        }
    }
}

/// Returns the uid that stands for every user whom this user namespace does not map.
fn overflow_uid() -> u32 {
    const USUAL: u32 = 65534;
    let text = fs::read_to_string("/proc/sys/kernel/overflowuid").ok();
    text.and_then(|text| text.trim().parse().ok()).unwrap_or(USUAL)
}

/// Whether this user namespace maps every user of the machine.
fn has_all_users() -> bool {
    let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    map.split_ascii_whitespace().eq(["0", "0", "4294967295"])
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd as _;

    use super::*;

    #[test]
    fn sockets_of_the_same_user_and_of_root_are_trusted() {
        let own = 1000;
        assert_eq!(PeerUser::of(0, own), PeerUser::Trusted);
        assert_eq!(PeerUser::of(own, own), PeerUser::Trusted);
        assert_eq!(PeerUser::of(1001, own), PeerUser::Other(1001));
        let anybody = overflow_uid();
        assert_ne!(PeerUser::of(anybody, own), PeerUser::Trusted);
        let is_trusted = PeerUser::of(anybody, anybody) == PeerUser::Trusted;
        assert_eq!(is_trusted, has_all_users());
    }

    #[test]
    fn connections_of_both_families_show_their_user() {
        for address in ["127.0.0.1:0", "[::1]:0", "[::ffff:127.0.0.1]:0"] {
            let listener = TcpListener::bind(address).unwrap();
            let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (own, other) = (client.local_addr().unwrap(), client.peer_addr().unwrap());
            assert_eq!(user_of_tcp_peer(own, other), PeerUser::Trusted, "{address}");
        }
    }

    #[test]
    fn a_closed_connection_has_an_unknown_user() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (own, other) = (client.local_addr().unwrap(), client.peer_addr().unwrap());
        let _server = listener.accept().unwrap();
        drop(client);
        assert_eq!(user_of_tcp_peer(own, other), PeerUser::Unknown);
    }

    #[test]
    fn a_unix_socket_shows_the_user_that_connected() {
        let (ours, _theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        assert_eq!(user_of_unix_peer(ours.as_fd()), PeerUser::Trusted);
    }
}

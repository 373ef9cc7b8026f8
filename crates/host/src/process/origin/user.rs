//! Whose the peer of a TCP connection is.

use std::fs;
use std::net::SocketAddr;

use super::tcp::find_socket;

/// Whether the peer's socket, whose addresses these are, was made by the user of this process or by
/// root. False if the kernel does not tell.
#[must_use]
pub fn is_same_user_or_root(own: SocketAddr, other: SocketAddr) -> bool {
    let Some(entry) = find_socket(own, other) else { return false };
    // A socket that its process has closed shows as root's, and what it sent before is still to be
    // read. It stays closed, so one that is open now was open when its user was told.
    let is_open = find_socket(own, other).is_some_and(|now| now.inode == entry.inode);
    entry.inode != 0 && is_open && is_trusted(entry.uid, rustix::process::geteuid().as_raw())
}

fn is_trusted(uid: u32, own_uid: u32) -> bool {
    match uid {
        0 => true,
        uid if uid == own_uid => uid != overflow_uid() || has_all_users(),
        _ => false,
    }
}

/// Stands for every user that has no number in this user namespace.
fn overflow_uid() -> u32 {
    const USUAL: u32 = 65534;
    let text = fs::read_to_string("/proc/sys/kernel/overflowuid").ok();
    text.and_then(|text| text.trim().parse().ok()).unwrap_or(USUAL)
}

/// Whether every user of the machine has a number of their own here.
fn has_all_users() -> bool {
    let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    map.split_ascii_whitespace().eq(["0", "0", "4294967295"])
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn own_sockets_and_those_of_root_are_trusted() {
        let own = 1000;
        assert!(is_trusted(0, own) && is_trusted(own, own));
        assert!(!is_trusted(1001, own) && !is_trusted(overflow_uid(), own));
        assert_eq!(is_trusted(overflow_uid(), overflow_uid()), has_all_users());
    }

    #[test]
    fn a_connection_of_either_family_is_its_makers() {
        for address in ["127.0.0.1:0", "[::1]:0", "[::ffff:127.0.0.1]:0"] {
            let listener = TcpListener::bind(address).unwrap();
            let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (own, other) = (client.local_addr().unwrap(), client.peer_addr().unwrap());
            assert!(is_same_user_or_root(own, other), "{address}");
        }
    }

    /// Its user is shown as root.
    #[test]
    fn a_connection_that_its_maker_has_closed_is_of_nobody_known() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (own, other) = (client.local_addr().unwrap(), client.peer_addr().unwrap());
        let _server = listener.accept().unwrap();
        drop(client);
        assert!(!is_same_user_or_root(own, other));
    }
}

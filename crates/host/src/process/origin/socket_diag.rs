//! Looks up one TCP socket of this network namespace by its addresses, through `sock_diag(7)`.
//!
//! The kernel looks it up in its hash table. Reading `/proc/net/tcp` takes longer the more sockets
//! the machine has.

use std::net::{IpAddr, SocketAddr};

use rustix::io::Errno;
use rustix::net::netlink::{self, SocketAddrNetlink};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, sendto, socket_with,
};

use super::tcp::SocketEntry;

const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLMSG_ERROR: u16 = 2;
const NLM_F_REQUEST: u16 = 1;
const HEADER_BYTES: usize = 16;
const TCP: u8 = 6;
const ANY: [u8; 4] = [0xff; 4];

/// Returns `Ok(None)` if there is no such socket, and an error if the kernel cannot be queried.
pub(super) fn find(own: SocketAddr, other: SocketAddr) -> Result<Option<SocketEntry>, Errno> {
    let flags = SocketFlags::CLOEXEC;
    let protocol = Some(netlink::SOCK_DIAG);
    let kernel = socket_with(AddressFamily::NETLINK, SocketType::DGRAM, flags, protocol)?;
    let question = question(own, other);
    sendto(&kernel, &question, SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
    let mut answer = [0; 1024];
    // The kernel responds before `sendto` returns.
    let (received, _) = recv(&kernel, &mut answer, RecvFlags::DONTWAIT)?;
    parse(&answer[..received], own, other)
}

/// Encodes an `nlmsghdr` and an `inet_diag_req_v2`.
fn question(own: SocketAddr, other: SocketAddr) -> Vec<u8> {
    let mut body = vec![family(own), TCP, 0, 0];
    body.extend(ANY);
    body.extend(own.port().to_be_bytes());
    body.extend(other.port().to_be_bytes());
    body.extend(padded(own.ip()));
    body.extend(padded(other.ip()));
    // Any interface, and no cookie.
    body.extend([0; 4].into_iter().chain(ANY).chain(ANY));
    let len = u32::try_from(HEADER_BYTES + body.len()).unwrap_or(u32::MAX);
    let mut message = Vec::from(len.to_ne_bytes());
    message.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    message.extend(NLM_F_REQUEST.to_ne_bytes());
    message.extend([0; 8]);
    message.extend(body);
    message
}

/// Decodes an `nlmsghdr` and an `inet_diag_msg`.
fn parse(answer: &[u8], own: SocketAddr, other: SocketAddr) -> Result<Option<SocketEntry>, Errno> {
    let garbled = Errno::PROTO;
    let kind = answer.get(4..6).and_then(|bytes| bytes.try_into().ok()).ok_or(garbled)?;
    let body = answer.get(HEADER_BYTES..).ok_or(garbled)?;
    let word = |at: usize| -> Result<u32, Errno> {
        let bytes = body.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
        bytes.map(u32::from_ne_bytes).ok_or(garbled)
    };
    match u16::from_ne_bytes(kind) {
        NLMSG_ERROR => match Errno::from_raw_os_error(word(0)?.wrapping_neg().cast_signed()) {
            Errno::NOENT => Ok(None),
            error => Err(error),
        },
        SOCK_DIAG_BY_FAMILY => {
            let ends = (address(body, 4, 8), address(body, 6, 24));
            // Without a connection between these addresses, the kernel returns a listener on the
            // first address.
            if ends != (Some(own), Some(other)) {
                return Ok(None);
            }
            Ok(Some(SocketEntry { uid: word(64)?, inode: word(68)?.into() }))
        }
        _ => Err(garbled),
    }
}

fn address(body: &[u8], port_at: usize, ip_at: usize) -> Option<SocketAddr> {
    let port = u16::from_be_bytes(body.get(port_at..port_at + 2)?.try_into().ok()?);
    let bytes: [u8; 16] = body.get(ip_at..ip_at + 16)?.try_into().ok()?;
    let ip = match u16::from(*body.first()?) {
        family if family == AddressFamily::INET.as_raw() => {
            IpAddr::from([bytes[0], bytes[1], bytes[2], bytes[3]])
        }
        // An IPv6 socket may be one end of an IPv4 connection.
        _ => IpAddr::from(bytes).to_canonical(),
    };
    Some(SocketAddr::new(ip, port))
}

fn family(address: SocketAddr) -> u8 {
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    u8::try_from(family.as_raw()).unwrap_or(0)
}

fn padded(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(ip) => {
            let mut padded = [0; 16];
            padded[..4].copy_from_slice(&ip.octets());
            padded
        }
        IpAddr::V6(ip) => ip.octets(),
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use exec_server_test_support::skipped;

    use super::*;

    #[test]
    fn a_connection_is_found_and_a_listener_is_not() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let listener = TcpListener::bind(address).unwrap();
            let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (own, other) = (client.local_addr().unwrap(), client.peer_addr().unwrap());
            match find(own, other) {
                Err(error) => {
                    return skipped(format_args!("sock_diag is not available: {error}"));
                }
                Ok(found) => {
                    let entry = found.expect(address);
                    assert_eq!(entry.uid, rustix::process::geteuid().as_raw());
                    assert_ne!(entry.inode, 0);
                }
            }
            let nobody = SocketAddr::new(own.ip(), 1);
            assert_eq!(find(other, nobody), Ok(None), "the listener was returned as the peer");
        }
    }
}

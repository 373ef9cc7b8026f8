//! Finds the processes that hold the peer's end of a TCP connection.
//!
//! The kernel's tables show the holders of a socket, not its creator. A sandboxed program that
//! passes its socket to a helper outside the sandbox is taken for the helper.

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use super::{Lineage, Origin};

pub(super) fn trace(own: SocketAddr, other: SocketAddr) -> Origin {
    let Some(entry) = find_socket(own, other) else {
        let is_local = own.ip().to_canonical().is_loopback() || own.ip() == other.ip();
        return if is_local { Origin::Unknown } else { Origin::Elsewhere };
    };
    if entry.inode == 0 {
        // Closed by its last holder, which can no longer be identified.
        return Origin::Unknown;
    }
    let me = rustix::process::geteuid();
    if entry.uid != me.as_raw() && !me.is_root() {
        return Origin::Elsewhere;
    }
    let socket = format!("socket:[{}]", entry.inode);
    let lineages: Option<Vec<_>> =
        holders(&socket).map(|pid| Lineage::of(pid, || holds(pid, &socket))).collect();
    match lineages {
        Some(lineages) if !lineages.is_empty() => Origin::Here(lineages),
        _ => Origin::Unknown,
    }
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct SocketEntry {
    pub(super) uid: u32,
    /// 0 once the last holder has closed the socket; `uid` is then meaningless.
    pub(super) inode: u64,
}

pub(super) fn find_socket(own: SocketAddr, other: SocketAddr) -> Option<SocketEntry> {
    let (own, other) = (unmapped(own), unmapped(other));
    #[cfg(target_os = "linux")]
    if let Ok(found) = super::socket_diag::find(own, other) {
        return found;
    }
    ["/proc/net/tcp", "/proc/net/tcp6"].into_iter().find_map(|table| {
        let text = fs::read_to_string(table).ok()?;
        text.lines().skip(1).find_map(|line| parse_line(line, own, other))
    })
}

fn parse_line(line: &str, own: SocketAddr, other: SocketAddr) -> Option<SocketEntry> {
    let mut fields = line.split_ascii_whitespace().skip(1);
    let (local, remote) = (parse_address(fields.next()?)?, parse_address(fields.next()?)?);
    if local != own || remote != other {
        return None;
    }
    let mut rest = fields.skip(4);
    let (uid, _timeout, inode) = (rest.next()?, rest.next()?, rest.next()?);
    Some(SocketEntry { uid: uid.parse().ok()?, inode: inode.parse().ok()? })
}

/// Parses `0100007F:1F90`: words of the address in the machine's byte order, then the port.
fn parse_address(text: &str) -> Option<SocketAddr> {
    let (address, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let word = |index: usize| -> Option<[u8; 4]> {
        let digits = address.get(8 * index..8 * index + 8)?;
        Some(u32::from_str_radix(digits, 16).ok()?.to_ne_bytes())
    };
    let ip = match address.len() {
        8 => IpAddr::from(word(0)?),
        32 => {
            let mut bytes = [0; 16];
            for (index, slot) in bytes.chunks_exact_mut(4).enumerate() {
                slot.copy_from_slice(&word(index)?);
            }
            IpAddr::from(bytes)
        }
        _ => return None,
    };
    Some(unmapped(SocketAddr::new(ip, port)))
}

/// The two ends of one connection may show an IPv4 address in different forms.
fn unmapped(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// Omits processes that cannot be inspected.
fn holders(socket: &str) -> impl Iterator<Item = u32> {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    processes
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(move |pid: &u32| holds(*pid, socket))
}

/// Checks every thread: threads may have descriptor tables of their own.
fn holds(pid: u32, socket: &str) -> bool {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { return false };
    threads.flatten().any(|thread| {
        let Ok(descriptors) = fs::read_dir(thread.path().join("fd")) else { return false };
        let mut targets = descriptors.flatten().map(|entry| fs::read_link(entry.path()));
        targets.any(|target| target.is_ok_and(|target| target == Path::new(socket)))
    })
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    fn connected(address: &str) -> (TcpStream, TcpStream, (SocketAddr, SocketAddr)) {
        let listener = TcpListener::bind(address).unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (server, _) = listener.accept().unwrap();
        let ends = (server.peer_addr().unwrap(), server.local_addr().unwrap());
        (client, server, ends)
    }

    #[test]
    fn a_socket_is_traced_to_its_process_and_its_ancestors() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let (_client, _server, (own, other)) = connected(address);
            let Origin::Here(lineages) = trace(own, other) else { panic!("{address}") };
            let me = std::process::id();
            assert!(lineages.iter().all(|lineage| lineage.includes(me)), "{address}");
        }
    }

    #[test]
    fn a_thread_with_its_own_descriptor_table_is_inspected() {
        let (client, _server, (own, other)) = connected("127.0.0.1:0");
        let (ready, is_ready) = std::sync::mpsc::sync_channel(0);
        let (end, is_end) = std::sync::mpsc::sync_channel::<()>(0);
        let thread = std::thread::spawn(move || {
            // SAFETY: this thread opens nothing that another thread uses.
            unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::FILES) }.unwrap();
            ready.send(()).unwrap();
            let _ = is_end.recv();
        });
        is_ready.recv().unwrap();
        // The thread has a copy of the descriptor.
        drop(client);
        assert!(matches!(trace(own, other), Origin::Here(_)));
        drop(end);
        thread.join().unwrap();
    }

    #[test]
    fn a_socket_without_holders_has_an_unknown_origin() {
        let (client, server, (own, other)) = connected("127.0.0.1:0");
        drop(client);
        assert_eq!(trace(own, other), Origin::Unknown);
        drop(server);
    }

    #[test]
    fn addresses_of_both_families_are_parsed() {
        let read = |text| parse_address(text).map(|address| address.to_string());
        if cfg!(target_endian = "little") {
            assert_eq!(read("0100007F:1F90").as_deref(), Some("127.0.0.1:8080"));
            let mapped = "0000000000000000FFFF00000100007F:0050";
            assert_eq!(read(mapped).as_deref(), Some("127.0.0.1:80"));
            let loopback = "00000000000000000000000001000000:0050";
            assert_eq!(read(loopback).as_deref(), Some("[::1]:80"));
        }
        assert_eq!(read("0100007F"), None);
        assert_eq!(read("xyz:0050"), None);
    }
}

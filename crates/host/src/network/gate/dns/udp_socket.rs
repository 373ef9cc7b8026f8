//! A UDP socket that reports to which of its addresses a datagram was sent, and replies from that
//! address.
//!
//! A program sends queries to any address, and all of them arrive at the one wildcard socket. A
//! resolver drops a response from an address other than the one it queried.

use std::io;
use std::mem::{MaybeUninit, size_of};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsRawFd, RawFd};
use std::ptr;

use libc::{c_int, c_void, socklen_t};
use tokio::io::Interest;
use tokio::net::UdpSocket;

#[derive(Debug)]
pub(super) struct AddressedUdpSocket {
    socket: UdpSocket,
    is_v6: bool,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Received {
    pub(super) bytes: usize,
    pub(super) peer: SocketAddr,
    /// The address that the peer sent to.
    destination: Option<IpAddr>,
}

/// Space for one control message of either family, aligned as the kernel requires.
#[repr(C, align(8))]
struct Control([u8; 64]);

impl AddressedUdpSocket {
    pub(super) fn new(socket: std::net::UdpSocket) -> io::Result<Self> {
        let is_v6 = socket.local_addr()?.is_ipv6();
        let (level, option) = match is_v6 {
            true => (libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO),
            false => (libc::IPPROTO_IP, libc::IP_PKTINFO),
        };
        let on: c_int = 1;
        // SAFETY: the value is a c_int, as both options require, and outlives the call.
        let result = unsafe {
            libc::setsockopt(
                socket.as_raw_fd(),
                level,
                option,
                ptr::from_ref(&on).cast(),
                size_of::<c_int>() as socklen_t,
            )
        };
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { socket: UdpSocket::from_std(socket)?, is_v6 })
    }

    /// Truncates the datagram to the buffer.
    pub(super) async fn receive(&self, buffer: &mut [u8]) -> io::Result<Received> {
        let descriptor = self.socket.as_raw_fd();
        self.socket.async_io(Interest::READABLE, || receive(descriptor, buffer)).await
    }

    pub(super) async fn send(&self, message: &[u8], to: &Received) -> io::Result<()> {
        let descriptor = self.socket.as_raw_fd();
        let send = || send(descriptor, self.is_v6, message, to);
        self.socket.async_io(Interest::WRITABLE, send).await
    }
}

fn receive(descriptor: RawFd, buffer: &mut [u8]) -> io::Result<Received> {
    let mut address = MaybeUninit::<libc::sockaddr_storage>::zeroed();
    let mut control = Control([0; 64]);
    let mut part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    // SAFETY: all-zero bytes are a valid msghdr.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_name = address.as_mut_ptr().cast();
    message.msg_namelen = size_of::<libc::sockaddr_storage>() as socklen_t;
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.0.as_mut_ptr().cast();
    message.msg_controllen = control.0.len() as _;
    // SAFETY: the header points to the address, the buffer and the control bytes above, with their
    // lengths, and all of them outlive the call.
    let bytes = unsafe { libc::recvmsg(descriptor, &raw mut message, 0) };
    if bytes < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the storage was zeroed, and all-zero bytes are a valid storage.
    let address = unsafe { address.assume_init() };
    let peer = socket_address(&address).ok_or(io::ErrorKind::InvalidData)?;
    let destination = destination_of(&message);
    Ok(Received { bytes: bytes.unsigned_abs(), peer, destination })
}

fn send(descriptor: RawFd, is_v6: bool, bytes: &[u8], to: &Received) -> io::Result<()> {
    let (mut address, length) = raw_address(to.peer);
    let mut control = Control([0; 64]);
    let mut part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    // SAFETY: all-zero bytes are a valid msghdr.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_name = (&raw mut address).cast();
    message.msg_namelen = length;
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.0.as_mut_ptr().cast();
    message.msg_controllen = control.0.len() as _;
    match (is_v6, to.destination) {
        (true, Some(source)) => {
            let source = match source {
                IpAddr::V4(source) => source.to_ipv6_mapped(),
                IpAddr::V6(source) => source,
            };
            let source = libc::in6_addr { s6_addr: source.octets() };
            let info = libc::in6_pktinfo { ipi6_addr: source, ipi6_ifindex: 0 };
            put_control(&mut message, libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, info);
        }
        (false, Some(IpAddr::V4(source))) => {
            let source = libc::in_addr { s_addr: u32::from_ne_bytes(source.octets()) };
            let any = libc::in_addr { s_addr: 0 };
            let info = libc::in_pktinfo { ipi_ifindex: 0, ipi_spec_dst: source, ipi_addr: any };
            put_control(&mut message, libc::IPPROTO_IP, libc::IP_PKTINFO, info);
        }
        (false, Some(IpAddr::V6(_))) | (_, None) => {
            message.msg_control = ptr::null_mut();
            message.msg_controllen = 0;
        }
    }
    // SAFETY: the header points to the address, the bytes and the control message, with their
    // lengths. All of them outlive the call, which writes to none.
    let sent = unsafe { libc::sendmsg(descriptor, &raw const message, 0) };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Makes `value` the only control message. The header must point to enough zeroed control bytes.
fn put_control<T>(message: &mut libc::msghdr, level: c_int, kind: c_int, value: T) {
    let size = size_of::<T>() as u32;
    // SAFETY: both functions only compute.
    let (space, length) = unsafe { (libc::CMSG_SPACE(size), libc::CMSG_LEN(size)) };
    assert!(space as usize <= size_of::<Control>(), "the largest message is 40 bytes long");
    message.msg_controllen = space as _;
    // SAFETY: the control bytes hold one message of this size, so the first header is inside them,
    // and so is its data. The data may be unaligned for T.
    unsafe {
        let header = libc::CMSG_FIRSTHDR(message);
        (*header).cmsg_level = level;
        (*header).cmsg_type = kind;
        (*header).cmsg_len = length as _;
        libc::CMSG_DATA(header).cast::<T>().write_unaligned(value);
    }
}

fn destination_of(message: &libc::msghdr) -> Option<IpAddr> {
    // SAFETY: the kernel has filled the control bytes, and set their length.
    let mut header = unsafe { libc::CMSG_FIRSTHDR(message) };
    while !header.is_null() {
        // SAFETY: the macros return headers inside the control bytes, or null.
        let (level, kind, data) = unsafe {
            ((*header).cmsg_level, (*header).cmsg_type, libc::CMSG_DATA(header) as *const c_void)
        };
        match (level, kind) {
            (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
                // SAFETY: a message of this kind holds an in6_pktinfo.
                let info = unsafe { data.cast::<libc::in6_pktinfo>().read_unaligned() };
                return Some(IpAddr::V6(Ipv6Addr::from(info.ipi6_addr.s6_addr)));
            }
            (libc::IPPROTO_IP, libc::IP_PKTINFO) => {
                // SAFETY: a message of this kind holds an in_pktinfo.
                let info = unsafe { data.cast::<libc::in_pktinfo>().read_unaligned() };
                return Some(IpAddr::V4(Ipv4Addr::from(info.ipi_addr.s_addr.to_ne_bytes())));
            }
            _ => {}
        }
        // SAFETY: `header` is inside the control bytes of `message`.
        header = unsafe { libc::CMSG_NXTHDR(message, header) };
    }
    None
}

fn socket_address(raw: &libc::sockaddr_storage) -> Option<SocketAddr> {
    let start = ptr::from_ref(raw);
    match c_int::from(raw.ss_family) {
        libc::AF_INET => {
            // SAFETY: a storage is large and aligned enough for every kind of address.
            let raw = unsafe { &*start.cast::<libc::sockaddr_in>() };
            let address = Ipv4Addr::from(raw.sin_addr.s_addr.to_ne_bytes());
            Some(SocketAddrV4::new(address, u16::from_be(raw.sin_port)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: a storage is large and aligned enough for every kind of address.
            let raw = unsafe { &*start.cast::<libc::sockaddr_in6>() };
            let address = Ipv6Addr::from(raw.sin6_addr.s6_addr);
            let port = u16::from_be(raw.sin6_port);
            Some(SocketAddrV6::new(address, port, raw.sin6_flowinfo, raw.sin6_scope_id).into())
        }
        _ => None,
    }
}

fn raw_address(address: SocketAddr) -> (libc::sockaddr_storage, socklen_t) {
    // SAFETY: all-zero bytes are a valid storage.
    let mut storage: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
    let start = &raw mut storage;
    let length = match address {
        SocketAddr::V4(address) => {
            // SAFETY: all-zero bytes are a valid address.
            let mut raw: libc::sockaddr_in = unsafe { std::mem::zeroed() };
            raw.sin_family = libc::AF_INET as libc::sa_family_t;
            raw.sin_port = address.port().to_be();
            raw.sin_addr.s_addr = u32::from_ne_bytes(address.ip().octets());
            // SAFETY: a storage is large and aligned enough for every kind of address.
            unsafe { start.cast::<libc::sockaddr_in>().write(raw) };
            size_of::<libc::sockaddr_in>()
        }
        SocketAddr::V6(address) => {
            // SAFETY: all-zero bytes are a valid address.
            let mut raw: libc::sockaddr_in6 = unsafe { std::mem::zeroed() };
            raw.sin6_family = libc::AF_INET6 as libc::sa_family_t;
            raw.sin6_port = address.port().to_be();
            raw.sin6_addr.s6_addr = address.ip().octets();
            raw.sin6_scope_id = address.scope_id();
            // SAFETY: a storage is large and aligned enough for every kind of address.
            unsafe { start.cast::<libc::sockaddr_in6>().write(raw) };
            size_of::<libc::sockaddr_in6>()
        }
    };
    (storage, length as socklen_t)
}

//! The routes of a managed process: every address is local, so every connection ends at a socket in
//! the network namespace, of the gate or of the process itself, or is refused. Speaks
//! `rtnetlink(7)`; this needs `CAP_NET_ADMIN` in the network namespace.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, sendto, socket_with,
};

use crate::network::gate::{PROHIBITED_V4, PROHIBITED_V6};
use crate::sandbox::report::step::{SandboxStep, StepFailure};

/// Loopback is the first interface of every network namespace.
const LOOPBACK: u32 = 1;

/// Addresses other than those of loopback. `getaddrinfo` with `AI_ADDRCONFIG` queries only families
/// that have such an address.
const OWN_V4: Ipv4Addr = Ipv4Addr::new(198, 18, 255, 1);
const OWN_V6: Ipv6Addr = Ipv6Addr::new(0xfd65, 0x7865, 0x6373, 0, 0xffff, 0, 0, 1);

const EVERYTHING: [(IpAddr, u8); 2] =
    [(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0), (IpAddr::V6(Ipv6Addr::UNSPECIFIED), 0)];

/// Brings loopback up, makes every address local, and prohibits the addresses of refused names.
/// IPv6 may fail: even without its routes, no IPv6 packet leaves the namespace.
pub(crate) fn route_everything_to_loopback() -> Result<(), StepFailure> {
    let failed = |errno| SandboxStep::Routes.failed(errno);
    let kernel = RouteSocket::open().map_err(failed)?;
    kernel.bring_up_loopback().map_err(failed)?;
    let prohibited = [
        (IpAddr::V4(PROHIBITED_V4.0), PROHIBITED_V4.1),
        (IpAddr::V6(PROHIBITED_V6.0), PROHIBITED_V6.1),
    ];
    for (own, everything, prohibited) in [
        (IpAddr::V4(OWN_V4), EVERYTHING[0], prohibited[0]),
        (IpAddr::V6(OWN_V6), EVERYTHING[1], prohibited[1]),
    ] {
        let done = kernel
            .add_address(own)
            .and_then(|()| kernel.add_route(libc::RTN_LOCAL, everything))
            .and_then(|()| kernel.add_route(libc::RTN_PROHIBIT, prohibited));
        match done {
            Err(errno) if own.is_ipv4() => return Err(failed(errno)),
            _ => {}
        }
    }
    Ok(())
}

struct RouteSocket(OwnedFd);

impl RouteSocket {
    fn open() -> Result<Self, Errno> {
        let (kind, flags) = (SocketType::RAW, SocketFlags::CLOEXEC);
        // The protocol NETLINK_ROUTE is the default.
        Ok(Self(socket_with(AddressFamily::NETLINK, kind, flags, None)?))
    }

    /// `ip link set lo up`
    fn bring_up_loopback(&self) -> Result<(), Errno> {
        let up = libc::IFF_UP.cast_unsigned();
        let mut message = Message::new(libc::RTM_NEWLINK, 0);
        // ifinfomsg: family, padding, type, index, flags, mask of the flags to change.
        message.bytes(&[0; 4]).number(LOOPBACK).number(up).number(up);
        self.perform(message)
    }

    /// `ip address add ADDRESS dev lo`, without duplicate address detection.
    fn add_address(&self, address: IpAddr) -> Result<(), Errno> {
        let flags = libc::NLM_F_CREATE | libc::NLM_F_EXCL;
        let mut message = Message::new(libc::RTM_NEWADDR, flags.cast_unsigned());
        let length = if address.is_ipv4() { 32 } else { 128 };
        let no_detection = u8::try_from(libc::IFA_F_NODAD).unwrap_or(0);
        // ifaddrmsg: family, prefix length, flags, scope, index.
        message.bytes(&[family(address), length, no_detection, libc::RT_SCOPE_UNIVERSE]);
        message.number(LOOPBACK);
        message.attribute(libc::IFA_LOCAL, &octets(address));
        message.attribute(libc::IFA_ADDRESS, &octets(address));
        self.perform(message)
    }

    /// `ip route add KIND PREFIX [dev lo] table local`. The local table is consulted first.
    fn add_route(&self, kind: u8, (address, length): (IpAddr, u8)) -> Result<(), Errno> {
        let flags = libc::NLM_F_CREATE | libc::NLM_F_EXCL;
        let mut message = Message::new(libc::RTM_NEWROUTE, flags.cast_unsigned());
        let scope =
            if kind == libc::RTN_LOCAL { libc::RT_SCOPE_HOST } else { libc::RT_SCOPE_UNIVERSE };
        let (table, protocol) = (libc::RT_TABLE_LOCAL, libc::RTPROT_STATIC);
        // rtmsg: family, lengths of destination and source, service, table, protocol, scope, kind,
        // flags.
        message.bytes(&[family(address), length, 0, 0, table, protocol, scope, kind]).number(0);
        if length > 0 {
            message.attribute(libc::RTA_DST, &octets(address));
        }
        // The kernel refuses an interface in a prohibiting route.
        if kind == libc::RTN_LOCAL {
            message.attribute(libc::RTA_OIF, &LOOPBACK.to_ne_bytes());
        }
        self.perform(message)
    }

    fn perform(&self, message: Message) -> Result<(), Errno> {
        let kernel = SocketAddrNetlink::new(0, 0);
        sendto(&self.0, &message.finished(), SendFlags::empty(), &kernel)?;
        let mut answer = [0; 512];
        // The kernel replies before the call that sends the request returns.
        let (received, _) = recv(&self.0, &mut answer, RecvFlags::DONTWAIT)?;
        let error = answer[..received].get(16..20).and_then(|bytes| bytes.try_into().ok());
        match i32::from_ne_bytes(error.ok_or(Errno::PROTO)?) {
            0 => Ok(()),
            error => Err(Errno::from_raw_os_error(-error)),
        }
    }
}

/// A request with its header.
struct Message(Vec<u8>);

impl Message {
    fn new(kind: u16, flags: u32) -> Self {
        let flags = flags | (libc::NLM_F_REQUEST | libc::NLM_F_ACK).cast_unsigned();
        let flags = u16::try_from(flags).unwrap_or(0);
        let mut message = Self(vec![0; 4]);
        message.bytes(&kind.to_ne_bytes()).bytes(&flags.to_ne_bytes()).bytes(&[0; 8]);
        message
    }

    fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.extend_from_slice(bytes);
        self
    }

    fn number(&mut self, number: u32) -> &mut Self {
        self.bytes(&number.to_ne_bytes())
    }

    /// The lengths of all values used here need no padding.
    fn attribute(&mut self, kind: u16, value: &[u8]) {
        let length = u16::try_from(4 + value.len()).unwrap_or(0);
        self.bytes(&length.to_ne_bytes()).bytes(&kind.to_ne_bytes()).bytes(value);
    }

    fn finished(mut self) -> Vec<u8> {
        let length = u32::try_from(self.0.len()).unwrap_or(0);
        self.0[..4].copy_from_slice(&length.to_ne_bytes());
        self.0
    }
}

fn family(address: IpAddr) -> u8 {
    let family = if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    u8::try_from(family).unwrap_or(0)
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

//! The sockets of a gate, bound inside the network namespace of its process and passed to the
//! server.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, listen, socket_with, sockopt};

use crate::sandbox::plan::{GateSocket, GateSockets};
use crate::sandbox::report::step::{SandboxStep, StepFailure};

/// The maximum number of connections that the kernel has completed and the server has not accepted
/// yet.
const BACKLOG: i32 = 128;

/// Binds the sockets in the order of [`GateSockets::list`].
pub(crate) fn bind_all(sockets: &GateSockets) -> Result<Vec<OwnedFd>, StepFailure> {
    let bound = sockets.list().into_iter().map(open).collect::<Result<_, _>>();
    bound.map_err(|errno| SandboxStep::GateSockets.failed(errno))
}

/// Opens an IPv6 socket, which also accepts IPv4, or an IPv4 socket if the kernel does not support
/// IPv6. A gate for IPv4 alone is just as strong.
fn open(socket: GateSocket) -> Result<OwnedFd, Errno> {
    match open_in(AddressFamily::INET6, socket) {
        Err(Errno::AFNOSUPPORT | Errno::ADDRNOTAVAIL) => open_in(AddressFamily::INET, socket),
        opened => opened,
    }
}

fn open_in(family: AddressFamily, socket: GateSocket) -> Result<OwnedFd, Errno> {
    let kind = if socket.is_datagram { SocketType::DGRAM } else { SocketType::STREAM };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let opened = socket_with(family, kind, flags, None)?;
    let address = if family == AddressFamily::INET6 {
        sockopt::set_ipv6_v6only(&opened, false)?;
        SocketAddr::V6(SocketAddrV6::new(Ipv6Addr::UNSPECIFIED, socket.port, 0, 0))
    } else {
        SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, socket.port))
    };
    bind(&opened, &address)?;
    if !socket.is_datagram {
        listen(&opened, BACKLOG)?;
    }
    Ok(opened)
}

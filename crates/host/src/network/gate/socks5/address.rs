//! The address format of SOCKS5: kind, address, port.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use tokio::io::{AsyncRead, AsyncReadExt};

use crate::network::policy::Host;

pub(super) const IPV4: u8 = 1;
pub(super) const DOMAIN: u8 = 3;
pub(super) const IPV6: u8 = 4;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Address {
    pub(super) host: Host,
    pub(super) port: u16,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum AddressError {
    /// The address kind, and therefore the length of the address, is unknown.
    Kind,
    /// The name is neither a host name nor an address.
    Host { port: u16 },
}

/// The outer error is an error of the stream.
pub(super) async fn read(
    stream: &mut (impl AsyncRead + Unpin),
) -> io::Result<Result<Address, AddressError>> {
    let host = match stream.read_u8().await? {
        IPV4 => Some(Host::from(IpAddr::V4(Ipv4Addr::from_bits(stream.read_u32().await?)))),
        IPV6 => Some(Host::from(IpAddr::V6(Ipv6Addr::from_bits(stream.read_u128().await?)))),
        DOMAIN => {
            let mut name = vec![0; usize::from(stream.read_u8().await?)];
            stream.read_exact(&mut name).await?;
            str::from_utf8(&name).ok().and_then(|name| name.parse().ok())
        }
        _ => return Ok(Err(AddressError::Kind)),
    };
    let port = stream.read_u16().await?;
    Ok(host.map(|host| Address { host, port }).ok_or(AddressError::Host { port }))
}

pub(super) fn write(message: &mut Vec<u8>, address: SocketAddr) {
    match address.ip().to_canonical() {
        IpAddr::V4(address) => {
            message.push(IPV4);
            message.extend(address.octets());
        }
        IpAddr::V6(address) => {
            message.push(IPV6);
            message.extend(address.octets());
        }
    }
    message.extend(address.port().to_be_bytes());
}

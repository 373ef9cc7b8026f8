//! The datagram format of SOCKS5. Pure.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::address::{self, Address};
use crate::network::policy::Host;

/// Splits a client's datagram into destination and payload. Fragments are not supported.
pub(super) fn parse(datagram: &[u8]) -> Option<(Address, &[u8])> {
    let [0, 0, 0, kind, rest @ ..] = datagram else { return None };
    let (host, rest) = match *kind {
        address::IPV4 => {
            let (octets, rest) = rest.split_first_chunk::<4>()?;
            (Host::from(IpAddr::V4(Ipv4Addr::from(*octets))), rest)
        }
        address::IPV6 => {
            let (octets, rest) = rest.split_first_chunk::<16>()?;
            (Host::from(IpAddr::V6(Ipv6Addr::from(*octets))), rest)
        }
        address::DOMAIN => {
            let (length, rest) = rest.split_first()?;
            let (name, rest) = rest.split_at_checked(usize::from(*length))?;
            (str::from_utf8(name).ok()?.parse().ok()?, rest)
        }
        _ => return None,
    };
    let (port, payload) = rest.split_first_chunk::<2>()?;
    let port = u16::from_be_bytes(*port);
    (port != 0).then_some((Address { host, port }, payload))
}

pub(super) fn wrap(source: SocketAddr, payload: &[u8]) -> Vec<u8> {
    let mut datagram = vec![0, 0, 0];
    address::write(&mut datagram, source);
    datagram.extend(payload);
    datagram
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_wrapped_datagram_parses(ip: IpAddr, port in 1u16.., payload: Vec<u8>) {
            let datagram = wrap(SocketAddr::new(ip, port), &payload);
            let (address, rest) = parse(&datagram).unwrap();
            prop_assert_eq!(address, Address { host: ip.into(), port });
            prop_assert_eq!(rest, payload);
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes: Vec<u8>) {
            let head = [&[0, 0, 0], &bytes[..]].concat();
            let _ = (parse(&bytes), parse(&head));
        }
    }

    #[test]
    fn names_are_parsed_and_fragments_are_not() {
        let (address, rest) = parse(b"\0\0\0\x03\x05a.org\x01\xbbhi").unwrap();
        assert_eq!(address, Address { host: "a.org".parse().unwrap(), port: 443 });
        assert_eq!(rest, b"hi");
        assert!(parse(b"\0\0\x01\x03\x05a.org\x01\xbbhi").is_none());
        assert!(parse(b"\0\0\0\x03\x00\x01\xbbhi").is_none());
        assert!(parse(b"\0\0\0\x03\x05a.org\x00\x00hi").is_none());
    }
}

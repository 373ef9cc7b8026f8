//! Distinguishes addresses of the machine and its own network from those of the internet.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Whether `address` is private, loopback, link-local, multicast, reserved or a cloud's metadata
/// service. An IPv6 address that embeds an IPv4 address is private if either is: a translator or
/// tunnel on the path may deliver to either. Documentation ranges are not private.
#[must_use]
pub fn is_private(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(address) => is_private_v4(address),
        IpAddr::V6(address) => {
            is_private_v6(address) || embedded_v4(address).into_iter().flatten().any(is_private_v4)
        }
    }
}

/// Returns the IPv4 addresses embedded in an IPv6 address of a translation or tunnel format.
pub(super) fn embedded_v4(address: Ipv6Addr) -> [Option<Ipv4Addr>; 2] {
    let words = address.segments();
    let at = |index: usize| {
        let [a, b] = words[index].to_be_bytes();
        let [c, d] = words[index + 1].to_be_bytes();
        Some(Ipv4Addr::new(a, b, c, d))
    };
    match words {
        // IPv4-compatible, IPv4-translated (SIIT) and NAT64.
        [0, 0, 0, 0, 0, 0, ..] | [0, 0, 0, 0, 0xffff, 0, ..] | [0x64, 0xff9b, 0, 0, 0, 0, ..] => {
            [at(6), None]
        }
        // 6to4.
        [0x2002, ..] => [at(1), None],
        // Teredo: the relay's address, and the client's with every bit inverted.
        [0x2001, 0, ..] => [at(2), at(6).map(|client| Ipv4Addr::from_bits(!client.to_bits()))],
        // ISATAP.
        [_, _, _, _, 0 | 0x200, 0x5efe, ..] => [at(6), None],
        _ => [None, None],
    }
}

fn is_private_v4(address: Ipv4Addr) -> bool {
    match address.octets() {
        // This network, private, loopback, and benchmarking, which the synthetic names use.
        [0 | 10 | 127, ..] | [192, 168, ..] | [198, 18 | 19, ..] => true,
        [172, second, ..] => (16..=31).contains(&second),
        // Carrier-grade NAT.
        [100, second, ..] => (64..=127).contains(&second),
        // Link-local, with the metadata service of most clouds.
        [169, 254, ..] => true,
        // Protocol assignments, with Oracle's metadata service.
        [192, 0, 0, _] => true,
        // Azure's metadata service, in a public range.
        [168, 63, 129, 16] => true,
        // Multicast, reserved, broadcast.
        [first, ..] => first >= 224,
    }
}

fn is_private_v6(address: Ipv6Addr) -> bool {
    match address.segments() {
        // Unspecified, loopback.
        [0, 0, 0, 0, 0, 0, 0, 0 | 1] => true,
        // NAT64 within one network (RFC 8215): the position of the IPv4 address is unknown.
        [0x64, 0xff9b, 1, ..] => true,
        // Unique local; link-local and the deprecated site-local; multicast.
        [first, ..] => {
            first & 0xfe00 == 0xfc00 || first & 0xff80 == 0xfe80 || first & 0xff00 == 0xff00
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn private_ranges_have_the_right_bounds() {
        let private = [
            "0.0.0.0",
            "0.255.255.255",
            "10.0.0.0",
            "10.255.255.255",
            "100.64.0.0",
            "100.100.100.200",
            "100.127.255.255",
            "127.0.0.1",
            "127.255.255.255",
            "168.63.129.16",
            "169.254.169.254",
            "172.16.0.0",
            "172.31.255.255",
            "192.0.0.0",
            "192.0.0.192",
            "192.168.0.0",
            "192.168.255.255",
            "198.18.0.0",
            "198.19.255.255",
            "224.0.0.1",
            "239.255.255.255",
            "240.0.0.0",
            "255.255.255.255",
            "::",
            "::1",
            "::ffff:10.0.0.1",
            "::10.0.0.1",
            "::ffff:0:10.0.0.1",
            "64:ff9b::169.254.169.254",
            "64:ff9b:1::1",
            "2002:7f00:1::",
            "2001:0:7f00:1::",
            "2001:0:808:808:0:0:80ff:fffe",
            "2001:db8::5efe:192.168.0.1",
            "fc00::",
            "fd00:ec2::254",
            "fdff::1",
            "fe80::1",
            "febf::1",
            "fec0::1",
            "feff::1",
            "ff02::1",
        ];
        for text in private {
            assert!(is_private(text.parse().unwrap()), "{text}");
        }
        let public = [
            "1.0.0.0",
            "9.255.255.255",
            "11.0.0.0",
            "100.63.255.255",
            "100.128.0.0",
            "126.255.255.255",
            "128.0.0.0",
            "168.63.129.17",
            "169.253.255.255",
            "172.15.255.255",
            "172.32.0.0",
            "192.0.1.0",
            "192.0.2.1",
            "192.167.255.255",
            "192.169.0.0",
            "198.17.255.255",
            "198.20.0.0",
            "198.51.100.1",
            "203.0.113.1",
            "223.255.255.255",
            "::ffff:203.0.113.1",
            "64:ff9b::203.0.113.1",
            "2002:cb00:7101::",
            "2001:0:808:808:0:0:f7f7:f7f7",
            "2001:db8::1",
            "2606:4700::1111",
            "fbff::1",
        ];
        for text in public {
            assert!(!is_private(text.parse().unwrap()), "{text}");
        }
    }
}

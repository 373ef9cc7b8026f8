//! The canonical spelling of every host that a program can name.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::str::FromStr;

use super::address::is_private;

/// The longest DNS name as text, and its longest label.
const MAX_NAME: usize = 253;
const MAX_LABEL: usize = 63;

/// The longest text that is parsed. International names may become shorter as punycode.
const MAX_TEXT: usize = 4 * MAX_NAME;

/// A host in its canonical spelling: lower case, no trailing dot, punycode. An IPv4-mapped IPv6
/// address becomes the IPv4 address.
///
/// Build it by parsing, or from an address: rules compare spellings.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Host {
    Name(String),
    Address(IpAddr),
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a host name or an address")]
pub struct HostError {
    text: String,
}

impl Host {
    /// Formats as `example.org:443` or `[::1]:443`.
    #[must_use]
    pub fn with_port(&self, port: u16) -> String {
        match self {
            Self::Address(IpAddr::V6(address)) => format!("[{address}]:{port}"),
            Self::Name(_) | Self::Address(_) => format!("{self}:{port}"),
        }
    }

    /// Whether this is a private address (see [`is_private`]), `localhost` or a subdomain of it.
    #[must_use]
    pub fn is_private(&self) -> bool {
        match self {
            Self::Name(_) => self.is_localhost(),
            Self::Address(address) => is_private(*address),
        }
    }

    /// Whether this name always means loopback (RFC 6761).
    pub(super) fn is_localhost(&self) -> bool {
        match self {
            Self::Name(name) => name == "localhost" || name.ends_with(".localhost"),
            Self::Address(_) => false,
        }
    }
}

impl From<IpAddr> for Host {
    fn from(address: IpAddr) -> Self {
        Self::Address(address.to_canonical())
    }
}

impl FromStr for Host {
    type Err = HostError;

    fn from_str(text: &str) -> Result<Self, HostError> {
        parse(text).ok_or_else(|| HostError { text: text.chars().take(MAX_NAME).collect() })
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => f.write_str(name),
            Self::Address(address) => address.fmt(f),
        }
    }
}

fn parse(text: &str) -> Option<Host> {
    // `url` decodes percent escapes. Text with these or with control characters is refused.
    if text.len() > MAX_TEXT || text.chars().any(|c| c == '%' || c.is_control()) {
        return None;
    }
    let bracketed = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    if bracketed.is_some() || text.contains(':') {
        let address: Ipv6Addr = bracketed.unwrap_or(text).parse().ok()?;
        return Some(Host::from(IpAddr::V6(address)));
    }
    match url::Host::parse(text).ok()? {
        url::Host::Ipv4(address) => Some(Host::Address(IpAddr::V4(address))),
        url::Host::Ipv6(_) => None,
        url::Host::Domain(mut name) => {
            if name.ends_with('.') {
                name.pop();
            }
            let valid = name.len() <= MAX_NAME && name.split('.').all(is_label);
            valid.then_some(Host::Name(name))
        }
    }
}

/// Whether a label has a valid length, and only letters, digits, hyphens and, as in service names,
/// underscores.
fn is_label(label: &str) -> bool {
    let valid = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_');
    (1..=MAX_LABEL).contains(&label.len()) && label.bytes().all(valid)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spelled(text: &str) -> String {
        text.parse::<Host>().unwrap_or_else(|error| panic!("{error}")).to_string()
    }

    #[test]
    fn names_have_one_spelling() {
        let cases = [
            ("example.org", "example.org"),
            ("EXAMPLE.Org.", "example.org"),
            ("example.org\u{3002}", "example.org"),
            ("bücher.example", "xn--bcher-kva.example"),
            ("BÜCHER.example", "xn--bcher-kva.example"),
            ("xn--bcher-kva.example", "xn--bcher-kva.example"),
            ("ｅｘａｍｐｌｅ.org", "example.org"),
            ("_sip._tcp.example.org", "_sip._tcp.example.org"),
            ("r3---sn-4g5.example.org", "r3---sn-4g5.example.org"),
            ("localhost", "localhost"),
        ];
        for (text, expected) in cases {
            assert_eq!(spelled(text), expected, "{text}");
        }
    }

    #[test]
    fn addresses_have_one_spelling() {
        let cases = [
            ("127.0.0.1", "127.0.0.1"),
            ("127.0.0.1.", "127.0.0.1"),
            ("0x7f.1", "127.0.0.1"),
            ("0X7F.0.0.1", "127.0.0.1"),
            ("0177.0.0.1", "127.0.0.1"),
            ("2130706433", "127.0.0.1"),
            ("127.1", "127.0.0.1"),
            ("１２７.0.0.1", "127.0.0.1"),
            ("0", "0.0.0.0"),
            ("::1", "::1"),
            ("[::1]", "::1"),
            ("0:0:0:0:0:0:0:1", "::1"),
            ("::ffff:127.0.0.1", "127.0.0.1"),
            ("[::FFFF:7f00:1]", "127.0.0.1"),
            ("2001:DB8::0:1", "2001:db8::1"),
        ];
        for (text, expected) in cases {
            let host: Host = text.parse().unwrap();
            assert!(matches!(host, Host::Address(_)), "{text}");
            assert_eq!(host.to_string(), expected, "{text}");
        }
    }

    #[test]
    fn text_that_names_no_host_is_refused() {
        let long_label = format!("{}.org", "a".repeat(64));
        let long_name = format!("{}org", "abcdefghi.".repeat(26));
        let refused = [
            "",
            ".",
            "..",
            "a..b",
            ".a",
            "a..",
            "1.2.3.4..",
            "256.1.1.1",
            "1.2.3.4.5",
            "1.2.3.08",
            "4294967296",
            "fe80::1%eth0",
            "[fe80::1%25eth0]",
            "[::1",
            "::1]",
            "[127.0.0.1]",
            "[[::1]]",
            "[]",
            ":",
            "a b",
            " a",
            "a\n",
            "a\tb",
            "a\0",
            "a%2eb",
            "*",
            "*.example.org",
            "＊.example.org",
            "example.org:80",
            "user@example.org",
            "example.org/",
            "xn--a.b",
            "example.123",
            "a,b",
            "a\u{7f}b",
            &long_label,
            &long_name,
        ];
        for text in refused {
            assert!(text.parse::<Host>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn the_longest_name_is_accepted() {
        let label = "a".repeat(63);
        let name = format!("{label}.{label}.{label}.{}", "a".repeat(61));
        assert_eq!(name.len(), 253);
        assert_eq!(spelled(&format!("{name}.")), name);
        assert!(format!("{name}a").parse::<Host>().is_err());
    }

    #[test]
    fn an_ipv6_address_with_a_port_has_brackets() {
        assert_eq!(Host::from_str("::1").unwrap().with_port(53), "[::1]:53");
        assert_eq!(Host::from_str("10.0.0.1").unwrap().with_port(53), "10.0.0.1:53");
        assert_eq!(Host::from_str("a.example").unwrap().with_port(53), "a.example:53");
    }
}

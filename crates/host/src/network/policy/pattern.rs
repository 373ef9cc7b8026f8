//! Patterns that match hosts in a rule.

use std::fmt;
use std::net::IpAddr;
use std::num::NonZeroU16;
use std::str::FromStr;

use super::address::embedded_v4;
use super::host::Host;
use super::rules::Route;

/// The ports of direct connections for patterns without a port.
pub(super) const DEFAULT_PORTS: [u16; 2] = [80, 443];

/// `example.org`, `*.example.org` (its subdomains), `**.example.org` (both), or an IP address.
/// Each may end with `:PORT`; an IPv6 address with a port needs brackets.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct HostPattern {
    target: Target,
    port: Option<NonZeroU16>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Target {
    Exact(Host),
    Subdomains(String),
    DomainAndSubdomains(String),
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PatternError {
    #[error("a host pattern is empty; write a host such as example.org")]
    Empty,
    #[error("{text:?} matches every host; name the hosts, such as example.org or *.example.org")]
    EveryHost { text: String },
    #[error(
        "{text:?} has a wildcard in the wrong place; write *.example.org for the subdomains of \
         example.org, or **.example.org to include example.org"
    )]
    Wildcard { text: String },
    #[error("{text:?} has a wildcard before an address; write each address in full")]
    WildcardAddress { text: String },
    #[error("{text:?} contains a slash; write a host without scheme, path or prefix length")]
    Slash { text: String },
    #[error("{text:?} has an invalid port; write a number from 1 to 65535 after the colon")]
    Port { text: String },
    #[error(
        "{text:?} is not a host pattern; write a host, *.HOST, **.HOST or an address, each with an \
         optional :PORT"
    )]
    Malformed { text: String },
}

impl HostPattern {
    #[must_use]
    pub fn port(&self) -> Option<u16> {
        self.port.map(NonZeroU16::get)
    }

    /// Whether the pattern names the host, on any port.
    #[must_use]
    pub fn names(&self, host: &Host) -> bool {
        match (&self.target, host) {
            (Target::Exact(Host::Address(own)), Host::Address(other)) => {
                *own == other.to_canonical()
            }
            (Target::Exact(Host::Name(own)), Host::Address(other)) => {
                own == "localhost" && other.to_canonical().is_loopback()
            }
            (Target::Exact(own), _) => own == host,
            (Target::Subdomains(domain), Host::Name(name)) => is_subdomain(name, domain),
            (Target::DomainAndSubdomains(domain), Host::Name(name)) => {
                name == domain || is_subdomain(name, domain)
            }
            (_, Host::Address(_)) => false,
        }
    }

    #[must_use]
    pub fn allows(&self, host: &Host, port: u16, route: Route) -> bool {
        self.covers_port(port, route) && self.names(host)
    }

    /// Whether the pattern, as part of `deny`, denies the host on this port. A denied IPv4 address
    /// is also denied when embedded in an IPv6 address.
    #[must_use]
    pub fn denies(&self, host: &Host, port: u16) -> bool {
        if self.port().is_some_and(|own| own != port) {
            return false;
        }
        let embedded = match host {
            Host::Address(IpAddr::V6(address)) => embedded_v4(*address),
            Host::Address(IpAddr::V4(_)) | Host::Name(_) => [None, None],
        };
        self.names(host)
            || embedded
                .into_iter()
                .flatten()
                .any(|address| self.names(&Host::Address(IpAddr::V4(address))))
    }

    pub(super) fn covers_port(&self, port: u16, route: Route) -> bool {
        match (self.port(), route) {
            (Some(own), _) => own == port,
            (None, Route::Direct) => DEFAULT_PORTS.contains(&port),
            (None, Route::Proxy) => true,
        }
    }

    /// Returns the host of a pattern without a wildcard.
    pub(super) fn exact(&self) -> Option<&Host> {
        match &self.target {
            Target::Exact(host) => Some(host),
            Target::Subdomains(_) | Target::DomainAndSubdomains(_) => None,
        }
    }
}

impl FromStr for HostPattern {
    type Err = PatternError;

    fn from_str(text: &str) -> Result<Self, PatternError> {
        if text.is_empty() {
            return Err(PatternError::Empty);
        }
        if text.contains('/') {
            return Err(PatternError::Slash { text: text.to_owned() });
        }
        let (host, port) = split_port(text);
        Ok(Self { target: parse_target(text, host)?, port: parse_port(text, port)? })
    }
}

impl fmt::Display for HostPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.target, self.port) {
            (Target::Exact(host), Some(port)) => return f.write_str(&host.with_port(port.get())),
            (Target::Exact(host), None) => return host.fmt(f),
            (Target::Subdomains(domain), _) => write!(f, "*.{domain}")?,
            (Target::DomainAndSubdomains(domain), _) => write!(f, "**.{domain}")?,
        }
        self.port.map_or(Ok(()), |port| write!(f, ":{port}"))
    }
}

/// Splits off the port. Without brackets, more than one colon means an IPv6 address without a port.
fn split_port(text: &str) -> (&str, Option<&str>) {
    if text.starts_with('[') {
        return match text.rsplit_once("]:") {
            Some((host, port)) => (&text[..=host.len()], Some(port)),
            None => (text, None),
        };
    }
    match text.split_once(':') {
        Some((host, port)) if !port.contains(':') => (host, Some(port)),
        _ => (text, None),
    }
}

fn parse_port(text: &str, port: Option<&str>) -> Result<Option<NonZeroU16>, PatternError> {
    let Some(digits) = port else {
        return Ok(None);
    };
    // The standard parser also accepts a plus sign.
    let digits = Some(digits).filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()));
    match digits.and_then(|digits| digits.parse().ok()) {
        Some(port) => Ok(Some(port)),
        None => Err(PatternError::Port { text: text.to_owned() }),
    }
}

fn parse_target(text: &str, host: &str) -> Result<Target, PatternError> {
    if matches!(host, "*" | "**" | "*." | "**.") {
        return Err(PatternError::EveryHost { text: text.to_owned() });
    }
    let both = host.strip_prefix("**.");
    let wildcard = both.or_else(|| host.strip_prefix("*."));
    let rest = wildcard.unwrap_or(host);
    if rest.contains('*') {
        return Err(PatternError::Wildcard { text: text.to_owned() });
    }
    let host: Host = rest.parse().map_err(|_| PatternError::Malformed { text: text.to_owned() })?;
    match host {
        host if wildcard.is_none() => Ok(Target::Exact(host)),
        Host::Name(domain) if both.is_some() => Ok(Target::DomainAndSubdomains(domain)),
        Host::Name(domain) => Ok(Target::Subdomains(domain)),
        Host::Address(_) => Err(PatternError::WildcardAddress { text: text.to_owned() }),
    }
}

fn is_subdomain(name: &str, domain: &str) -> bool {
    name.strip_suffix(domain).is_some_and(|rest| rest.len() > 1 && rest.ends_with('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(text: &str) -> HostPattern {
        text.parse().unwrap_or_else(|error| panic!("{error}"))
    }

    fn host(text: &str) -> Host {
        text.parse().unwrap()
    }

    #[test]
    fn a_pattern_names_its_hosts_and_no_others() {
        let cases: [(&str, &[&str], &[&str]); 6] = [
            ("example.org", &["example.org", "EXAMPLE.org."], &["a.example.org", "xample.org"]),
            (
                "*.example.org",
                &["a.example.org", "a.b.example.org"],
                &["example.org", "badexample.org", "example.org.evil.test", "127.0.0.1"],
            ),
            (
                "**.Example.org.",
                &["example.org", "a.example.org", "a.b.example.org"],
                &["badexample.org", "org", "example.com"],
            ),
            ("*.bücher.example", &["a.xn--bcher-kva.example"], &["a.bucher.example"]),
            ("0x7f.1", &["127.0.0.1", "::ffff:127.0.0.1"], &["127.0.0.2", "::127.0.0.1"]),
            ("[::1]", &["::1"], &["::2", "127.0.0.1", "localhost"]),
        ];
        for (text, named, other) in cases {
            for name in named {
                assert!(pattern(text).names(&host(name)), "{text} {name}");
            }
            for name in other {
                assert!(!pattern(text).names(&host(name)), "{text} {name}");
            }
        }
    }

    #[test]
    fn a_pattern_is_printed_in_one_spelling() {
        let cases = [
            ("Example.ORG:0443", "example.org:443"),
            ("*.example.org.:22", "*.example.org:22"),
            ("**.bücher.example", "**.xn--bcher-kva.example"),
            ("[::1]", "::1"),
            ("::1", "::1"),
            ("[::1]:53", "[::1]:53"),
            ("[::ffff:10.0.0.1]:53", "10.0.0.1:53"),
            ("2001:db8::1:443", "2001:db8::1:443"),
        ];
        for (text, expected) in cases {
            assert_eq!(pattern(text).to_string(), expected, "{text}");
        }
        assert_eq!(pattern("2001:db8::1:443").port(), None);
    }

    #[test]
    fn the_error_for_an_invalid_pattern_names_the_remedy() {
        let cases = [
            ("", "is empty"),
            ("*", "name the hosts"),
            ("**", "name the hosts"),
            ("*.", "name the hosts"),
            ("**.", "name the hosts"),
            ("*:443", "name the hosts"),
            ("a.*.b", "wrong place"),
            ("*foo.com", "wrong place"),
            ("***.foo.com", "wrong place"),
            ("*.*.foo.com", "wrong place"),
            ("foo.*", "wrong place"),
            ("*.127.0.0.1", "address in full"),
            ("**.[::1]", "address in full"),
            ("10.0.0.0/8", "prefix length"),
            ("https://example.org", "without scheme"),
            ("example.org:", "from 1 to 65535"),
            ("example.org:0", "from 1 to 65535"),
            ("example.org:65536", "from 1 to 65535"),
            ("example.org:+80", "from 1 to 65535"),
            ("example.org:http", "from 1 to 65535"),
            ("[::1]:", "from 1 to 65535"),
            (":443", "not a host pattern"),
            (".example.org", "not a host pattern"),
            ("a b", "not a host pattern"),
            ("[::1]53", "not a host pattern"),
            ("example.org:80:90", "not a host pattern"),
            ("fe80::1%eth0", "not a host pattern"),
        ];
        for (text, expected) in cases {
            let error = text.parse::<HostPattern>().expect_err(text).to_string();
            assert!(error.contains(expected), "{text:?}: {error}");
        }
    }

    #[test]
    fn the_route_decides_the_ports_of_an_allow_pattern_without_a_port() {
        let example = host("example.org");
        let any = pattern("example.org");
        assert!(any.allows(&example, 80, Route::Direct));
        assert!(any.allows(&example, 443, Route::Direct));
        assert!(!any.allows(&example, 22, Route::Direct));
        assert!(any.allows(&example, 22, Route::Proxy));
        let ssh = pattern("example.org:22");
        for route in [Route::Direct, Route::Proxy] {
            assert!(ssh.allows(&example, 22, route));
            assert!(!ssh.allows(&example, 443, route));
        }
    }

    #[test]
    fn a_denied_address_is_denied_when_embedded_in_another() {
        let denied = pattern("203.0.113.7");
        for text in ["::ffff:203.0.113.7", "64:ff9b::203.0.113.7", "2002:cb00:7107::1"] {
            assert!(denied.denies(&host(text), 443), "{text}");
        }
        assert!(!denied.denies(&host("64:ff9b::203.0.113.8"), 443));
        assert!(!pattern("203.0.113.7:22").denies(&host("64:ff9b::203.0.113.7"), 443));
    }
}

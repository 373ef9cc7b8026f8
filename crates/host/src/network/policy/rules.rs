//! The rules of one party, and their decision about one access.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::address::is_private;
use super::host::Host;
use super::pattern::HostPattern;

/// The rules of one party: the client, the token or the operator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rules {
    pub allow: Vec<HostPattern>,
    /// Takes precedence over `allow`.
    pub deny: Vec<HostPattern>,
    pub unnamed: Unnamed,
    pub mode: Mode,
    /// Whether private, loopback, link-local and metadata addresses may be reached. They must still
    /// be allowed by a pattern or by `unnamed`.
    pub allow_private: bool,
}

/// The decision for a host that no pattern of `allow` names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Unnamed {
    /// Allow on every port: for a party that only denies.
    Allow,
    Ask,
    Deny,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    Full,
    /// Only GET, HEAD and OPTIONS of plain HTTP.
    Limited,
}

/// One connection, datagram flow or plain HTTP request that a program attempts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Access<'a> {
    pub host: &'a Host,
    pub port: u16,
    pub protocol: Protocol,
    pub route: Route,
    /// The method of a plain HTTP request.
    pub method: Option<&'a str>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Protocol {
    Http,
    HttpsConnect,
    Socks5Tcp,
    Socks5Udp,
}

/// How the program connects. An `allow` pattern without a port covers 80 and 443 of a direct
/// connection, and every port through a proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Route {
    Direct,
    Proxy,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    Allow,
    /// No `allow` pattern names the host, and the client may be asked.
    Ask,
    Deny(DenyReason),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DenyReason {
    /// No rule allows the access.
    NotAllowed,
    /// A rule denies the access.
    Denied,
    /// `Mode::Limited`, and the access is not a GET, HEAD or OPTIONS of plain HTTP.
    Method,
    /// A private, loopback, link-local or metadata address, or a name that means loopback.
    PrivateAddress,
}

impl Rules {
    #[must_use]
    pub fn decide(&self, access: &Access<'_>) -> Decision {
        let Access { host, port, route, .. } = *access;
        if self.denies(host, port) {
            return Decision::Deny(DenyReason::Denied);
        }
        if self.mode == Mode::Limited && !access.is_safe_http() {
            return Decision::Deny(DenyReason::Method);
        }
        // A wildcard never lifts the ban on private hosts: `**.localhost` may be unintended.
        let mut allowing = self.allow.iter().filter(|pattern| pattern.allows(host, port, route));
        let allowed = if self.allow_private || !host.is_private() {
            allowing.next().is_some()
        } else if allowing.any(|pattern| pattern.exact().is_some()) {
            true
        } else {
            return Decision::Deny(DenyReason::PrivateAddress);
        };
        if allowed {
            return Decision::Allow;
        }
        // Only a host that no `allow` pattern names causes a question. This host is named, but not
        // for this port.
        if self.allow.iter().any(|pattern| pattern.names(host)) {
            return Decision::Deny(DenyReason::NotAllowed);
        }
        match self.unnamed {
            Unnamed::Allow => Decision::Allow,
            Unnamed::Ask => Decision::Ask,
            Unnamed::Deny => Decision::Deny(DenyReason::NotAllowed),
        }
    }

    pub(super) fn check_resolved(&self, address: IpAddr, port: u16) -> Result<(), DenyReason> {
        let host = Host::from(address);
        if self.denies(&host, port) {
            return Err(DenyReason::Denied);
        }
        if !self.allow_private && is_private(address) && !self.allows_private(&host, port) {
            return Err(DenyReason::PrivateAddress);
        }
        Ok(())
    }

    /// Whether some direct connection to this port may be allowed, to any host.
    pub(super) fn may_allow_directly(&self, port: u16) -> bool {
        self.unnamed != Unnamed::Deny
            || self.allow.iter().any(|pattern| pattern.covers_port(port, Route::Direct))
    }

    fn denies(&self, host: &Host, port: u16) -> bool {
        self.deny.iter().any(|pattern| pattern.denies(host, port))
    }

    /// Whether a pattern without a wildcard allows this private address. The program could reach
    /// that address through the proxy anyway, so a name that resolves to it grants nothing new. For
    /// the same reason an exact `localhost` allows the two usual loopback addresses.
    fn allows_private(&self, address: &Host, port: u16) -> bool {
        const LOOPBACK: [Host; 2] = [
            Host::Address(IpAddr::V4(Ipv4Addr::LOCALHOST)),
            Host::Address(IpAddr::V6(Ipv6Addr::LOCALHOST)),
        ];
        let covering = self.allow.iter().filter(|own| own.covers_port(port, Route::Proxy));
        covering
            .filter_map(HostPattern::exact)
            .any(|exact| exact == address || (exact.is_localhost() && LOOPBACK.contains(address)))
    }
}

impl Access<'_> {
    /// Whether `Mode::Limited` permits this access. Methods are case-sensitive.
    fn is_safe_http(&self) -> bool {
        self.protocol == Protocol::Http && matches!(self.method, Some("GET" | "HEAD" | "OPTIONS"))
    }
}

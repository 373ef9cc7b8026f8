//! The sockets through which a managed process reaches its gate.

/// The ports of the gate's proxies inside a private network namespace.
pub const HTTP_PROXY_PORT: u16 = 43128;
pub const SOCKS5_PORT: u16 = 41080;

const DNS_PORT: u16 = 53;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GateRequest {
    pub sockets: GateSockets,
    /// Whether programs may use Unix sockets. Through these a program can make other processes act
    /// for it.
    pub unix_sockets: bool,
    /// Refuse the start if the gate would not see every connection.
    pub require_transparent: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GateSockets {
    pub dns: bool,
    /// Ports at which connections to any address are accepted.
    pub direct_ports: Vec<u16>,
    pub http_proxy: bool,
    pub socks5: bool,
    pub socks5_udp: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GateSocket {
    pub port: u16,
    pub is_datagram: bool,
}

impl GateSockets {
    /// Returns the sockets in the order in which they are bound and passed.
    #[must_use]
    pub fn list(&self) -> Vec<GateSocket> {
        let stream = |port| GateSocket { port, is_datagram: false };
        let datagram = |port| GateSocket { port, is_datagram: true };
        let dns = [datagram(DNS_PORT), stream(DNS_PORT)].into_iter().filter(|_| self.dns);
        let proxies = [
            self.http_proxy.then_some(stream(HTTP_PROXY_PORT)),
            self.socks5.then_some(stream(SOCKS5_PORT)),
            self.socks5_udp.then_some(datagram(SOCKS5_PORT)),
        ];
        let direct = self.direct_ports.iter().copied().map(stream);
        dns.chain(direct).chain(proxies.into_iter().flatten()).collect()
    }
}

//! The operator's upstream proxies, which allowed connections may have to use.

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::net::IpAddr;

use percent_encoding::percent_decode_str;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use url::Url;

use crate::network::policy::{Access, Host, Protocol};

const MAX_RESPONSE_HEAD: usize = 16 << 10;

/// The proxies of the server's environment: `HTTP_PROXY` for plain HTTP, `HTTPS_PROXY` for all
/// other TCP connections, `ALL_PROXY` for both, and the exceptions of `NO_PROXY`. Lower-case names
/// work too.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UpstreamProxies {
    http: Option<ProxyAddress>,
    https: Option<ProxyAddress>,
    exceptions: Vec<Exception>,
}

/// The message omits the value, which may contain a password.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the proxy in {variable} (or its lower-case form) is not supported; use http://HOST:PORT")]
pub struct UpstreamError {
    pub variable: &'static str,
}

#[derive(Clone, PartialEq, Eq)]
pub(super) struct ProxyAddress {
    pub(super) host: Host,
    pub(super) port: u16,
    /// The value of `Proxy-Authorization`.
    authorization: Option<String>,
}

/// One entry of `NO_PROXY`.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Exception {
    Everything,
    /// A name and its subdomains.
    Domain(String, Option<u16>),
    Network {
        address: IpAddr,
        prefix: u8,
        port: Option<u16>,
    },
}

#[derive(Debug, thiserror::Error)]
pub(super) enum TunnelError {
    #[error("the connection to the proxy failed: {0}")]
    Io(#[from] io::Error),
    #[error("the proxy refused the connection with status {status}")]
    Refused { status: u16 },
    #[error("the proxy's response is not HTTP, or its head exceeds {MAX_RESPONSE_HEAD} bytes")]
    Malformed,
}

impl UpstreamProxies {
    /// Reads the variables. An unsupported proxy is an error: a direct connection would bypass the
    /// proxy that the operator requires.
    pub fn from_variables(
        variables: impl Fn(&str) -> Option<OsString>,
    ) -> Result<Self, UpstreamError> {
        let value = |names: [&str; 2]| {
            let mut values = names.into_iter().filter_map(&variables);
            values.find(|value| !value.is_empty()).map(|value| value.to_string_lossy().into_owned())
        };
        let proxy = |variable: &'static str, small| match value([variable, small]) {
            Some(text) => parse_proxy(&text).map(Some).ok_or(UpstreamError { variable }),
            None => Ok(None),
        };
        let all = proxy("ALL_PROXY", "all_proxy")?;
        let exceptions = value(["NO_PROXY", "no_proxy"]).unwrap_or_default();
        Ok(Self {
            http: proxy("HTTP_PROXY", "http_proxy")?.or_else(|| all.clone()),
            https: proxy("HTTPS_PROXY", "https_proxy")?.or(all),
            exceptions: exceptions.split([',', ' ']).filter_map(Exception::parse).collect(),
        })
    }

    pub(super) fn proxy_for(&self, access: &Access<'_>) -> Option<&ProxyAddress> {
        if self.exceptions.iter().any(|exception| exception.matches(access.host, access.port)) {
            return None;
        }
        match access.protocol {
            Protocol::Http => self.http.as_ref(),
            Protocol::HttpsConnect | Protocol::Socks5Tcp => self.https.as_ref(),
            Protocol::Socks5Udp => None,
        }
    }
}

impl fmt::Debug for ProxyAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.host.with_port(self.port))
    }
}

impl Exception {
    fn parse(text: &str) -> Option<Self> {
        if text == "*" {
            return Some(Self::Everything);
        }
        if let Some((address, prefix)) = text.split_once('/') {
            let (address, prefix) = (address.parse().ok()?, prefix.parse().ok()?);
            return Some(Self::Network { address, prefix, port: None });
        }
        let (host, port) = match text.rsplit_once(':') {
            Some((host, port)) if !host.contains(':') || host.ends_with(']') => {
                (host, Some(port.parse().ok()?))
            }
            _ => (text, None),
        };
        let host = host.strip_prefix("*.").or_else(|| host.strip_prefix('.')).unwrap_or(host);
        match host.parse().ok()? {
            Host::Name(name) => Some(Self::Domain(name, port)),
            Host::Address(address) => Some(Self::Network { address, prefix: 128, port }),
        }
    }

    fn matches(&self, host: &Host, port: u16) -> bool {
        let same_port = |own: &Option<u16>| own.is_none_or(|own| own == port);
        match (self, host) {
            (Self::Everything, _) => true,
            (Self::Domain(domain, own), Host::Name(name)) => {
                let below = name.strip_suffix(domain.as_str());
                same_port(own) && below.is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
            }
            (Self::Network { address, prefix, port: own }, Host::Address(host)) => {
                same_port(own) && same_network(*address, *host, *prefix)
            }
            (Self::Domain(..), Host::Address(_)) | (Self::Network { .. }, Host::Name(_)) => false,
        }
    }
}

/// Whether two addresses agree in their first `prefix` bits. A prefix longer than the addresses
/// requires equal addresses.
fn same_network(one: IpAddr, other: IpAddr, prefix: u8) -> bool {
    let agreeing = match (one, other) {
        (IpAddr::V4(one), IpAddr::V4(other)) => (one.to_bits() ^ other.to_bits()).leading_zeros(),
        (IpAddr::V6(one), IpAddr::V6(other)) => (one.to_bits() ^ other.to_bits()).leading_zeros(),
        (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => return false,
    };
    one == other || agreeing >= u32::from(prefix)
}

/// `HOST:PORT` means `http://HOST:PORT`.
fn parse_proxy(text: &str) -> Option<ProxyAddress> {
    let url = match text.contains("://") {
        true => Url::parse(text).ok()?,
        false => Url::parse(&format!("http://{text}")).ok()?,
    };
    if url.scheme() != "http" {
        return None;
    }
    let host = url.host_str()?.parse().ok()?;
    let authorization = (!url.username().is_empty() || url.password().is_some()).then(|| {
        let mut credentials: Vec<u8> = percent_decode_str(url.username()).collect();
        credentials.push(b':');
        credentials.extend(percent_decode_str(url.password().unwrap_or_default()));
        format!("Basic {}", base64_simd::STANDARD.encode_to_string(credentials))
    });
    Some(ProxyAddress { host, port: url.port_or_known_default()?, authorization })
}

pub(super) async fn open_tunnel(
    mut stream: TcpStream,
    proxy: &ProxyAddress,
    target: &str,
) -> Result<TcpStream, TunnelError> {
    let mut request = format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n");
    if let Some(authorization) = &proxy.authorization {
        request.push_str(&format!("Proxy-Authorization: {authorization}\r\n"));
    }
    request.push_str("\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut head = Vec::new();
    // Reads one byte at a time: the bytes after the head belong to the tunnel.
    while !head.ends_with(b"\r\n\r\n") {
        if head.len() == MAX_RESPONSE_HEAD {
            return Err(TunnelError::Malformed);
        }
        head.push(stream.read_u8().await?);
    }
    match status_of(&head).ok_or(TunnelError::Malformed)? {
        200..=299 => Ok(stream),
        status => Err(TunnelError::Refused { status }),
    }
}

fn status_of(head: &[u8]) -> Option<u16> {
    let head = str::from_utf8(head.get(..12)?).ok()?;
    head.strip_prefix("HTTP/1.")?.get(2..)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::policy::Route;

    fn proxies(set: &[(&str, &str)]) -> Result<UpstreamProxies, UpstreamError> {
        UpstreamProxies::from_variables(|name| {
            set.iter().find(|(own, _)| *own == name).map(|(_, value)| value.into())
        })
    }

    fn chosen(proxies: &UpstreamProxies, protocol: Protocol, host: &str) -> Option<String> {
        let host = host.parse().unwrap();
        let access = Access { host: &host, port: 443, protocol, route: Route::Proxy, method: None };
        proxies.proxy_for(&access).map(|proxy| format!("{proxy:?}"))
    }

    #[test]
    fn each_kind_of_connection_has_its_variable() {
        let set = [("HTTP_PROXY", "http://a:1"), ("https_proxy", "b:2"), ("ALL_PROXY", "c:3")];
        let proxies = proxies(&set).unwrap();
        assert_eq!(chosen(&proxies, Protocol::Http, "x.org").unwrap(), "a:1");
        assert_eq!(chosen(&proxies, Protocol::HttpsConnect, "x.org").unwrap(), "b:2");
        assert_eq!(chosen(&proxies, Protocol::Socks5Tcp, "x.org").unwrap(), "b:2");
        assert_eq!(chosen(&proxies, Protocol::Socks5Udp, "x.org"), None);
    }

    #[test]
    fn all_proxy_replaces_a_missing_or_empty_variable() {
        let proxies = proxies(&[("HTTP_PROXY", ""), ("all_proxy", "http://c")]).unwrap();
        assert_eq!(chosen(&proxies, Protocol::Http, "x.org").unwrap(), "c:80");
        assert_eq!(chosen(&proxies, Protocol::HttpsConnect, "x.org").unwrap(), "c:80");
    }

    #[test]
    fn exceptions_are_names_networks_and_ports() {
        let list = "a.org, .b.org,*.c.org,10.0.0.0/8,192.0.2.1,d.org:8443,e.org:443,fd00::/8";
        let proxies = proxies(&[("ALL_PROXY", "p:1"), ("NO_PROXY", list)]).unwrap();
        let excepted = |host| chosen(&proxies, Protocol::HttpsConnect, host).is_none();
        for host in ["a.org", "x.a.org", "x.b.org", "x.c.org", "10.9.9.9", "192.0.2.1", "e.org"] {
            assert!(excepted(host), "{host}");
        }
        assert!(excepted("fd12::1"));
        for host in ["xa.org", "d.org", "11.0.0.1", "192.0.2.2", "fe00::1", "org"] {
            assert!(!excepted(host), "{host}");
        }
    }

    #[test]
    fn the_error_for_an_unsupported_proxy_does_not_repeat_it() {
        for value in ["socks5://user:s3cret@p:1", "https://p", "http://", "s3cret p"] {
            let error = proxies(&[("ALL_PROXY", value)]).unwrap_err();
            assert!(!format!("{error} {error:?}").contains("s3cret"));
        }
    }

    #[test]
    fn credentials_are_decoded_and_never_printed() {
        let proxy = parse_proxy("http://us%40er:s3cret@p:1").unwrap();
        assert_eq!(proxy.authorization.as_deref(), Some("Basic dXNAZXI6czNjcmV0"));
        assert!(!format!("{proxy:?}").contains("dXN"));
    }

    #[test]
    fn only_a_valid_status_line_has_a_status() {
        assert_eq!(status_of(b"HTTP/1.1 200 OK\r\n\r\n"), Some(200));
        assert_eq!(status_of(b"HTTP/1.0 407 no\r\n\r\n"), Some(407));
        assert_eq!(status_of(b"HTTP/2 200\r\n\r\n"), None);
        assert_eq!(status_of(b"\r\n\r\n"), None);
    }
}

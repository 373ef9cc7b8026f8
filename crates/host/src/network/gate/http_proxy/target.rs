//! Finds the host that a program's request is for.

use hyper::Request;
use hyper::header::HOST;
use hyper::http::uri::{Authority, Scheme};

use crate::network::policy::Host;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) host: Host,
    pub(super) port: u16,
}

const HTTP_PORT: u16 = 80;

/// Returns the target of CONNECT, which must name its port.
pub(super) fn connect_target<B>(request: &Request<B>) -> Result<Target, &'static str> {
    let authority = request.uri().authority().ok_or("CONNECT needs a target HOST:PORT")?;
    let target = parse(authority, None).ok_or("CONNECT needs a target HOST:PORT")?;
    // Some programs omit the port from the Host header.
    check_host_header(request, &target, target.port)?;
    Ok(target)
}

/// Returns the target of a plain HTTP request. A proxy request names it in its URI; all requests of
/// a direct connection are for `fixed`.
pub(super) fn request_target<B>(
    request: &Request<B>,
    fixed: Option<&Target>,
) -> Result<Target, &'static str> {
    let uri = request.uri();
    let target = match (uri.authority(), fixed) {
        (None, None) => {
            return Err("this is an HTTP proxy: use it with http_proxy=, or send an absolute URI");
        }
        (None, Some(fixed)) => {
            if !request.headers().contains_key(HOST) {
                return Err("the request needs a Host header");
            }
            fixed.clone()
        }
        (Some(authority), _) => {
            if uri.scheme() != Some(&Scheme::HTTP) {
                return Err("only http:// is forwarded; use CONNECT for other schemes");
            }
            parse(authority, Some(HTTP_PORT))
                .ok_or("the URI must begin with http://HOST[:PORT], without a user name")?
        }
    };
    if fixed.is_some_and(|fixed| *fixed != target) {
        return Err("the URI and the connection name different hosts or ports");
    }
    check_host_header(request, &target, HTTP_PORT)?;
    Ok(target)
}

/// Checks the Host header. A server that trusts the header could otherwise serve a host other than
/// the one that was judged.
fn check_host_header<B>(
    request: &Request<B>,
    target: &Target,
    default_port: u16,
) -> Result<(), &'static str> {
    let mut values = request.headers().get_all(HOST).iter();
    let Some(value) = values.next() else { return Ok(()) };
    if values.next().is_some() {
        return Err("the request has more than one Host header");
    }
    let named = value.to_str().ok().and_then(|text| text.parse::<Authority>().ok());
    let named = named.and_then(|authority| parse(&authority, Some(default_port)));
    match named {
        Some(named) if named == *target => Ok(()),
        Some(_) => Err("the Host header and the request name different hosts or ports"),
        None => Err("the Host header is malformed"),
    }
}

fn parse(authority: &Authority, default_port: Option<u16>) -> Option<Target> {
    if authority.as_str().contains('@') {
        return None;
    }
    let host = authority.host().parse().ok()?;
    let port = match authority.port() {
        Some(port) => port.as_str().parse().ok()?,
        None if authority.as_str().ends_with(':') => return None,
        None => default_port?,
    };
    (port != 0).then_some(Target { host, port })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(method: &str, uri: &str, hosts: &[&str]) -> Request<()> {
        let mut request = Request::builder().method(method).uri(uri);
        for host in hosts {
            request = request.header(HOST, *host);
        }
        request.body(()).unwrap()
    }

    fn target(host: &str, port: u16) -> Target {
        Target { host: host.parse().unwrap(), port }
    }

    #[test]
    fn connect_names_host_and_port() {
        let connect = |uri, hosts: &[&str]| connect_target(&request("CONNECT", uri, hosts));
        assert_eq!(connect("a.org:443", &[]), Ok(target("a.org", 443)));
        assert_eq!(connect("a.org:443", &["A.org"]), Ok(target("a.org", 443)));
        assert_eq!(connect("[::ffff:1.2.3.4]:443", &[]), Ok(target("1.2.3.4", 443)));
        assert!(connect("a.org", &[]).is_err());
        assert!(connect("a.org:0", &[]).is_err());
        assert!(connect("user@a.org:443", &[]).is_err());
        assert!(connect("a.org:443", &["b.org"]).is_err());
        assert!(connect("a.org:443", &["a.org:444"]).is_err());
    }

    #[test]
    fn a_proxy_request_has_an_absolute_uri_that_agrees_with_its_host_header() {
        let get = |uri, hosts: &[&str]| request_target(&request("GET", uri, hosts), None);
        assert_eq!(get("http://A.org/x", &["a.org."]), Ok(target("a.org", 80)));
        assert_eq!(get("http://a.org:81/x", &["a.org:81"]), Ok(target("a.org", 81)));
        assert_eq!(get("http://a.org/", &[]), Ok(target("a.org", 80)));
        for (uri, hosts) in [
            ("/x", &["a.org"][..]),
            ("https://a.org/", &[]),
            ("http://u:p@a.org/", &[]),
            ("http://a.org/", &["b.org"]),
            ("http://a.org/", &["a.org:81"]),
            ("http://a.org/", &["a.org", "a.org"]),
            ("http://a.org/", &["a.org, b.org"]),
            ("http://a.org/", &[""]),
        ] {
            assert!(get(uri, hosts).is_err(), "{uri} {hosts:?}");
        }
    }

    #[test]
    fn a_direct_request_is_for_the_host_of_its_connection() {
        let fixed = target("a.org", 80);
        let get = |uri, hosts: &[&str]| request_target(&request("GET", uri, hosts), Some(&fixed));
        assert_eq!(get("/x", &["a.org"]), Ok(fixed.clone()));
        assert_eq!(get("http://a.org/x", &["a.org"]), Ok(fixed.clone()));
        assert!(get("/x", &[]).is_err());
        assert!(get("/x", &["b.org"]).is_err());
        assert!(get("http://b.org/x", &["b.org"]).is_err());
    }
}

//! Judges each HTTP request by its head, before any credentials; does no I/O.
//!
//! A web page in a browser on this machine can reach a loopback port. It cannot hide its `Origin`,
//! and when it reaches the server under its own domain name (DNS rebinding), it cannot hide that
//! name in `Host`. So both are checked first, on every route.

use std::net::{IpAddr, SocketAddr};

use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{
    CONNECTION, CONTENT_TYPE, HOST, HeaderMap, HeaderName, HeaderValue, ORIGIN, SEC_WEBSOCKET_KEY,
    SEC_WEBSOCKET_VERSION, UPGRADE,
};
use hyper::http::uri::Authority;
use hyper::{Method, Request, Response, StatusCode};

use super::Readiness;

#[derive(Debug)]
pub(super) struct Gate {
    pub(super) allowed_origins: Vec<String>,
    pub(super) hosts: HostRule,
    pub(super) readiness: Readiness,
}

#[derive(Debug)]
pub(super) enum HostRule {
    /// Any name. A browser cannot open a Unix socket, and beyond loopback, a page that reaches the
    /// server under its own domain name has no credentials.
    Any,
    /// The bound loopback address, its usual names, and the names allowed by the operator.
    Loopback { address: IpAddr, allowed: Vec<String> },
    /// The bound address and the names allowed by the operator.
    Listed { address: IpAddr, allowed: Vec<String> },
}

impl HostRule {
    pub(super) fn of(bound: SocketAddr, allowed: Vec<String>) -> Self {
        let address = bound.ip();
        match address.is_loopback() {
            true => Self::Loopback { address, allowed },
            false if allowed.is_empty() => Self::Any,
            false => Self::Listed { address, allowed },
        }
    }
}

/// A plain response: one line of text.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) status: StatusCode,
    pub(super) text: &'static str,
    pub(super) header: Option<(HeaderName, &'static str)>,
}

impl Gate {
    /// Checks the names on every route, and answers health requests, which need no credentials.
    pub(super) fn admit<B>(&self, request: &Request<B>) -> Result<(), Answer> {
        self.check_names(request)?;
        self.answer_health(request)
    }

    fn check_names<B>(&self, request: &Request<B>) -> Result<(), Answer> {
        let allows_origin = |origin: &HeaderValue| {
            self.allowed_origins
                .iter()
                .any(|allowed| origin.as_bytes().eq_ignore_ascii_case(allowed.as_bytes()))
        };
        if !request.headers().get_all(ORIGIN).iter().all(allows_origin) {
            let text =
                "this Origin is not allowed; to allow it on an exec-server, set allow_origin";
            return Err(answer(StatusCode::FORBIDDEN, text));
        }
        let allows_host = |name: &[u8]| match &self.hosts {
            HostRule::Any => true,
            HostRule::Loopback { address, allowed } => {
                is_host(name, *address, allowed) || is_loopback(name)
            }
            HostRule::Listed { address, allowed } => is_host(name, *address, allowed),
        };
        if let HostRule::Any = self.hosts {
            return Ok(());
        }
        let mut names = request.headers().get_all(HOST).iter().map(HeaderValue::as_bytes);
        let (Some(header), None) = (names.next(), names.next()) else {
            return Err(answer(StatusCode::FORBIDDEN, "exactly one Host header is required"));
        };
        // An absolute request target overrides the header, so it must pass as well.
        let target = request.uri().authority().map(|authority| authority.as_str().as_bytes());
        if !allows_host(header) || !target.is_none_or(allows_host) {
            let text = "this Host is not allowed; use the listener's address, or allow the name \
                        (exec-server: allow_host; rendezvous: --public-url)";
            return Err(answer(StatusCode::FORBIDDEN, text));
        }
        Ok(())
    }

    fn answer_health<B>(&self, request: &Request<B>) -> Result<(), Answer> {
        let is_ready = match request.uri().path() {
            "/healthz" => true,
            "/readyz" => self.readiness.is_ready(),
            _ => return Ok(()),
        };
        Err(match *request.method() {
            Method::GET | Method::HEAD if is_ready => answer(StatusCode::OK, "ok"),
            Method::GET | Method::HEAD if self.readiness.is_draining() => draining(),
            Method::GET | Method::HEAD => answer(StatusCode::SERVICE_UNAVAILABLE, "not ready"),
            _ => only_get(),
        })
    }

    /// Returns the key of a request that may become a WebSocket.
    pub(super) fn route<B>(&self, request: &Request<B>) -> Result<HeaderValue, Answer> {
        let path = request.uri().path();
        if request.method() != Method::GET {
            return Err(only_get());
        }
        if !asks_for_upgrade(request.headers()) {
            if path != "/" {
                let text =
                    "no such path; connect with a WebSocket client, or get /healthz or /readyz";
                return Err(answer(StatusCode::NOT_FOUND, text));
            }
            let refusal = answer(StatusCode::UPGRADE_REQUIRED, "connect with a WebSocket client");
            return Err(refusal.with(UPGRADE, "websocket"));
        }
        self.check_upgrade(request.headers())
    }

    /// Returns the key of a WebSocket request.
    pub(super) fn check_upgrade(&self, headers: &HeaderMap) -> Result<HeaderValue, Answer> {
        if headers.get(SEC_WEBSOCKET_VERSION).is_none_or(|version| version != "13") {
            let refusal =
                answer(StatusCode::UPGRADE_REQUIRED, "only WebSocket version 13 is supported");
            return Err(refusal.with(SEC_WEBSOCKET_VERSION, "13"));
        }
        let Some(key) = headers.get(SEC_WEBSOCKET_KEY).filter(|key| is_key(key.as_bytes())) else {
            return Err(answer(
                StatusCode::BAD_REQUEST,
                "Sec-WebSocket-Key must be 16 bytes in base64",
            ));
        };
        if self.readiness.is_draining() {
            return Err(draining());
        }
        Ok(key.clone())
    }
}

pub(super) fn asks_for_upgrade(headers: &HeaderMap) -> bool {
    has_token(headers, &UPGRADE, "websocket") && has_token(headers, &CONNECTION, "upgrade")
}

fn draining() -> Answer {
    answer(StatusCode::SERVICE_UNAVAILABLE, "the server is shutting down")
}

pub(super) fn only_get() -> Answer {
    let refusal = answer(StatusCode::METHOD_NOT_ALLOWED, "only GET is served here");
    refusal.with(hyper::header::ALLOW, "GET")
}

pub(super) fn answer(status: StatusCode, text: &'static str) -> Answer {
    Answer { status, text, header: None }
}

impl Answer {
    pub(super) fn with(self, name: HeaderName, value: &'static str) -> Self {
        Self { header: Some((name, value)), ..self }
    }

    pub(super) fn into_response(self) -> Response<Full<Bytes>> {
        let mut response = Response::new(Full::from(format!("{}\n", self.text)));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
        headers.insert(CONNECTION, HeaderValue::from_static("close"));
        if let Some((name, value)) = self.header {
            headers.insert(name, HeaderValue::from_static(value));
        }
        response
    }
}

fn is_host(host: &[u8], address: IpAddr, allowed: &[String]) -> bool {
    let Some(name) = host_name(host) else {
        return false;
    };
    let is_allowed = |entry: &String| {
        host_name(entry.as_bytes()).is_some_and(|entry| entry.eq_ignore_ascii_case(&name))
    };
    name.parse() == Ok(address) || allowed.iter().any(is_allowed)
}

/// Whether this is a usual loopback name. Other programs use the rest of 127.0.0.0/8.
fn is_loopback(host: &[u8]) -> bool {
    host_name(host).is_some_and(|name| match name.parse::<IpAddr>() {
        Ok(IpAddr::V4(ip)) => ip == std::net::Ipv4Addr::LOCALHOST,
        Ok(IpAddr::V6(ip)) => ip == std::net::Ipv6Addr::LOCALHOST,
        Err(_) => name.eq_ignore_ascii_case("localhost"),
    })
}

/// Returns the name in `NAME[:PORT]`, without the brackets of an IPv6 address.
fn host_name(host: &[u8]) -> Option<String> {
    let authority = Authority::try_from(host).ok()?;
    if authority.as_str().contains('@') {
        return None;
    }
    let name = authority.host();
    Some(name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name).to_owned())
}

fn has_token(headers: &HeaderMap, name: &HeaderName, token: &str) -> bool {
    headers
        .get_all(name)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .any(|value| value.trim().eq_ignore_ascii_case(token))
}

fn is_key(key: &[u8]) -> bool {
    let is_base64 = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/');
    key.len() == 24 && key.ends_with(b"==") && key[..22].iter().all(is_base64)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "dGhlIHNhbXBsZSBub25jZQ==";

    fn gate() -> Gate {
        Gate {
            allowed_origins: vec!["https://good.example".into()],
            hosts: HostRule::Loopback {
                address: "127.0.0.2".parse().unwrap(),
                allowed: vec!["box.example".into()],
            },
            readiness: Readiness::default(),
        }
    }

    fn request(method: &str, target: &str, headers: &[(&str, &str)]) -> Request<()> {
        let mut request = Request::builder().method(method).uri(target);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(()).unwrap()
    }

    fn judge(gate: &Gate, request: &Request<()>) -> Result<HeaderValue, Answer> {
        gate.admit(request).and_then(|()| gate.route(request))
    }

    fn status(gate: &Gate, request: &Request<()>) -> u16 {
        judge(gate, request).map_or_else(|answer| answer.status.as_u16(), |_| 101)
    }

    fn upgrade(changes: &[(&str, &str)]) -> Request<()> {
        let mut headers = vec![
            ("host", "localhost:1"),
            ("upgrade", "WebSocket"),
            ("connection", "keep-alive, Upgrade"),
            ("sec-websocket-version", "13"),
            ("sec-websocket-key", KEY),
        ];
        headers.retain(|(name, _)| !changes.iter().any(|(changed, _)| changed == name));
        headers.extend(changes.iter().filter(|(_, value)| !value.is_empty()));
        request("GET", "/", &headers)
    }

    #[test]
    fn host_and_origin_are_checked_on_every_route() {
        for (host, allowed) in [
            ("localhost", true),
            ("LocalHost:99", true),
            ("127.0.0.1:99", true),
            ("127.0.0.2", true),
            ("[::1]:99", true),
            ("box.example:99", true),
            ("127.0.0.3", false),
            ("[::2]", false),
            ("evil.example", false),
            ("localhost.evil.example", false),
            ("localhost@evil.example", false),
            ("evil.example@localhost", false),
            ("", false),
        ] {
            for path in ["/", "/healthz", "/readyz", "/other"] {
                let refused = status(&gate(), &request("GET", path, &[("host", host)])) == 403;
                assert_eq!(refused, !allowed, "{host} {path}");
            }
        }
        for (origin, allowed) in [
            ("https://good.example", true),
            ("https://good.example.evil", false),
            ("http://localhost", false),
            ("null", false),
        ] {
            for path in ["/", "/healthz", "/readyz", "/other"] {
                let headers = [("host", "localhost"), ("origin", origin)];
                let refused = status(&gate(), &request("GET", path, &headers)) == 403;
                assert_eq!(refused, !allowed, "{origin} {path}");
            }
        }
    }

    #[test]
    fn a_second_host_or_origin_is_checked() {
        let gate = gate();
        let two = [("host", "localhost"), ("host", "evil.example")];
        assert_eq!(status(&gate, &request("GET", "/healthz", &two)), 403);
        let absolute = request("GET", "http://evil.example/healthz", &[("host", "localhost")]);
        assert_eq!(status(&gate, &absolute), 403);
        let origins = [
            ("host", "localhost"),
            ("origin", "https://good.example"),
            ("origin", "https://evil.example"),
        ];
        assert_eq!(status(&gate, &request("GET", "/healthz", &origins)), 403);
        assert_eq!(status(&gate, &request("GET", "/healthz", &[])), 403, "no host");
        for headers in [&two[..], &[]] {
            let refusal = gate.admit(&request("GET", "/healthz", headers)).unwrap_err();
            assert_eq!(refusal.text, "exactly one Host header is required");
        }
    }

    #[test]
    fn a_unix_socket_checks_the_origin_but_not_the_host() {
        let gate = Gate { hosts: HostRule::Any, ..gate() };
        assert_eq!(status(&gate, &request("GET", "/healthz", &[])), 200);
        assert_eq!(status(&gate, &request("GET", "/healthz", &[("origin", "null")])), 403);
    }

    #[test]
    fn other_host_names_must_be_allowed_by_the_operator() {
        let address = "192.0.2.7".parse().unwrap();
        let allowed = vec!["box.example".into()];
        let gate = Gate { hosts: HostRule::Listed { address, allowed }, ..gate() };
        for (host, expected) in
            [("box.example:7", 200), ("192.0.2.7:7", 200), ("localhost", 403), ("other", 403)]
        {
            assert_eq!(status(&gate, &request("GET", "/healthz", &[("host", host)])), expected);
        }
    }

    #[test]
    fn upgrades_are_validated() {
        let gate = gate();
        for (changes, expected) in [
            (&[][..], 101),
            (&[("upgrade", "")], 426),
            (&[("upgrade", "h2c")], 426),
            (&[("connection", "keep-alive")], 426),
            (&[("sec-websocket-version", "8")], 426),
            (&[("sec-websocket-version", "")], 426),
            (&[("sec-websocket-key", "")], 400),
            (&[("sec-websocket-key", "short")], 400),
        ] {
            assert_eq!(status(&gate, &upgrade(changes)), expected, "{changes:?}");
        }
        let answer = judge(&gate, &upgrade(&[("sec-websocket-version", "8")])).unwrap_err();
        assert_eq!(answer.header, Some((SEC_WEBSOCKET_VERSION, "13")));
    }

    #[test]
    fn other_requests_get_advice() {
        let (gate, host) = (gate(), [("host", "localhost")]);
        for (method, path, expected) in [
            ("GET", "/", 426),
            ("GET", "/other", 404),
            ("POST", "/", 405),
            ("POST", "/healthz", 405),
            ("HEAD", "/healthz", 200),
            ("CONNECT", "localhost:1", 405),
        ] {
            assert_eq!(status(&gate, &request(method, path, &host)), expected, "{method} {path}");
        }
    }

    #[test]
    fn a_draining_server_is_healthy_and_not_ready() {
        let (gate, host) = (gate(), [("host", "localhost")]);
        assert_eq!(status(&gate, &request("GET", "/readyz", &host)), 200);
        gate.readiness.set_degraded(true);
        assert_eq!(status(&gate, &request("GET", "/readyz", &host)), 503);
        assert_eq!(status(&gate, &upgrade(&[])), 101);
        gate.readiness.set_degraded(false);
        assert_eq!(status(&gate, &request("GET", "/readyz", &host)), 200);
        gate.readiness.drain();
        assert_eq!(status(&gate, &request("GET", "/readyz", &host)), 503);
        assert_eq!(status(&gate, &request("GET", "/healthz", &host)), 200);
        assert_eq!(status(&gate, &upgrade(&[])), 503);
    }
}

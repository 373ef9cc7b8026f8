//! Headers that belong to one connection and are not forwarded.

use hyper::HeaderMap;
use hyper::header::{
    CONNECTION, CONTENT_LENGTH, EXPECT, HeaderName, HeaderValue, TE, TRAILER, TRANSFER_ENCODING,
    UPGRADE,
};

/// `Keep-Alive`, `Expect` and headers that start with `proxy-` are removed too.
const HOP_BY_HOP: [HeaderName; 5] = [CONNECTION, TE, TRAILER, TRANSFER_ENCODING, UPGRADE];

/// Fails if the message cannot be reframed without changing its content.
pub(super) fn check_framing(headers: &HeaderMap) -> Result<(), &'static str> {
    let mut codings = headers.get_all(TRANSFER_ENCODING).iter();
    let chunked = match codings.next() {
        None => return Ok(()),
        Some(coding) => coding.as_bytes().eq_ignore_ascii_case(b"chunked"),
    };
    if !chunked || codings.next().is_some() {
        return Err("the only supported transfer coding is chunked");
    }
    if headers.contains_key(CONTENT_LENGTH) {
        return Err("the message has both Content-Length and Transfer-Encoding");
    }
    Ok(())
}

/// Removes the headers of the connection, including those named in its `Connection` header.
pub(super) fn remove_hop_by_hop(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .filter(|name| *name != CONTENT_LENGTH)
        .collect();
    let of_proxies = headers.keys().filter(|name| name.as_str().starts_with("proxy-")).cloned();
    let keep_alive = HeaderName::from_static("keep-alive");
    // The gate itself answers `Expect`, when it starts to read the body.
    let removed: Vec<_> = named.into_iter().chain(of_proxies).chain([keep_alive, EXPECT]).collect();
    for name in removed.iter().chain(&HOP_BY_HOP) {
        headers.remove(name);
    }
}

/// Returns the protocol to which a request asks to switch, or a response switches.
pub(super) fn upgrade_of(headers: &HeaderMap) -> Option<HeaderValue> {
    let names_upgrade = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .any(|name| name.trim().eq_ignore_ascii_case("upgrade"));
    names_upgrade.then(|| headers.get(UPGRADE).cloned()).flatten()
}

pub(super) fn set_upgrade(headers: &mut HeaderMap, protocol: HeaderValue) {
    headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(UPGRADE, protocol);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let pairs = pairs.iter();
        pairs.map(|(n, v)| (HeaderName::from_static(n), HeaderValue::from_static(v))).collect()
    }

    #[test]
    fn only_headers_of_the_connection_are_removed() {
        let mut headers = headers(&[
            ("connection", "close, X-Secret ,content-length"),
            ("keep-alive", "5"),
            ("x-secret", "1"),
            ("proxy-authorization", "Basic"),
            ("proxy-connection", "keep-alive"),
            ("te", "trailers"),
            ("upgrade", "h2c"),
            ("expect", "100-continue"),
            ("content-length", "3"),
            ("accept", "*/*"),
        ]);
        remove_hop_by_hop(&mut headers);
        let left: Vec<_> = headers.keys().map(HeaderName::as_str).collect();
        assert_eq!(left, ["content-length", "accept"]);
    }

    #[test]
    fn framing_is_chunked_or_a_length_and_never_both() {
        let check = |pairs: &[_]| check_framing(&headers(pairs)).is_ok();
        assert!(check(&[]));
        assert!(check(&[("content-length", "3")]));
        assert!(check(&[("transfer-encoding", "Chunked")]));
        assert!(!check(&[("transfer-encoding", "gzip, chunked")]));
        assert!(!check(&[("transfer-encoding", "chunked"), ("content-length", "3")]));
    }

    #[test]
    fn an_upgrade_needs_both_headers() {
        assert!(upgrade_of(&headers(&[("upgrade", "websocket")])).is_none());
        assert!(upgrade_of(&headers(&[("connection", "upgrade")])).is_none());
        let both = headers(&[("connection", "keep-alive, Upgrade"), ("upgrade", "websocket")]);
        assert_eq!(upgrade_of(&both).unwrap(), "websocket");
    }
}

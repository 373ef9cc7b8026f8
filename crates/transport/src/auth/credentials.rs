//! Finds the token of a request: in `Authorization`; for browsers, among the WebSocket
//! subprotocols; for clients that accept only a URL, in the query.

use std::borrow::Cow;

use hyper::Request;
use hyper::header::{AUTHORIZATION, HeaderMap, HeaderValue, SEC_WEBSOCKET_PROTOCOL};
use percent_encoding::percent_decode_str;

/// Browsers cannot set headers, but can offer subprotocols. The server must then select one of
/// them.
const SUBPROTOCOL: &str = "exec-server.v1";
const SUBPROTOCOL_TOKEN: &str = "bearer.";

/// A request carries different tokens, so its client is ambiguous.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct AmbiguousToken;

/// Returns the token of a request. Equal tokens count as one.
pub(crate) fn find_token<B>(request: &Request<B>) -> Result<Option<Cow<'_, str>>, AmbiguousToken> {
    let headers = request.headers();
    let authorization = headers.get_all(AUTHORIZATION).iter().filter_map(bearer).map(Cow::Borrowed);
    let offered = subprotocols(headers).filter_map(|offer| offer.strip_prefix(SUBPROTOCOL_TOKEN));
    let query = request.uri().query().unwrap_or_default().split('&');
    let query = query.filter_map(|pair| pair.strip_prefix("token="));
    let query = query.map(|token| percent_decode_str(token).decode_utf8_lossy());
    let mut tokens = authorization.chain(offered.map(Cow::Borrowed)).chain(query);
    let token = tokens.next();
    match tokens.all(|other| Some(&other) == token.as_ref()) {
        true => Ok(token),
        false => Err(AmbiguousToken),
    }
}

/// Returns the subprotocol to select, if the client offers it. A subprotocol with a token is never
/// sent back.
pub(crate) fn selected_subprotocol(headers: &HeaderMap) -> Option<HeaderValue> {
    let is_offered = subprotocols(headers).any(|offer| offer == SUBPROTOCOL);
    is_offered.then(|| HeaderValue::from_static(SUBPROTOCOL))
}

fn bearer(value: &HeaderValue) -> Option<&str> {
    let (scheme, token) = value.to_str().ok()?.trim().split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim_start())
}

fn subprotocols(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    let values = headers.get_all(SEC_WEBSOCKET_PROTOCOL).iter();
    values.filter_map(|value| value.to_str().ok()).flat_map(|value| value.split(',').map(str::trim))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(target: &str, headers: &[(&str, &str)]) -> Request<()> {
        let mut request = Request::builder().uri(target);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(()).unwrap()
    }

    #[test]
    fn a_token_is_found_in_every_place() {
        let protocol = "sec-websocket-protocol";
        for (target, headers, expected) in [
            ("/", &[][..], None),
            ("/", &[("authorization", "Bearer abc")], Some("abc")),
            ("/", &[("authorization", "bearer  abc")], Some("abc")),
            ("/", &[("authorization", "Basic abc")], None),
            ("/", &[("authorization", "abc")], None),
            ("/?token=abc", &[], Some("abc")),
            ("/any?a=b&token=a%2Fb%3D&c=d", &[], Some("a/b=")),
            ("/?token=", &[], Some("")),
            ("/?Token=abc&tokens=x", &[], None),
            ("/", &[(protocol, "exec-server.v1, bearer.a.b.c")], Some("a.b.c")),
            ("/", &[(protocol, "exec-server.v1"), (protocol, "bearer.abc")], Some("abc")),
            ("/", &[(protocol, "exec-server.v1")], None),
        ] {
            let request = request(target, headers);
            let found = find_token(&request).unwrap();
            assert_eq!(found.as_deref(), expected, "{target} {headers:?}");
        }
    }

    #[test]
    fn two_different_tokens_are_ambiguous() {
        let both = [("authorization", "Bearer a"), ("sec-websocket-protocol", "bearer.b")];
        assert_eq!(find_token(&request("/", &both)), Err(AmbiguousToken));
        assert_eq!(find_token(&request("/?token=b", &both[..1])), Err(AmbiguousToken));
        assert_eq!(find_token(&request("/?token=a&token=b", &[])), Err(AmbiguousToken));
        let same = request("/?token=a", &both[..1]);
        assert_eq!(find_token(&same).unwrap().as_deref(), Some("a"));
    }

    #[test]
    fn the_token_subprotocol_is_never_selected() {
        let offer = |value: &str| {
            let request = request("/", &[("sec-websocket-protocol", value)]);
            selected_subprotocol(request.headers())
        };
        assert_eq!(offer("exec-server.v1, bearer.abc").unwrap(), "exec-server.v1");
        assert_eq!(offer("bearer.abc,exec-server.v1").unwrap(), "exec-server.v1");
        assert_eq!(offer("bearer.abc"), None);
        assert_eq!(offer("chat"), None);
    }
}

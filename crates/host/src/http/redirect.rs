//! Decides whether a redirect is followed, and what is sent to its target.
//!
//! A redirect sends a request to a target that the caller did not choose. It is followed unless the
//! target would receive data that was not meant for it. In that case the redirect itself is the
//! response, and the caller may decide. The rules for another origin (scheme, host or port):
//!
//! * A request with a value from a variable is not sent at all, since the caller cannot judge a
//!   secret that it does not know.
//! * `Authorization`, `Cookie`, `Proxy-Authorization`, `Host` and a user name in the URL are
//!   removed.
//! * From https to http a request is sent only if it holds no possible secret: it has no body, no
//!   user name or password in its URL, and only well-known headers that contain no secrets. Other
//!   headers may: this module cannot tell an `X-Api-Key` from an `X-Request-Id`.

use reqwest::header::{
    ACCEPT, ACCEPT_ENCODING, ACCEPT_LANGUAGE, AUTHORIZATION, CACHE_CONTROL, CONTENT_ENCODING,
    CONTENT_LANGUAGE, CONTENT_LOCATION, CONTENT_TYPE, COOKIE, HOST, HeaderMap, HeaderName,
    IF_MODIFIED_SINCE, IF_NONE_MATCH, LOCATION, PRAGMA, PROXY_AUTHORIZATION, RANGE, USER_AGENT,
};
use reqwest::{Method, StatusCode, Url};

use super::outgoing::{Outgoing, sendable};

pub const MAX_REDIRECTS: usize = 10;

const BOUND_TO_ORIGIN: [HeaderName; 4] = [AUTHORIZATION, COOKIE, PROXY_AUTHORIZATION, HOST];
const ABOUT_THE_BODY: [HeaderName; 4] =
    [CONTENT_TYPE, CONTENT_ENCODING, CONTENT_LANGUAGE, CONTENT_LOCATION];
const TELLS_NOTHING: [HeaderName; 9] = [
    ACCEPT,
    ACCEPT_ENCODING,
    ACCEPT_LANGUAGE,
    CACHE_CONTROL,
    IF_MODIFIED_SINCE,
    IF_NONE_MATCH,
    PRAGMA,
    RANGE,
    USER_AGENT,
];

/// Returns the next request, or `None` if `answer` is the final response.
pub(super) fn next(sent: &Outgoing, status: StatusCode, answer: &HeaderMap) -> Option<Outgoing> {
    let method = next_method(&sent.method, status)?;
    let location = answer.get(LOCATION)?;
    // Some servers write non-ASCII characters in this header as plain UTF-8.
    let location = std::str::from_utf8(location.as_bytes()).ok()?;
    let url = sendable(sent.url.join(location).ok()?).ok()?;

    let same_origin = sent.url.origin() == url.origin();
    if !same_origin && sent.holds_variable {
        return None;
    }
    let mut next =
        Outgoing { method, url: with_user_of(&sent.url, url, same_origin)?, ..sent.clone() };
    if next.method != sent.method {
        next.body.clear();
        remove(&mut next.headers, &ABOUT_THE_BODY);
    }
    let downgraded = sent.url.scheme() == "https" && next.url.scheme() == "http";
    if downgraded && !tells_nothing(&sent.url, &next) {
        return None;
    }
    if !same_origin {
        remove(&mut next.headers, &BOUND_TO_ORIGIN);
    }
    Some(next)
}

/// Follows the rules of browsers, which servers rely on.
fn next_method(sent: &Method, status: StatusCode) -> Option<Method> {
    match status {
        StatusCode::MOVED_PERMANENTLY | StatusCode::FOUND if *sent == Method::POST => {
            Some(Method::GET)
        }
        StatusCode::SEE_OTHER if *sent != Method::HEAD => Some(Method::GET),
        StatusCode::MOVED_PERMANENTLY
        | StatusCode::FOUND
        | StatusCode::SEE_OTHER
        | StatusCode::TEMPORARY_REDIRECT
        | StatusCode::PERMANENT_REDIRECT => Some(sent.clone()),
        _ => None,
    }
}

/// Within the same origin, sets the user name and password of the caller's URL. Those in the
/// `Location` header are never used.
fn with_user_of(sent: &Url, mut url: Url, same_origin: bool) -> Option<Url> {
    let (user, password) =
        if same_origin { (sent.username(), sent.password()) } else { ("", None) };
    url.set_username(user).ok()?;
    url.set_password(password).ok()?;
    Some(url)
}

fn remove(headers: &mut HeaderMap, names: &[HeaderName]) {
    for name in names {
        headers.remove(name);
    }
}

fn tells_nothing(sent: &Url, next: &Outgoing) -> bool {
    sent.username().is_empty()
        && sent.password().is_none()
        && next.body.is_empty()
        && next.headers.keys().all(|name| TELLS_NOTHING.contains(name))
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use reqwest::header::HeaderValue;

    use super::*;

    fn sent(method: Method, url: &str, headers: &[(HeaderName, &'static str)]) -> Outgoing {
        let pairs = headers.iter().cloned();
        Outgoing {
            method,
            url: Url::parse(url).unwrap(),
            headers: pairs.map(|(name, value)| (name, HeaderValue::from_static(value))).collect(),
            holds_variable: false,
            body: Bytes::new(),
        }
    }

    fn redirected(sent: &Outgoing, status: u16, location: &str) -> Option<Outgoing> {
        let location = HeaderValue::from_bytes(location.as_bytes()).unwrap();
        let answer = [(LOCATION, location)].into_iter().collect();
        next(sent, StatusCode::from_u16(status).unwrap(), &answer)
    }

    fn get(url: &str, headers: &[(HeaderName, &'static str)]) -> Outgoing {
        sent(Method::GET, url, headers)
    }

    #[test]
    fn methods_change_as_in_browsers() {
        let cases = [
            (301, Method::POST, Method::GET),
            (302, Method::POST, Method::GET),
            (303, Method::PUT, Method::GET),
            (303, Method::HEAD, Method::HEAD),
            (301, Method::PUT, Method::PUT),
            (307, Method::POST, Method::POST),
            (308, Method::POST, Method::POST),
        ];
        for (status, method, expected) in cases {
            let mut before =
                sent(method, "http://a/", &[(CONTENT_TYPE, "text/plain"), (ACCEPT, "*/*")]);
            before.body = Bytes::from_static(b"x");
            let after = redirected(&before, status, "/b").unwrap();
            assert_eq!(after.method, expected, "{status}");
            assert_eq!(after.body.is_empty(), before.method != expected, "{status}");
            assert_eq!(after.headers.contains_key(CONTENT_TYPE), before.method == expected);
            assert!(after.headers.contains_key(ACCEPT));
        }
    }

    #[test]
    fn other_responses_are_not_followed() {
        let before = get("http://a/", &[]);
        for status in [200, 201, 300, 304, 305, 404] {
            assert!(redirected(&before, status, "/b").is_none(), "{status}");
        }
        assert!(next(&before, StatusCode::FOUND, &HeaderMap::new()).is_none());
        for location in ["ftp://a/", "http://", "file:///etc/passwd", "javascript:1"] {
            assert!(redirected(&before, 302, location).is_none(), "{location}");
        }
    }

    #[test]
    fn a_location_is_relative_to_the_request_and_loses_its_fragment() {
        let before = get("http://a:81/b/c?d", &[]);
        let url = |location| String::from(redirected(&before, 302, location).unwrap().url);
        assert_eq!(url("e#f"), "http://a:81/b/e");
        assert_eq!(url("//b/"), "http://b/");
        assert_eq!(url("/ü"), "http://a:81/%C3%BC");
    }

    #[test]
    fn a_value_from_a_variable_never_reaches_another_origin() {
        let before = Outgoing { holds_variable: true, ..get("https://a.example/", &[]) };
        for location in [
            "https://b.example/",
            "https://a.example:444/",
            "http://a.example/",
            "//a.example.b.example/",
            "https://sub.a.example/",
        ] {
            assert!(redirected(&before, 307, location).is_none(), "{location}");
        }
        for location in ["/b", "https://a.example:443/b", "https://A.example/b"] {
            let after = redirected(&before, 307, location).unwrap();
            assert!(after.holds_variable, "{location}");
        }
    }

    #[test]
    fn credentials_stay_with_their_origin() {
        let headers = [
            (AUTHORIZATION, "s"),
            (COOKIE, "s"),
            (PROXY_AUTHORIZATION, "s"),
            (HOST, "other"),
            (ACCEPT, "*/*"),
        ];
        let before = get("http://user:s3cret@a/", &headers);
        let elsewhere = redirected(&before, 302, "http://eve:eve@b/").unwrap();
        assert_eq!(elsewhere.headers.keys().collect::<Vec<_>>(), [ACCEPT]);
        assert_eq!(elsewhere.url.as_str(), "http://b/");
        let here = redirected(&before, 302, "http://a/b").unwrap();
        assert_eq!(here.headers.len(), headers.len());
        assert_eq!(here.url.as_str(), "http://user:s3cret@a/b");
    }

    #[test]
    fn possible_secrets_are_not_sent_without_tls() {
        let key = HeaderName::from_static("x-api-key");
        let plain = get("https://a/", &[(ACCEPT, "*/*"), (RANGE, "bytes=0-1")]);
        assert!(redirected(&plain, 302, "http://a/").is_some());
        for before in [
            get("https://a/", &[(AUTHORIZATION, "s")]),
            get("https://a/", &[(key.clone(), "s")]),
            get("https://user@a/", &[]),
            Outgoing { body: Bytes::from_static(b"s"), ..sent(Method::POST, "https://a/", &[]) },
        ] {
            assert!(redirected(&before, 307, "http://a/").is_none(), "{:?}", before.headers);
        }
        assert!(redirected(&get("http://a/", &[(key, "s")]), 307, "https://a/").is_some());
    }
}

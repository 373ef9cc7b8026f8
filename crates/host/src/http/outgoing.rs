//! A checked request, ready to be sent.

use bytes::Bytes;
use reqwest::header::HeaderMap;
use reqwest::{Method, Url};

use super::Variables;
use super::error::BadRequest;
use super::headers::CheckedHeaders;
use super::protected::ProtectedVariables;
use super::request::Request;

/// The longest URL that [`hyper::Uri`] accepts.
const MAX_URL_BYTES: usize = 65_534;
const MAX_METHOD_BYTES: usize = 64;

#[derive(Clone)]
pub(super) struct Outgoing {
    pub(super) method: Method,
    /// Without a fragment.
    pub(super) url: Url,
    pub(super) headers: HeaderMap,
    /// Whether at least one value of `headers` came from a variable of this machine.
    pub(super) holds_variable: bool,
    pub(super) body: Bytes,
}

impl Outgoing {
    pub(super) fn check(
        request: Request,
        variables: &Variables,
        protected: &ProtectedVariables,
    ) -> Result<Self, BadRequest> {
        let Request { method, url, headers, body, timeout: _, redirects: _ } = request;
        let CheckedHeaders { map, holds_variable } =
            CheckedHeaders::check(&headers, body.len(), variables, protected)?;
        let url = Url::parse(&url).map_err(|_| BadRequest::Url)?;
        Ok(Self {
            method: self::method(&method)?,
            url: sendable(url)?,
            headers: map,
            holds_variable,
            body,
        })
    }
}

/// Checks a URL, and removes its fragment, which is never sent.
pub(super) fn sendable(mut url: Url) -> Result<Url, BadRequest> {
    if !matches!(url.scheme(), "http" | "https") {
        return Err(BadRequest::Scheme);
    }
    url.set_fragment(None);
    if url.as_str().len() > MAX_URL_BYTES {
        return Err(BadRequest::UrlTooLong { max: MAX_URL_BYTES });
    }
    // The URL parser accepts hosts that cannot be put into a request.
    if url.as_str().parse::<hyper::Uri>().is_err() {
        return Err(BadRequest::Url);
    }
    Ok(url)
}

/// CONNECT is refused: it would turn the connection into a tunnel, whose traffic this module does
/// not check.
fn method(method: &str) -> Result<Method, BadRequest> {
    match Method::from_bytes(method.as_bytes()) {
        Ok(parsed) if method.len() <= MAX_METHOD_BYTES && parsed != Method::CONNECT => Ok(parsed),
        _ => Err(BadRequest::Method),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(url: &str) -> Result<String, BadRequest> {
        let url = Url::parse(url).map_err(|_| BadRequest::Url)?;
        sendable(url).map(String::from)
    }

    #[test]
    fn fragments_are_removed_and_international_hosts_are_normalised() {
        assert_eq!(url("HTTP://Example.com/a?b#c").unwrap(), "http://example.com/a?b");
        assert_eq!(url("https://bücher.example").unwrap(), "https://xn--bcher-kva.example/");
    }

    #[test]
    fn only_http_and_https_are_accepted() {
        for other in ["file:///etc/passwd", "ftp://a/", "ws://a/", "data:,a"] {
            assert_eq!(url(other), Err(BadRequest::Scheme), "{other}");
        }
    }

    #[test]
    fn invalid_urls_are_refused() {
        for other in ["", "/path", "http://", "http://a b/", "http://a:99999/", "https://{{a}}/"] {
            assert_eq!(url(other), Err(BadRequest::Url), "{other}");
        }
        let long = format!("http://a/{}", "x".repeat(MAX_URL_BYTES));
        assert_eq!(url(&long), Err(BadRequest::UrlTooLong { max: MAX_URL_BYTES }));
    }

    #[test]
    fn methods_are_tokens_and_connect_is_refused() {
        assert_eq!(method("PROPFIND").unwrap(), "PROPFIND");
        for other in ["", "GET /", "A\r\nB", "CONNECT", "ü", &"X".repeat(65)] {
            assert_eq!(method(other), Err(BadRequest::Method), "{other}");
        }
    }
}

//! The operator's proxies: `HTTP_PROXY`, `HTTPS_PROXY`, `ALL_PROXY` and `NO_PROXY`, in upper or
//! lower case.
//!
//! An invalid variable is an error. Connecting directly instead would send traffic around the proxy
//! against the operator's intent.

use reqwest::{NoProxy, Proxy, Url};

use super::Variables;
use super::error::HttpError;

type ForScheme = fn(Url) -> reqwest::Result<Proxy>;

/// The first entry that matches a request is used.
const PROXIES: [(&str, &str, ForScheme); 3] = [
    ("HTTP_PROXY", "http_proxy", Proxy::http),
    ("HTTPS_PROXY", "https_proxy", Proxy::https),
    ("ALL_PROXY", "all_proxy", Proxy::all),
];

pub(super) fn proxies(variables: &Variables) -> Result<Vec<Proxy>, HttpError> {
    let value = |capitals, small| {
        let values = [capitals, small].into_iter().filter_map(variables);
        values.map(|value| value.to_string_lossy().into_owned()).find(|value| !value.is_empty())
    };
    let exceptions = value("NO_PROXY", "no_proxy").and_then(|list| NoProxy::from_string(&list));
    let mut proxies = Vec::new();
    for (variable, small, for_scheme) in PROXIES {
        let Some(value) = value(variable, small) else { continue };
        let proxy = proxy_url(&value).and_then(|url| for_scheme(url).ok());
        let proxy = proxy.ok_or(HttpError::ProxySetting { variable })?;
        proxies.push(proxy.no_proxy(exceptions.clone()));
    }
    Ok(proxies)
}

/// `HOST:PORT` means `http://HOST:PORT`.
fn proxy_url(text: &str) -> Option<Url> {
    let url = match text.contains("://") {
        true => Url::parse(text),
        false => Url::parse(&format!("http://{text}")),
    };
    let url = url.ok().filter(Url::has_host)?;
    matches!(url.scheme(), "http" | "https" | "socks4" | "socks4a" | "socks5" | "socks5h")
        .then_some(url)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(set: &[(&str, &str)]) -> Result<usize, HttpError> {
        let set: Vec<(String, String)> =
            set.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
        proxies(&move |name: &str| {
            set.iter().find(|(set, _)| set == name).map(|(_, value)| value.into())
        })
        .map(|proxies| proxies.len())
    }

    #[test]
    fn each_variable_gives_one_proxy_in_either_case_and_none_if_empty() {
        assert_eq!(count(&[]).unwrap(), 0);
        assert_eq!(count(&[("HTTP_PROXY", ""), ("NO_PROXY", "a")]).unwrap(), 0);
        assert_eq!(count(&[("HTTP_PROXY", ""), ("http_proxy", "p:1")]).unwrap(), 1);
        assert_eq!(count(&[("HTTP_PROXY", "http://p:1"), ("http_proxy", "p:1")]).unwrap(), 1);
        assert_eq!(
            count(&[("https_proxy", "https://p"), ("ALL_PROXY", "socks5h://p")]).unwrap(),
            2
        );
    }

    #[test]
    fn an_invalid_proxy_is_an_error_that_does_not_repeat_it() {
        for value in ["ftp://user:s3cret@p", "http://", "http://user:s3cret@p:99999", "s3cret p"] {
            let error = count(&[("ALL_PROXY", value)]).unwrap_err();
            let printed = format!("{error} {error:?}");
            assert!(printed.contains("ALL_PROXY") && !printed.contains("s3cret"), "{printed}");
        }
    }
}

//! The URL of a server, as users write it. A query may contain a token, so no query is printed.

use std::fmt;
use std::net::Ipv6Addr;
use std::path::{Path, PathBuf};
use std::str::FromStr;

const WS: Scheme = Scheme { is_tls: false, default_port: 80 };
const WSS: Scheme = Scheme { is_tls: true, default_port: 443 };

#[derive(Clone, Copy)]
struct Scheme {
    is_tls: bool,
    default_port: u16,
}

/// The URL of a server: `ws://HOST[:PORT][/PATH][?QUERY]`, `wss://…` or `unix:///PATH`.
///
/// Printed without its query.
#[derive(Clone, PartialEq, Eq)]
pub struct DialUrl {
    pub(super) target: Target,
    printed: String,
}

#[derive(Clone, PartialEq, Eq)]
pub(super) enum Target {
    Tcp {
        /// A name or an address, without the brackets of an IPv6 address.
        host: String,
        port: u16,
        /// The value of the `Host` header.
        authority: String,
        /// The target of the request line.
        path_and_query: String,
        is_tls: bool,
    },
    Unix(PathBuf),
}

/// No `url` here contains a query, a user name or a password.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DialUrlParseError {
    #[error(
        "{url:?} is not a server URL; expected wss://HOST:PORT[/PATH], ws://HOST:PORT[/PATH] or \
         unix:///PATH"
    )]
    UnknownForm { url: String },
    #[error("{url:?} was given with a user name; remove it and use a bearer token instead")]
    UserName { url: String },
    #[error("{url:?}: {host:?} is neither a host name nor an IP address; expected wss://HOST:PORT")]
    Host { url: String, host: String },
    #[error("{url:?}: {port:?} is not a port; expected 1 to 65535")]
    Port { url: String, port: String },
    #[error("{url:?} was given with a fragment; remove it, or write \"#\" as %23")]
    Fragment { url: String },
    #[error("{url:?} was given with {character:?}, which must be percent-encoded")]
    Character { url: String, character: char },
    /// Without the character: the query may hold a token.
    #[error("{url:?} was given with a query in which some character must be percent-encoded")]
    Query { url: String },
    #[error("{url:?} does not name a socket by its absolute path; expected unix:///PATH")]
    RelativeUnixPath { url: String },
}

impl FromStr for DialUrl {
    type Err = DialUrlParseError;

    fn from_str(url: &str) -> Result<Self, Self::Err> {
        let printed = without_secrets(url);
        let target = if let Some(path) = url.strip_prefix("unix://") {
            unix(path, &printed)
        } else if let Some(address) = url.strip_prefix("ws://") {
            tcp(WS, address, &printed)
        } else if let Some(address) = url.strip_prefix("wss://") {
            tcp(WSS, address, &printed)
        } else {
            Err(DialUrlParseError::UnknownForm { url: printed.clone() })
        };
        let target = target.map_err(|error| match url.split_once(['?', '#']) {
            // The user name or the password may contain one of these characters, so none of the URL
            // is printed.
            Some((_, rest)) if rest.contains('@') => {
                DialUrlParseError::UnknownForm { url: "…".to_owned() }
            }
            _ => error,
        })?;
        Ok(Self { target, printed })
    }
}

impl DialUrl {
    #[must_use]
    pub fn is_tls(&self) -> bool {
        matches!(self.target, Target::Tcp { is_tls: true, .. })
    }
}

impl fmt::Display for DialUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.printed)
    }
}

impl fmt::Debug for DialUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("DialUrl").field(&self.printed).finish()
    }
}

/// Removes the query, fragment, user name and password. Also works on invalid URLs.
fn without_secrets(url: &str) -> String {
    let (url, _) = url.split_once(['?', '#']).unwrap_or((url, ""));
    let (scheme, rest) = match url.find("://") {
        Some(colon) => url.split_at(colon + "://".len()),
        None => ("", url),
    };
    let authority = &rest[..rest.find('/').unwrap_or(rest.len())];
    // A port that is not numeric may be part of a password with a slash.
    let port = authority.rsplit_once(':').map_or("", |(_, port)| port);
    let secrets_end = match port.bytes().all(|byte| byte.is_ascii_digit()) {
        true => authority.rfind('@'),
        false => rest.rfind('@'),
    };
    format!("{scheme}{}", &rest[secrets_end.map_or(0, |at| at + 1)..])
}

fn unix(path: &str, printed: &str) -> Result<Target, DialUrlParseError> {
    if path == "/" || !Path::new(path).is_absolute() {
        return Err(DialUrlParseError::RelativeUnixPath { url: printed.to_owned() });
    }
    Ok(Target::Unix(path.into()))
}

fn tcp(scheme: Scheme, address: &str, printed: &str) -> Result<Target, DialUrlParseError> {
    let url = || printed.to_owned();
    let (authority, path) = match address.find(['/', '?', '#']) {
        Some(end) => address.split_at(end),
        None => (address, ""),
    };
    if authority.contains('@') {
        return Err(DialUrlParseError::UserName { url: url() });
    }
    if path.contains('#') {
        return Err(DialUrlParseError::Fragment { url: url() });
    }
    // A line break would end the request line and add headers.
    let forbidden = |character: &char| !character.is_ascii_graphic();
    if let Some(character) = path.chars().take_while(|next| *next != '?').find(forbidden) {
        return Err(DialUrlParseError::Character { url: url(), character });
    }
    if path.chars().any(|character| forbidden(&character)) {
        return Err(DialUrlParseError::Query { url: url() });
    }
    let (host, port) = split_port(authority);
    let bracketed = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let is_host = match bracketed {
        Some(address) => address.parse::<Ipv6Addr>().is_ok(),
        None => is_host_name(host),
    };
    if !is_host {
        return Err(DialUrlParseError::Host { url: url(), host: host.to_owned() });
    }
    let port = match port {
        None => scheme.default_port,
        Some(text) => port_number(text)
            .ok_or_else(|| DialUrlParseError::Port { url: url(), port: text.to_owned() })?,
    };
    let root = if path.starts_with('/') { "" } else { "/" };
    Ok(Target::Tcp {
        host: bracketed.unwrap_or(host).to_owned(),
        port,
        authority: authority.to_owned(),
        path_and_query: format!("{root}{path}"),
        is_tls: scheme.is_tls,
    })
}

fn split_port(authority: &str) -> (&str, Option<&str>) {
    match authority.rsplit_once(':') {
        // Colons between brackets belong to the address.
        Some((host, port)) if !port.ends_with(']') => (host, Some(port)),
        _ => (authority, None),
    }
}

fn is_host_name(host: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
    !host.is_empty() && host.bytes().all(is_part)
}

fn port_number(text: &str) -> Option<u16> {
    // `parse` accepts a plus sign.
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|port| is_number && *port != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_parses() {
        for (url, expected) in [
            ("ws://box", ("box", 80, "box", "/")),
            ("ws://box:8080", ("box", 8080, "box:8080", "/")),
            ("ws://box:8080/", ("box", 8080, "box:8080", "/")),
            (
                "ws://my_box.example:1/a/b?c=d",
                ("my_box.example", 1, "my_box.example:1", "/a/b?c=d"),
            ),
            ("ws://box?token=x/y", ("box", 80, "box", "/?token=x/y")),
            ("ws://box/?token=a@b", ("box", 80, "box", "/?token=a@b")),
            ("ws://127.0.0.1:9", ("127.0.0.1", 9, "127.0.0.1:9", "/")),
            ("ws://[::1]", ("::1", 80, "[::1]", "/")),
            ("wss://box", ("box", 443, "box", "/")),
            ("wss://box:7777/rpc", ("box", 7777, "box:7777", "/rpc")),
            ("ws://[2001:db8::1]:9/rpc", ("2001:db8::1", 9, "[2001:db8::1]:9", "/rpc")),
        ] {
            let (host, port, authority, path_and_query) = expected;
            let expected = Target::Tcp {
                host: host.into(),
                port,
                authority: authority.into(),
                path_and_query: path_and_query.into(),
                is_tls: url.starts_with("wss:"),
            };
            assert!(url.parse::<DialUrl>().unwrap().target == expected, "{url}");
        }
        let unix = "unix:///run/user/1000/x@y.sock".parse::<DialUrl>().unwrap();
        assert!(unix.target == Target::Unix("/run/user/1000/x@y.sock".into()));
        assert_eq!(unix.to_string(), "unix:///run/user/1000/x@y.sock");
    }

    #[test]
    fn errors_state_the_reason() {
        for (url, fragment) in [
            ("", "expected wss://HOST:PORT"),
            ("box:8080", "expected wss://HOST:PORT"),
            ("https://box", "expected wss://HOST:PORT"),
            ("wss://box:0", "\"0\" is not a port"),
            ("ws://", "\"\" is neither a host name"),
            ("ws://:80", "\"\" is neither a host name"),
            ("ws:///path", "\"\" is neither a host name"),
            ("ws://bo x:80", "\"bo x\" is neither a host name"),
            ("ws://::1:80", "\"::1\" is neither a host name"),
            ("ws://[::1", "neither a host name"),
            ("ws://[box]:80", "\"[box]\" is neither a host name"),
            ("ws://box:", "\"\" is not a port"),
            ("ws://box:0", "\"0\" is not a port"),
            ("ws://box:+80", "\"+80\" is not a port"),
            ("ws://box:65536/x", "\"65536\" is not a port"),
            ("ws://box/a b", "' ', which must be percent-encoded"),
            ("ws://box/\r\nEvil: yes", "'\\r', which must be percent-encoded"),
            ("ws://box/?a=ü", "a query in which some character must be percent-encoded"),
            ("ws://box/a#b", "fragment"),
            ("ws://box/a b#c", "fragment"),
            ("unix://run/x.sock", "absolute path"),
            ("unix://", "absolute path"),
            ("unix:///", "absolute path"),
        ] {
            let error = url.parse::<DialUrl>().unwrap_err().to_string();
            assert!(error.contains(fragment), "{url}: {error}");
            assert!(!error.contains('\n'));
        }
    }

    #[test]
    fn no_secret_is_printed() {
        for url in [
            "ws://box:8080/rpc?token=SECRET",
            "ws://box?token=SECRET",
            "ws://box/#SECRET",
            "ws://me:SECRET@box",
            "ws://me:SECRET#x@box",
            "ws://me:SECRET?x@box",
            "ws://me:a/SECRET@box",
            "ws://box:SECRET@x?SECRET",
            "wss://me:SECRET@box/?token=SECRET",
            "wss://box/?token=SECRET",
            "box?token=SECRET",
            "me:SECRET@box",
            "unix://x?token=SECRET",
            "ws://box/a b?token=SECRET",
        ] {
            match url.parse::<DialUrl>() {
                Ok(parsed) => {
                    let printed = format!("{parsed} {parsed:?}");
                    assert!(!printed.contains("SECRET"), "{printed}");
                    assert!(printed.contains("://box"), "{printed}");
                }
                Err(error) => {
                    let printed = format!("{error} {error:?}");
                    assert!(!printed.contains("SECRET"), "{printed}");
                }
            }
        }
    }
}

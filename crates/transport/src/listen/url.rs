//! Listen URLs, as users write them.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

/// Loopback, on a port that the kernel chooses.
pub const DEFAULT_LISTEN_URL: &str = "ws://127.0.0.1:0";

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ListenUrl {
    /// `ws://IP:PORT`
    WebSocket(SocketAddr),
    /// `wss://IP:PORT`
    SecureWebSocket(SocketAddr),
    /// `unix:///PATH`
    Unix(PathBuf),
    /// `systemd` or `systemd:NAME`: the sockets passed by the service manager, or those with this
    /// name. TCP sockets become `wss://` with a certificate, and `ws://` without.
    Systemd(Option<String>),
    /// `stdio` or `stdio://`
    Stdio,
    /// `off`
    Off,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ExecServerListenUrlParseError {
    #[error(
        "{url:?} is not a listen URL; expected ws://IP:PORT, wss://IP:PORT, unix:///PATH, systemd, \
         systemd:NAME, stdio or off"
    )]
    UnknownForm { url: String },
    #[error("{url:?} has no port; write {scheme}{host}:PORT, or port 0 for any free port")]
    MissingPort { url: String, scheme: &'static str, host: String },
    #[error("{url:?}: {host:?} is not an IP address; write one, such as 127.0.0.1")]
    HostName { url: String, host: String },
    #[error("{url:?}: {port:?} is not a port; expected 0 to 65535")]
    Port { url: String, port: String },
    #[error("{url:?} has a path, query or fragment; remove it: a listener serves every path")]
    Path { url: String },
    #[error("{url:?} does not name a socket by its absolute path; expected unix:///PATH")]
    RelativeUnixPath { url: String },
    #[error(
        "{url:?} does not name a socket; expected systemd:NAME, with the FileDescriptorName of a socket unit"
    )]
    SocketName { url: String },
}

impl FromStr for ListenUrl {
    type Err = ExecServerListenUrlParseError;

    fn from_str(url: &str) -> Result<Self, Self::Err> {
        if let "stdio" | "stdio://" = url {
            return Ok(Self::Stdio);
        }
        if url == "off" {
            return Ok(Self::Off);
        }
        let error_url = || url.to_owned();
        if url == "systemd" {
            return Ok(Self::Systemd(None));
        }
        if let Some(name) = url.strip_prefix("systemd:") {
            return match is_descriptor_name(name) {
                true => Ok(Self::Systemd(Some(name.to_owned()))),
                false => Err(ExecServerListenUrlParseError::SocketName { url: error_url() }),
            };
        }
        if let Some(path) = url.strip_prefix("unix://") {
            return match path {
                "/" => Err(ExecServerListenUrlParseError::RelativeUnixPath { url: error_url() }),
                _ if path.starts_with('/') => Ok(Self::Unix(path.into())),
                _ => Err(ExecServerListenUrlParseError::RelativeUnixPath { url: error_url() }),
            };
        }
        if let Some(address) = url.strip_prefix("ws://") {
            return socket_address(url, "ws://", address).map(Self::WebSocket);
        }
        match url.strip_prefix("wss://") {
            Some(address) => socket_address(url, "wss://", address).map(Self::SecureWebSocket),
            None => Err(ExecServerListenUrlParseError::UnknownForm { url: error_url() }),
        }
    }
}

/// Systemd's rules for descriptor names, but without spaces, and without a leading `//`.
fn is_descriptor_name(name: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_graphic() && byte != b':';
    (1..=255).contains(&name.len()) && name.bytes().all(is_part) && !name.starts_with("//")
}

fn socket_address(
    url: &str,
    scheme: &'static str,
    address: &str,
) -> Result<SocketAddr, ExecServerListenUrlParseError> {
    let address = address.strip_suffix('/').unwrap_or(address);
    if let Ok(address) = address.parse() {
        return Ok(address);
    }
    let url = url.to_owned();
    if address.contains(['/', '?', '#']) {
        return Err(ExecServerListenUrlParseError::Path { url });
    }
    // In a bare IPv6 address, the last colon does not precede a port.
    let (host, port) = match address.rsplit_once(':') {
        Some((host, port)) if !address.ends_with(']') && address.parse::<IpAddr>().is_err() => {
            (host, Some(port))
        }
        _ => (address, None),
    };
    let is_ip = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>().is_ok();
    let host = host.to_owned();
    Err(match port {
        _ if host.is_empty() => ExecServerListenUrlParseError::UnknownForm { url },
        _ if !is_ip => ExecServerListenUrlParseError::HostName { url, host },
        None | Some("") => ExecServerListenUrlParseError::MissingPort { url, scheme, host },
        Some(port) if port.parse::<u16>().is_err() => {
            ExecServerListenUrlParseError::Port { url, port: port.to_owned() }
        }
        Some(_) => ExecServerListenUrlParseError::UnknownForm { url },
    })
}

impl fmt::Display for ListenUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::WebSocket(address) => write!(f, "ws://{address}"),
            Self::SecureWebSocket(address) => write!(f, "wss://{address}"),
            Self::Unix(path) => write!(f, "unix://{}", path.display()),
            Self::Systemd(None) => f.write_str("systemd"),
            Self::Systemd(Some(name)) => write!(f, "systemd:{name}"),
            Self::Stdio => f.write_str("stdio"),
            Self::Off => f.write_str("off"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_round_trips() {
        for (text, printed) in [
            (DEFAULT_LISTEN_URL, "ws://127.0.0.1:0"),
            ("ws://127.0.0.1:8080/", "ws://127.0.0.1:8080"),
            ("ws://[::1]:80", "ws://[::1]:80"),
            ("wss://0.0.0.0:7777", "wss://0.0.0.0:7777"),
            ("unix:///run/x.sock", "unix:///run/x.sock"),
            ("systemd", "systemd"),
            ("systemd:exec-server.socket", "systemd:exec-server.socket"),
            ("stdio", "stdio"),
            ("stdio://", "stdio"),
            ("off", "off"),
        ] {
            assert_eq!(text.parse::<ListenUrl>().unwrap().to_string(), printed);
        }
    }

    #[test]
    fn errors_state_the_reason() {
        for (text, fragment) in [
            ("", "is not a listen URL"),
            ("http://127.0.0.1:1", "is not a listen URL"),
            ("ws://:80", "is not a listen URL"),
            ("wss://box:1", "\"box\" is not an IP address"),
            ("wss://127.0.0.1", "has no port; write wss://127.0.0.1:PORT"),
            ("ws://localhost:80", "\"localhost\" is not an IP address"),
            ("ws://localhost", "\"localhost\" is not an IP address"),
            ("ws://127.0.0.1", "has no port; write ws://127.0.0.1:PORT"),
            ("ws://127.0.0.1:", "has no port"),
            ("ws://[::1]", "has no port; write ws://[::1]:PORT"),
            ("ws://127.0.0.1:99999", "\"99999\" is not a port"),
            ("ws://127.0.0.1:80/rpc", "has a path, query or fragment"),
            ("ws://127.0.0.1:80?token=x", "has a path, query or fragment"),
            ("systemd:", "does not name a socket"),
            ("systemd://name", "does not name a socket"),
            ("systemd:a:b", "does not name a socket"),
            ("unix://run/x.sock", "absolute path"),
            ("unix://", "absolute path"),
            ("unix:///", "absolute path"),
        ] {
            let error = text.parse::<ListenUrl>().unwrap_err().to_string();
            assert!(error.contains(fragment), "{text}: {error}");
            assert!(!error.contains('\n'));
        }
    }
}

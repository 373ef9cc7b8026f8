//! The sockets of `--listen`: bound here, or passed by the service manager.

use std::net::{SocketAddr, TcpListener};

use exec_server_host::service_manager::{ListeningSocket, PassedSocket, PassedSocketsError};
use exec_server_transport::{BindError, ListenUrl, Listener, ListenerOptions};

/// Why a listener has no socket.
#[derive(Debug, thiserror::Error)]
pub enum ActivationError {
    #[error(
        "--listen {url}: {source}; start the service through a .socket unit, or give an address to \
         listen on"
    )]
    Unavailable { url: String, source: PassedSocketsError },
    #[error("--listen {url}: the service manager passed no socket with that name, only: {names}")]
    UnknownName { url: String, names: String },
    #[error("--listen {url}: other listeners already serve all of its sockets")]
    Taken { url: String },
    #[error(
        "--listen {url}: the rendezvous serves one TCP socket; the service manager passed {count}"
    )]
    Several { url: String, count: usize },
    #[error("--listen {url}: the socket {name:?} is a Unix socket; the rendezvous serves TCP")]
    NotTcp { url: String, name: String },
}

#[derive(Debug)]
pub(super) enum Endpoint {
    Address(ListenUrl),
    Passed(PassedSocket),
}

impl Endpoint {
    /// Resolves the endpoints in the order of the URLs; one URL may stand for several sockets.
    pub(super) fn all(
        urls: Vec<ListenUrl>,
        passed: Result<Vec<PassedSocket>, PassedSocketsError>,
    ) -> Result<Vec<Self>, ActivationError> {
        let mut passed = PassedSockets::new(passed);
        let mut endpoints = Vec::new();
        for url in urls {
            match &url {
                ListenUrl::Systemd(name) => {
                    let sockets = passed.take(name.as_deref())?;
                    endpoints.extend(sockets.into_iter().map(Self::Passed));
                }
                _ => endpoints.push(Self::Address(url)),
            }
        }
        passed.warn_of_rest();
        Ok(endpoints)
    }

    pub(super) async fn listen(self, options: ListenerOptions) -> Result<Listener, BindError> {
        match self {
            Self::Address(url) => Listener::bind(&url, options).await,
            Self::Passed(PassedSocket { socket: ListeningSocket::Tcp(socket), .. }) => {
                Listener::from_tcp(socket, options)
            }
            Self::Passed(PassedSocket { socket: ListeningSocket::Unix(socket), .. }) => {
                Listener::from_unix(socket, options)
            }
        }
    }

    pub(super) fn tls_address(&self) -> Option<SocketAddr> {
        match self {
            Self::Address(ListenUrl::SecureWebSocket(address)) => Some(*address),
            Self::Passed(PassedSocket { socket: ListeningSocket::Tcp(socket), .. }) => {
                socket.local_addr().ok()
            }
            _ => None,
        }
    }
}

/// Returns the socket of a rendezvous.
pub(super) fn only_tcp_socket(
    name: Option<&str>,
    passed: Result<Vec<PassedSocket>, PassedSocketsError>,
) -> Result<TcpListener, ActivationError> {
    let url = || ListenUrl::Systemd(name.map(str::to_owned)).to_string();
    let mut passed = PassedSockets::new(passed);
    let mut sockets = passed.take(name)?;
    passed.warn_of_rest();
    match (sockets.pop(), sockets.len()) {
        (Some(PassedSocket { socket: ListeningSocket::Tcp(socket), .. }), 0) => Ok(socket),
        (Some(PassedSocket { name, .. }), 0) => Err(ActivationError::NotTcp { url: url(), name }),
        (_, others) => Err(ActivationError::Several { url: url(), count: others + 1 }),
    }
}

/// Warns about sockets that no `--listen systemd` serves: their clients would wait forever.
pub(super) fn warn_of_unused(passed: Result<Vec<PassedSocket>, PassedSocketsError>) {
    PassedSockets::new(passed).warn_of_rest();
}

struct PassedSockets {
    names: Vec<String>,
    rest: Result<Vec<PassedSocket>, PassedSocketsError>,
}

impl PassedSockets {
    fn new(rest: Result<Vec<PassedSocket>, PassedSocketsError>) -> Self {
        let names = rest.iter().flatten().map(|socket| socket.name.clone()).collect();
        Self { names, rest }
    }

    /// Takes the sockets with this name, or all. The result is never empty.
    fn take(&mut self, name: Option<&str>) -> Result<Vec<PassedSocket>, ActivationError> {
        let url = || ListenUrl::Systemd(name.map(str::to_owned)).to_string();
        let rest = self.rest.as_mut().map_err(|source| ActivationError::Unavailable {
            url: url(),
            source: source.clone(),
        })?;
        let is_wanted = |other: &str| name.is_none_or(|name| name == other);
        let (wanted, others) =
            std::mem::take(rest).into_iter().partition(|socket| is_wanted(&socket.name));
        *rest = others;
        if !self.names.iter().any(|name| is_wanted(name)) {
            return Err(match self.names.is_empty() {
                true => ActivationError::Unavailable {
                    url: url(),
                    source: PassedSocketsError::NonePassed,
                },
                false => ActivationError::UnknownName { url: url(), names: self.names.join(", ") },
            });
        }
        match wanted {
            wanted if wanted.is_empty() => Err(ActivationError::Taken { url: url() }),
            wanted => Ok(wanted),
        }
    }

    fn warn_of_rest(&self) {
        for PassedSocket { name, .. } in self.rest.iter().flatten() {
            tracing::warn!(
                "the service manager passed the socket {name:?}, which no listener serves; \
                 add --listen systemd:{name}"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sockets(names: &[&str]) -> Result<Vec<PassedSocket>, PassedSocketsError> {
        Ok(names
            .iter()
            .map(|name| PassedSocket {
                name: (*name).to_owned(),
                socket: ListeningSocket::Tcp(TcpListener::bind("127.0.0.1:0").unwrap()),
            })
            .collect())
    }

    fn endpoints(
        urls: &[&str],
        passed: Result<Vec<PassedSocket>, PassedSocketsError>,
    ) -> Result<Vec<String>, String> {
        let urls = urls.iter().map(|url| url.parse().unwrap()).collect();
        let endpoints = Endpoint::all(urls, passed).map_err(|error| error.to_string())?;
        let name = |endpoint: Endpoint| match endpoint {
            Endpoint::Address(url) => url.to_string(),
            Endpoint::Passed(socket) => socket.name,
        };
        Ok(endpoints.into_iter().map(name).collect())
    }

    #[test]
    fn a_listener_gets_the_sockets_of_its_name() {
        let taken = endpoints(&["unix:///x", "systemd"], sockets(&["a", "b", "a"])).unwrap();
        assert_eq!(taken, ["unix:///x", "a", "b", "a"]);
        let taken = endpoints(&["systemd:b", "systemd:a"], sockets(&["a", "b", "a"])).unwrap();
        assert_eq!(taken, ["b", "a", "a"]);
        assert_eq!(endpoints(&["ws://127.0.0.1:0"], sockets(&["a"])).unwrap().len(), 1);
    }

    #[test]
    fn a_listener_without_a_socket_is_an_error() {
        for (urls, passed, said) in [
            (vec!["systemd:c"], sockets(&["a", "b"]), "only: a, b"),
            (vec!["systemd", "systemd:a"], sockets(&["a"]), "other listeners already serve"),
            (vec!["systemd"], sockets(&[]), "no sockets were passed"),
            (vec!["systemd"], Err(PassedSocketsError::NonePassed), ".socket unit"),
        ] {
            let error = endpoints(&urls, passed).unwrap_err();
            assert!(error.contains(said), "{error}");
        }
        let error = only_tcp_socket(None, sockets(&["a", "b"])).unwrap_err().to_string();
        assert!(error.contains("passed 2"), "{error}");
        assert!(only_tcp_socket(Some("b"), sockets(&["a", "b"])).is_ok());
    }
}

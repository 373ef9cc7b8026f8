//! Listening for WebSocket clients on TCP and on Unix sockets, and answering health checks.
//!
//! A background task accepts, judges and upgrades; what comes out are finished connections. It goes
//! on for as long as the [`Listener`] lives, so that a server that is shutting down still answers
//! `/healthz`; new clients are turned away once its [`Readiness`] says that it drains.

mod accept;
mod gate;
mod unix;
mod url;

use std::future;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::connection::{Connection, Peer};
use crate::websocket::KeepAlive;
use accept::{BoundSocket, Handshakes, Reception, accept_all};
use gate::{Gate, HostRule};
use unix::SocketFile;
pub use url::{DEFAULT_LISTEN_URL, ExecServerListenUrlParseError, ListenUrl};

/// Connections that are ready and not yet taken; beyond that, handshakes wait.
const READY_CONNECTIONS: usize = 16;

#[derive(Debug, Clone)]
pub struct ListenerOptions {
    /// `Origin` values that may connect; by default a request with any `Origin` is refused.
    pub allowed_origins: Vec<String>,
    /// `Host` names beyond the loopback ones.
    pub allowed_hosts: Vec<String>,
    /// Whether a peer may open a WebSocket; 403 otherwise. Health checks are answered to all. It is
    /// called on a thread of the runtime, so it must not block for long.
    pub admits: fn(&Peer) -> bool,
    pub keep_alive: KeepAlive,
    /// From `accept` to the end of the upgrade.
    pub handshake_timeout: Duration,
    /// Handshakes at once. One more, and the oldest is dropped: sockets that say nothing cannot keep
    /// out one that does, nor use up the descriptors.
    pub max_handshakes: usize,
}

impl Default for ListenerOptions {
    fn default() -> Self {
        Self {
            allowed_origins: Vec::new(),
            allowed_hosts: Vec::new(),
            admits: |_| true,
            keep_alive: KeepAlive::default(),
            handshake_timeout: Duration::from_secs(10),
            max_handshakes: 512,
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum BindError {
    #[error(
        "refusing to listen on {address}: beyond loopback a listener needs authentication, which a \
         later version brings; listen on 127.0.0.1 and forward the port, for example with ssh -L"
    )]
    NeedsAuthentication { address: SocketAddr },
    #[error("cannot listen on {address}")]
    Tcp { address: SocketAddr, source: io::Error },
    #[error("cannot listen on {path}", path = path.display())]
    Unix { path: PathBuf, source: io::Error },
    #[error("{path} is already in use by another server", path = path.display())]
    AlreadyInUse { path: PathBuf },
    #[error("{path} exists and is not a socket", path = path.display())]
    NotASocket { path: PathBuf },
    #[error("{url} is not an address to listen on")]
    NotAnAddress { url: ListenUrl },
}

/// A bound socket whose clients are taken with [`accept`](Self::accept). Dropping it closes the
/// socket and every handshake in progress, and leaves finished connections alone.
#[derive(Debug)]
pub struct Listener {
    url: ListenUrl,
    readiness: Readiness,
    connections: mpsc::Receiver<Connection>,
    acceptor: JoinHandle<()>,
    _file: Option<SocketFile>,
}

impl Listener {
    /// Binds and starts to serve. Needs a runtime.
    pub async fn bind(url: &ListenUrl, options: ListenerOptions) -> Result<Self, BindError> {
        let (socket, url, hosts, file) = match url {
            ListenUrl::WebSocket(address) => {
                let (listener, bound) = listen_on_loopback(*address).await?;
                let allowed = options.allowed_hosts;
                let hosts = HostRule::Loopback { address: bound.ip(), allowed };
                (BoundSocket::Tcp(listener), ListenUrl::WebSocket(bound), hosts, None)
            }
            ListenUrl::Unix(path) => {
                let (listener, file) = unix::listen_at(path)?;
                (BoundSocket::Unix(listener), url.clone(), HostRule::Any, Some(file))
            }
            ListenUrl::Stdio | ListenUrl::Off => {
                return Err(BindError::NotAnAddress { url: url.clone() });
            }
        };
        let readiness = Readiness::default();
        let (sender, connections) = mpsc::channel(READY_CONNECTIONS);
        let reception = Reception {
            gate: Gate {
                allowed_origins: options.allowed_origins,
                hosts,
                readiness: readiness.clone(),
            },
            admits: options.admits,
            keep_alive: options.keep_alive,
            handshake_timeout: options.handshake_timeout,
            connections: sender,
        };
        let handshakes = Handshakes::at_most(options.max_handshakes);
        let acceptor = tokio::spawn(accept_all(socket, handshakes, Arc::new(reception)));
        Ok(Self { url, readiness, connections, acceptor, _file: file })
    }

    /// Where clients find us, with the port that was chosen.
    pub fn local_url(&self) -> &ListenUrl {
        &self.url
    }

    pub fn readiness(&self) -> Readiness {
        self.readiness.clone()
    }

    /// The next client whose handshake is done. Cancel-safe.
    pub async fn accept(&mut self) -> Connection {
        match self.connections.recv().await {
            Some(connection) => connection,
            // The acceptor ends only with its runtime, and we with it.
            None => future::pending().await,
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.acceptor.abort();
    }
}

async fn listen_on_loopback(address: SocketAddr) -> Result<(TcpListener, SocketAddr), BindError> {
    if !address.ip().is_loopback() {
        return Err(BindError::NeedsAuthentication { address });
    }
    let failed = |source| BindError::Tcp { address, source };
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    let bound = listener.local_addr().map_err(failed)?;
    Ok((listener, bound))
}

/// Whether new clients are welcome: yes, until [`drain`](Self::drain).
#[derive(Debug, Clone, Default)]
pub struct Readiness {
    draining: Arc<AtomicBool>,
}

impl Readiness {
    /// From now on `/readyz` answers 503 and upgrades are refused.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::Relaxed);
    }

    pub fn is_ready(&self) -> bool {
        !self.draining.load(Ordering::Relaxed)
    }
}

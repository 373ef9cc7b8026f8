//! Listens for WebSocket clients on TCP and Unix sockets, and answers health checks.
//!
//! A background task accepts, judges and upgrades sockets, and yields finished connections. It runs
//! as long as the [`Listener`] lives, so that a server that is shutting down still answers
//! `/healthz`; once its [`Readiness`] is draining, new clients are refused.

mod accept;
mod admission;
mod gate;
mod handshakes;
mod http;
mod monitor;
mod unix;
mod url;

use std::future;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use exec_server_protocol::{Principal, Subject};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::auth::{Authenticator, FailedAttempts};
use crate::connection::{Connection, Peer};
use crate::subject_limits::{SubjectLimits, SubjectPermit};
use crate::tls::TlsServer;
use crate::websocket::KeepAlive;
use accept::{BoundSocket, Reception, accept_all};
use admission::{ClientAdmission, Identification};
use gate::{Gate, HostRule};
use handshakes::Handshakes;
pub use http::{ClientAddress, HttpHandler, HttpListener, HttpListenerOptions, HttpReply};
pub use monitor::{ListenerMonitor, Refusal, RefusalReason};
use unix::SocketFile;
pub use url::{DEFAULT_LISTEN_URL, ExecServerListenUrlParseError, ListenUrl};

/// Finished connections that may wait for `accept`. Beyond that, handshakes wait.
const READY_CONNECTIONS: usize = 16;

#[derive(Debug, Clone)]
pub struct ListenerOptions {
    /// Allowed `Origin` values. By default, a request with any `Origin` is refused.
    pub allowed_origins: Vec<String>,
    /// `Host` names allowed in addition to the bound address and, on loopback, its usual names.
    /// Beyond loopback, an empty list allows every name.
    pub allowed_hosts: Vec<String>,
    /// Verifies the tokens of TCP clients; a client without a valid token gets 401.
    pub authenticator: Option<Arc<Authenticator>>,
    /// The certificate of `wss://` listeners. If it requests client certificates, clients need one
    /// in addition to a token; without token authentication, the certificate suffices.
    pub tls: Option<Arc<TlsServer>>,
    /// Whether to allow listening beyond loopback without TLS.
    pub insecure: bool,
    /// Identifies the user at the other end of a Unix socket, and of a TCP socket if neither tokens
    /// nor client certificates are used. A user for whom it returns `None` cannot open a WebSocket
    /// and gets 403. Called on a thread of the runtime, so it must not block for long.
    pub identify_user: fn(&Peer) -> Option<Subject>,
    /// Whether the file of a Unix socket is open to other users. `identify_user` then identifies
    /// them.
    pub open_to_other_users: bool,
    pub limits: Arc<SubjectLimits>,
    pub keep_alive: KeepAlive,
    /// Time limit from `accept` to the end of the upgrade.
    pub handshake_timeout: Duration,
    /// Maximum number of concurrent handshakes. Beyond that, the oldest one of the busiest address
    /// is dropped: silent sockets can neither lock out other clients nor exhaust the file
    /// descriptors.
    pub max_handshakes: usize,
    pub monitor: Option<Arc<dyn ListenerMonitor>>,
}

impl Default for ListenerOptions {
    fn default() -> Self {
        Self {
            allowed_origins: Vec::new(),
            allowed_hosts: Vec::new(),
            authenticator: None,
            tls: None,
            insecure: false,
            identify_user: |_| Some(Subject::LocalUser),
            open_to_other_users: false,
            limits: SubjectLimits::new(usize::MAX, usize::MAX),
            keep_alive: KeepAlive::default(),
            handshake_timeout: Duration::from_secs(10),
            max_handshakes: 512,
            monitor: None,
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum BindError {
    #[error(
        "refusing to listen on {address} without authentication; add --ws-auth capability-token \
         --ws-token-file FILE (exec-server token new creates a token), or listen on 127.0.0.1"
    )]
    NeedsAuthentication { address: SocketAddr },
    #[error(
        "refusing to listen on {address} without TLS, since tokens and output would be sent \
         unencrypted; listen on wss:// with --tls-cert and --tls-key or --tls-self-signed, or add \
         --insecure if the network itself is encrypted"
    )]
    NeedsTls { address: SocketAddr },
    #[error("wss://{address} needs a certificate: --tls-cert and --tls-key, or --tls-self-signed")]
    NeedsCertificate { address: SocketAddr },
    #[error("cannot listen on {address}")]
    Tcp { address: SocketAddr, source: io::Error },
    #[error(
        "cannot listen on {address}: another program uses it; choose another port, or find that \
         program with `ss -ltnp` and end it"
    )]
    AddressInUse { address: SocketAddr },
    #[error("cannot listen on {path}", path = path.display())]
    Unix { path: PathBuf, source: io::Error },
    #[error(
        "{path} is already in use by another server; listen on another path, or end that server",
        path = path.display()
    )]
    PathInUse { path: PathBuf },
    #[error(
        "{path} exists and is not a socket; listen on another path, or remove it",
        path = path.display()
    )]
    NotASocket { path: PathBuf },
    #[error("cannot listen on the socket that was passed")]
    Passed { source: io::Error },
    #[error("the Unix socket that was passed has no path; give it one with ListenStream=/PATH")]
    Unnamed,
    #[error("{url} is not an address to listen on; expected ws://, wss:// or unix://")]
    NotAnAddress { url: ListenUrl },
}

/// A bound socket; [`accept`](Self::accept) yields its clients. Dropping it closes the socket and
/// all handshakes in progress, but no established connections.
#[derive(Debug)]
pub struct Listener {
    url: ListenUrl,
    readiness: Readiness,
    connections: mpsc::Receiver<(Connection, (Principal, SubjectPermit))>,
    acceptor: JoinHandle<()>,
    _file: Option<SocketFile>,
}

impl Listener {
    /// Binds and starts to serve. Needs a runtime.
    pub async fn bind(url: &ListenUrl, options: ListenerOptions) -> Result<Self, BindError> {
        match url {
            ListenUrl::WebSocket(address) => {
                options.check_exposure(*address, None)?;
                let (listener, bound) = listen_on(*address).await?;
                Ok(Self::start_tcp(listener, bound, None, options))
            }
            ListenUrl::SecureWebSocket(address) => {
                let address = *address;
                let tls = options.tls.clone();
                let tls = tls.ok_or(BindError::NeedsCertificate { address })?;
                options.check_exposure(address, Some(&tls))?;
                let (listener, bound) = listen_on(address).await?;
                Ok(Self::start_tcp(listener, bound, Some(tls), options))
            }
            ListenUrl::Unix(path) => {
                let (listener, file) = unix::listen_at(path, options.open_to_other_users)?;
                let file = Some(file);
                Ok(Self::start_unix(listener, url.clone(), file, options))
            }
            ListenUrl::Systemd(_) | ListenUrl::Stdio | ListenUrl::Off => {
                Err(BindError::NotAnAddress { url: url.clone() })
            }
        }
    }

    /// Serves a TCP socket that is already listening, over TLS if the options have a certificate.
    /// The same rules about its address apply as for [`bind`](Self::bind). Needs a runtime.
    pub fn from_tcp(
        listener: std::net::TcpListener,
        options: ListenerOptions,
    ) -> Result<Self, BindError> {
        let tls = options.tls.clone();
        let (listener, bound) = take_over(listener)?;
        options.check_exposure(bound, tls.as_ref())?;
        Ok(Self::start_tcp(listener, bound, tls, options))
    }

    /// Serves a Unix socket that is already listening. Its file is left untouched, even at
    /// shutdown. Needs a runtime.
    pub fn from_unix(
        listener: std::os::unix::net::UnixListener,
        options: ListenerOptions,
    ) -> Result<Self, BindError> {
        let failed = |source| BindError::Passed { source };
        let address = listener.local_addr().map_err(failed)?;
        let path = address.as_pathname().ok_or(BindError::Unnamed)?;
        let url = ListenUrl::Unix(path.to_owned());
        listener.set_nonblocking(true).map_err(failed)?;
        let listener = UnixListener::from_std(listener).map_err(failed)?;
        Ok(Self::start_unix(listener, url, None, options))
    }

    fn start_tcp(
        listener: TcpListener,
        bound: SocketAddr,
        tls: Option<Arc<TlsServer>>,
        options: ListenerOptions,
    ) -> Self {
        let and_certificate = tls.as_ref().is_some_and(|tls| tls.asks_for_certificates());
        let identification = match options.authenticator.clone() {
            Some(authenticator) => Identification::Token { authenticator, and_certificate },
            None if and_certificate => Identification::Certificate,
            None => Identification::User(options.identify_user),
        };
        let url = match tls {
            Some(_) => ListenUrl::SecureWebSocket(bound),
            None => ListenUrl::WebSocket(bound),
        };
        let hosts = HostRule::of(bound, options.allowed_hosts.clone());
        let names = (url, hosts);
        Self::start(BoundSocket::Tcp(listener), names, None, tls, identification, options)
    }

    fn start_unix(
        listener: UnixListener,
        url: ListenUrl,
        file: Option<SocketFile>,
        options: ListenerOptions,
    ) -> Self {
        let identification = Identification::User(options.identify_user);
        let names = (url, HostRule::Any);
        Self::start(BoundSocket::Unix(listener), names, file, None, identification, options)
    }

    fn start(
        socket: BoundSocket,
        (url, hosts): (ListenUrl, HostRule),
        file: Option<SocketFile>,
        tls: Option<Arc<TlsServer>>,
        identification: Identification,
        options: ListenerOptions,
    ) -> Self {
        let readiness = Readiness::default();
        let (sender, connections) = mpsc::channel(READY_CONNECTIONS);
        let admission = ClientAdmission {
            gate: Gate {
                allowed_origins: options.allowed_origins,
                hosts,
                readiness: readiness.clone(),
            },
            identification,
            failed_attempts: Mutex::new(FailedAttempts::default()),
            limits: options.limits,
            handshake_timeout: options.handshake_timeout,
            monitor: options.monitor,
        };
        let reception = Reception {
            listener: url.to_string(),
            admission,
            tls,
            keep_alive: options.keep_alive,
            handshake_timeout: options.handshake_timeout,
            connections: sender,
        };
        let handshakes = Handshakes::at_most(options.max_handshakes);
        let acceptor = tokio::spawn(accept_all(socket, handshakes, Arc::new(reception)));
        Self { url, readiness, connections, acceptor, _file: file }
    }

    /// The URL for clients, with the actual port.
    pub fn local_url(&self) -> &ListenUrl {
        &self.url
    }

    pub fn readiness(&self) -> Readiness {
        self.readiness.clone()
    }

    /// Returns the next client after its handshake. Cancel-safe.
    pub async fn accept(&mut self) -> Connection {
        match self.connections.recv().await {
            Some((connection, (principal, permit))) => {
                Connection { principal, permit: Some(permit), ..connection }
            }
            // The acceptor ends only with its runtime, and this future with it.
            None => future::pending().await,
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.acceptor.abort();
    }
}

impl ListenerOptions {
    /// Beyond loopback, every client needs credentials, and a listener without TLS needs
    /// `insecure`.
    fn check_exposure(
        &self,
        address: SocketAddr,
        tls: Option<&Arc<TlsServer>>,
    ) -> Result<(), BindError> {
        if address.ip().is_loopback() {
            return Ok(());
        }
        if self.authenticator.is_none() && !tls.is_some_and(|tls| tls.asks_for_certificates()) {
            return Err(BindError::NeedsAuthentication { address });
        }
        if tls.is_none() && !self.insecure {
            return Err(BindError::NeedsTls { address });
        }
        Ok(())
    }
}

async fn listen_on(address: SocketAddr) -> Result<(TcpListener, SocketAddr), BindError> {
    let failed = |source: io::Error| match source.kind() {
        io::ErrorKind::AddrInUse => BindError::AddressInUse { address },
        _ => BindError::Tcp { address, source },
    };
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    let bound = listener.local_addr().map_err(failed)?;
    Ok((listener, bound))
}

/// Registers a listening socket with the runtime.
fn take_over(listener: std::net::TcpListener) -> Result<(TcpListener, SocketAddr), BindError> {
    let failed = |source| BindError::Passed { source };
    listener.set_nonblocking(true).map_err(failed)?;
    let listener = TcpListener::from_std(listener).map_err(failed)?;
    let bound = listener.local_addr().map_err(failed)?;
    Ok((listener, bound))
}

/// The state that `/readyz` reports. New clients are accepted until [`drain`](Self::drain).
#[derive(Debug, Clone, Default)]
pub struct Readiness {
    flags: Arc<Flags>,
}

#[derive(Debug, Default)]
struct Flags {
    is_draining: AtomicBool,
    is_degraded: AtomicBool,
}

impl Readiness {
    /// From now on, `/readyz` answers 503 and upgrades are refused.
    pub fn drain(&self) {
        self.flags.is_draining.store(true, Ordering::Relaxed);
    }

    /// While set, `/readyz` answers 503, so that load balancers prefer other servers. Clients are
    /// served as before.
    pub fn set_degraded(&self, is_degraded: bool) {
        self.flags.is_degraded.store(is_degraded, Ordering::Relaxed);
    }

    pub fn is_ready(&self) -> bool {
        !self.is_draining() && !self.flags.is_degraded.load(Ordering::Relaxed)
    }

    pub fn is_draining(&self) -> bool {
        self.flags.is_draining.load(Ordering::Relaxed)
    }
}

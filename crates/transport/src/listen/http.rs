//! A listener for services with an HTTP handler: it answers requests, some of which become
//! WebSocket connections. Like any listener, it checks names, answers health requests and bounds
//! handshakes.

use std::fmt;
use std::future;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{CONNECTION, HeaderValue};
use hyper::{Request, Response};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use super::accept::{Admission, BoundSocket, Client, Decision, Reception, accept_all};
use super::gate::{Gate, HostRule, asks_for_upgrade};
use super::handshakes::Handshakes;
use super::{BindError, READY_CONNECTIONS, Readiness, listen_on, take_over};
use crate::auth::FailedAttempts;
use crate::connection::{Connection, Peer};
use crate::tls::TlsServer;
use crate::websocket::KeepAlive;

pub trait HttpHandler: Send + Sync + 'static {
    /// The facts about an admitted WebSocket.
    type Grant: Send + 'static;

    /// Answers a request that does not ask for a WebSocket.
    fn answer(&self, request: Request<Incoming>) -> impl Future<Output = HttpReply> + Send;

    /// Decides about a WebSocket request. Its headers are valid, and the listener is not draining.
    fn admit(
        &self,
        request: Request<Incoming>,
    ) -> impl Future<Output = Result<Self::Grant, HttpReply>> + Send;
}

/// The connection is closed after each reply.
#[derive(Debug)]
pub enum HttpReply {
    Answer(Response<Full<Bytes>>),
    /// Refuses invalid credentials. The reply is delayed for an address that fails often.
    Unauthorized(Response<Full<Bytes>>),
}

#[derive(Debug, Clone)]
pub struct HttpListenerOptions {
    /// `Host` names allowed in addition to the bound address and, on loopback, its usual names.
    /// Beyond loopback, an empty list allows every name.
    pub allowed_hosts: Vec<String>,
    pub tls: Option<Arc<TlsServer>>,
    /// Whether to allow listening beyond loopback without TLS.
    pub insecure: bool,
    pub keep_alive: KeepAlive,
    /// Time limit from `accept` to the end of the response or the upgrade.
    pub handshake_timeout: Duration,
    /// Maximum number of sockets that are not WebSockets yet: each is in a TLS handshake, waits for
    /// its request, or for the response. Beyond that, the oldest one of the busiest address is
    /// dropped.
    pub max_handshakes: usize,
}

impl Default for HttpListenerOptions {
    fn default() -> Self {
        Self {
            allowed_hosts: Vec::new(),
            tls: None,
            insecure: false,
            keep_alive: KeepAlive::default(),
            handshake_timeout: Duration::from_secs(10),
            max_handshakes: 512,
        }
    }
}

impl HttpListenerOptions {
    fn check_exposure(&self, address: SocketAddr) -> Result<(), BindError> {
        match address.ip().is_loopback() || self.tls.is_some() || self.insecure {
            true => Ok(()),
            false => Err(BindError::NeedsTls { address }),
        }
    }
}

/// A listener. Dropping it closes the socket and all requests in progress, but no established
/// connections.
pub struct HttpListener<Grant> {
    address: SocketAddr,
    readiness: Readiness,
    connections: mpsc::Receiver<(Connection, Grant)>,
    acceptor: JoinHandle<()>,
}

impl<Grant: Send + 'static> HttpListener<Grant> {
    /// Binds and starts to serve. `handler` creates the handler for the bound address. Needs a
    /// runtime.
    pub async fn bind<H: HttpHandler<Grant = Grant>>(
        address: SocketAddr,
        options: HttpListenerOptions,
        handler: impl FnOnce(SocketAddr) -> H,
    ) -> Result<Self, BindError> {
        options.check_exposure(address)?;
        let (listener, address) = listen_on(address).await?;
        Ok(Self::start(listener, address, options, handler))
    }

    /// Serves a socket that is already listening. The same rules about its address apply as for
    /// [`bind`](Self::bind). Needs a runtime.
    pub fn from_tcp<H: HttpHandler<Grant = Grant>>(
        listener: std::net::TcpListener,
        options: HttpListenerOptions,
        handler: impl FnOnce(SocketAddr) -> H,
    ) -> Result<Self, BindError> {
        let (listener, address) = take_over(listener)?;
        options.check_exposure(address)?;
        Ok(Self::start(listener, address, options, handler))
    }

    fn start<H: HttpHandler<Grant = Grant>>(
        listener: TcpListener,
        address: SocketAddr,
        options: HttpListenerOptions,
        handler: impl FnOnce(SocketAddr) -> H,
    ) -> Self {
        let readiness = Readiness::default();
        let (sender, connections) = mpsc::channel(READY_CONNECTIONS);
        let admission = HandlerAdmission {
            gate: Gate {
                allowed_origins: Vec::new(),
                hosts: HostRule::of(address, options.allowed_hosts),
                readiness: readiness.clone(),
            },
            handler: handler(address),
            failed_attempts: Mutex::new(FailedAttempts::default()),
            longest_delay: options.handshake_timeout / 2,
        };
        let reception = Reception {
            listener: address.to_string(),
            admission,
            tls: options.tls,
            keep_alive: options.keep_alive,
            handshake_timeout: options.handshake_timeout,
            connections: sender,
        };
        let handshakes = Handshakes::at_most(options.max_handshakes);
        let socket = BoundSocket::Tcp(listener);
        let acceptor = tokio::spawn(accept_all(socket, handshakes, Arc::new(reception)));
        Self { address, readiness, connections, acceptor }
    }

    #[must_use]
    pub fn local_address(&self) -> SocketAddr {
        self.address
    }

    #[must_use]
    pub fn readiness(&self) -> Readiness {
        self.readiness.clone()
    }

    /// Returns the next admitted WebSocket. Cancel-safe.
    pub async fn accept(&mut self) -> (Connection, Grant) {
        match self.connections.recv().await {
            Some(accepted) => accepted,
            // The acceptor ends only with its runtime, and this future with it.
            None => future::pending().await,
        }
    }
}

impl<Grant> Drop for HttpListener<Grant> {
    fn drop(&mut self) {
        self.acceptor.abort();
    }
}

impl<Grant> fmt::Debug for HttpListener<Grant> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpListener").field("address", &self.address).finish_non_exhaustive()
    }
}

/// The address of a client, as an extension of its requests.
#[derive(Debug, Clone, Copy)]
pub struct ClientAddress(pub SocketAddr);

struct HandlerAdmission<H> {
    gate: Gate,
    handler: H,
    failed_attempts: Mutex<FailedAttempts>,
    /// Maximum delay of a 401 response. Below the handshake timeout, after which the response would
    /// not arrive.
    longest_delay: Duration,
}

impl<H: HttpHandler> Admission for HandlerAdmission<H> {
    type Grant = H::Grant;

    async fn decide(&self, mut request: Request<Incoming>, client: &Client) -> Decision<H::Grant> {
        if let Err(answer) = self.gate.admit(&request) {
            return Decision::Answer(answer.into_response());
        }
        if let Some(Peer::Tcp { remote, .. }) = &client.peer {
            request.extensions_mut().insert(ClientAddress(*remote));
        }
        let reply = match asks_for_upgrade(request.headers()) {
            false => self.handler.answer(request).await,
            true => {
                let key = match self.gate.check_upgrade(request.headers()) {
                    Ok(key) => key,
                    Err(answer) => return Decision::Answer(answer.into_response()),
                };
                match self.handler.admit(request).await {
                    Ok(grant) => return Decision::Upgrade { key, subprotocol: None, grant },
                    Err(reply) => reply,
                }
            }
        };
        let mut response = match reply {
            HttpReply::Answer(response) => response,
            HttpReply::Unauthorized(response) => {
                sleep(self.delay(client)).await;
                response
            }
        };
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        Decision::Answer(response)
    }
}

impl<H> HandlerAdmission<H> {
    /// Counts a failure of the client's address. Returns the delay of the refusal.
    fn delay(&self, client: &Client) -> Duration {
        let Some(Peer::Tcp { remote, .. }) = &client.peer else { return Duration::ZERO };
        let attempts = self.failed_attempts.lock();
        let mut attempts = attempts.expect("no code panics while it holds the attempts");
        attempts.delay(remote.ip(), Instant::now()).min(self.longest_delay)
    }
}

//! Accepting sockets and shaking hands, each on a task of its own with a limit on its time.

use std::convert::Infallible;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use exec_server_protocol::{Principal, Subject};
use http_body_util::Full;
use hyper::header::{
    CONNECTION, CONTENT_TYPE, HeaderValue, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_PROTOCOL, UPGRADE,
    WWW_AUTHENTICATE,
};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::upgrade::OnUpgrade;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout};
use tokio_rustls::TlsStream;
use tungstenite::handshake::derive_accept_key;

use super::connection_limits::{self, ConnectionLimits, ConnectionPermit};
use super::gate::{Answer, Gate, answer};
use super::handshakes::Handshakes;
use crate::auth::{
    AmbiguousToken, Authenticator, FailedAttempts, TokenError, find_token, network_of,
    selected_subprotocol,
};
use crate::connection::{Connection, Peer};
use crate::socket::{PromptlyAcknowledged, Socket};
use crate::tls::{TlsServer, name_of};
use crate::websocket::{self, KeepAlive, Role};

const FIRST_BACKOFF: Duration = Duration::from_millis(20);
const LONGEST_BACKOFF: Duration = Duration::from_secs(1);

const MAX_REQUEST_HEAD: usize = 16 << 10;

pub(super) enum BoundSocket {
    Tcp(TcpListener),
    Unix(UnixListener),
}

/// Accepts for as long as it is polled.
pub(super) async fn accept_all(
    socket: BoundSocket,
    mut handshakes: Handshakes,
    reception: Arc<Reception>,
) {
    let mut backoff = Backoff::default();
    loop {
        let reception = Arc::clone(&reception);
        let accepted = match &socket {
            BoundSocket::Tcp(listener) => listener.accept().await.map(|(stream, remote)| {
                handshakes.spawn(Some(network_of(remote.ip())), async move {
                    reception.complete(reception.receive_tcp(stream)).await;
                });
            }),
            BoundSocket::Unix(listener) => listener.accept().await.map(|(stream, _)| {
                handshakes.spawn(None, async move {
                    reception.complete(reception.receive_unix(stream)).await;
                });
            }),
        };
        match accepted {
            Ok(()) => backoff = Backoff::default(),
            Err(error) => backoff.wait(&error).await,
        }
    }
}

/// Everything a new socket needs to become a connection.
pub(super) struct Reception {
    pub(super) gate: Gate,
    pub(super) identification: Identification,
    pub(super) tls: Option<Arc<TlsServer>>,
    pub(super) failed_attempts: Mutex<FailedAttempts>,
    pub(super) limits: Arc<ConnectionLimits>,
    pub(super) keep_alive: KeepAlive,
    pub(super) handshake_timeout: Duration,
    pub(super) connections: mpsc::Sender<Connection>,
}

/// How a listener knows its clients.
pub(super) enum Identification {
    /// By the user at the other end of a socket of this machine.
    User(fn(&Peer) -> Option<Subject>),
    Certificate,
    Token {
        authenticator: Arc<Authenticator>,
        and_certificate: bool,
    },
}

/// What is known about a client before its first request.
struct Client {
    peer: Option<Peer>,
    /// The name in its certificate.
    certificate: Option<String>,
}

/// A request that is granted.
struct Admitted {
    upgrade: OnUpgrade,
    principal: Principal,
    permit: ConnectionPermit,
}

/// Why a client is not let in.
#[derive(Debug, thiserror::Error)]
enum AuthFailure {
    #[error("no token")]
    NoToken,
    #[error("more than one token")]
    AmbiguousToken,
    #[error("no client certificate with a DNS or URI name")]
    NoCertificate,
    #[error("the token is refused: {0}")]
    Token(#[from] TokenError),
}

impl Reception {
    async fn receive_tcp(&self, stream: TcpStream) -> Option<Connection> {
        stream.prepare();
        let peer = stream.peer();
        let Some(tls) = &self.tls else {
            return self.upgrade(stream, Client { peer, certificate: None }).await;
        };
        let encrypted = tls.acceptor().accept(PromptlyAcknowledged(stream)).await;
        let stream = encrypted
            .inspect_err(|error| tracing::debug!(%error, "a TLS handshake failed"))
            .ok()?;
        let certificates = stream.get_ref().1.peer_certificates();
        let certificate = certificates.and_then(|chain| name_of(chain.first()?));
        self.upgrade(TlsStream::from(stream), Client { peer, certificate }).await
    }

    async fn receive_unix(&self, stream: UnixStream) -> Option<Connection> {
        let client = Client { peer: stream.peer(), certificate: None };
        self.upgrade(stream, client).await
    }

    /// Hands over what a handshake makes, if it is done in time.
    async fn complete(&self, handshake: impl Future<Output = Option<Connection>>) {
        match timeout(self.handshake_timeout, handshake).await {
            // An error means that the listener is being dropped.
            Ok(Some(connection)) => drop(self.connections.send(connection).await),
            Ok(None) => {}
            Err(_) => tracing::debug!("a handshake took longer than handshake_timeout"),
        }
    }

    /// Serves HTTP until the socket is upgraded or done with.
    async fn upgrade<S: Socket>(&self, socket: S, client: Client) -> Option<Connection> {
        let admitted = Mutex::new(None);
        let service = service_fn(|request| self.respond(request, &client, &admitted));
        http1::Builder::new()
            .max_buf_size(MAX_REQUEST_HEAD)
            .header_read_timeout(None)
            .serve_connection(TokioIo::new(socket), service)
            .with_upgrades()
            .await
            .ok()?;
        let Admitted { upgrade, principal, permit } = admitted.into_inner().ok()??;
        let parts = upgrade.await.ok()?.downcast::<TokioIo<S>>().ok()?;
        // The buffer has what the client sent after its request.
        let (socket, early) = (parts.io.into_inner(), parts.read_buf);
        let connection = websocket::connection(socket, Role::Server, &early, self.keep_alive);
        Some(Connection { peer: client.peer, principal, permit: Some(permit), ..connection })
    }

    async fn respond<B>(
        &self,
        mut request: Request<B>,
        client: &Client,
        admitted: &Mutex<Option<Admitted>>,
    ) -> Result<Response<Full<Bytes>>, Infallible> {
        if let Err(answer) = self.gate.admit(&request) {
            return Ok(plain(answer));
        }
        let principal = match self.check_credentials(&request, client) {
            Ok(principal) => principal,
            Err(failure) => {
                let delay = self.note_failure(client, &failure);
                drop(request);
                sleep(delay).await;
                return Ok(plain(unauthorized()));
            }
        };
        Ok(match self.admit(&request, client, principal) {
            Err(answer) => plain(answer),
            Ok((key, principal, permit)) => {
                self.note_success(client, &principal);
                let response = switching_protocols(&key, selected_subprotocol(request.headers()));
                let upgrade = hyper::upgrade::on(&mut request);
                let mut admitted = admitted.lock().expect("no code panics while it holds the lock");
                *admitted = Some(Admitted { upgrade, principal, permit });
                response
            }
        })
    }

    /// Whom the credentials of a request prove; `None` if this listener looks at the user instead.
    fn check_credentials<B>(
        &self,
        request: &Request<B>,
        client: &Client,
    ) -> Result<Option<Principal>, AuthFailure> {
        let certificate = || client.certificate.clone().ok_or(AuthFailure::NoCertificate);
        match &self.identification {
            Identification::User(_) => Ok(None),
            Identification::Certificate => {
                Ok(Some(Principal::new(Subject::Certificate(certificate()?))))
            }
            Identification::Token { authenticator, and_certificate } => {
                if *and_certificate {
                    certificate()?;
                }
                let token = find_token(request)
                    .map_err(|AmbiguousToken| AuthFailure::AmbiguousToken)?
                    .ok_or(AuthFailure::NoToken)?;
                Ok(Some(authenticator.authenticate(&token, SystemTime::now())?))
            }
        }
    }

    fn admit<B>(
        &self,
        request: &Request<B>,
        client: &Client,
        principal: Option<Principal>,
    ) -> Result<(HeaderValue, Principal, ConnectionPermit), Answer> {
        let key = self.gate.route(request)?;
        let principal = match (principal, &self.identification) {
            (Some(principal), _) => Some(principal),
            (None, Identification::User(identify)) => {
                client.peer.as_ref().and_then(identify).map(Principal::new)
            }
            (None, _) => None,
        };
        let principal = principal.ok_or_else(other_user)?;
        let permit = self.limits.admit(&principal.subject).map_err(full)?;
        Ok((key, principal, permit))
    }

    /// Local commands come and go; clients with credentials are worth a line.
    fn note_success(&self, client: &Client, principal: &Principal) {
        if let (Identification::Certificate | Identification::Token { .. }, Some(peer)) =
            (&self.identification, &client.peer)
            && let Peer::Tcp { remote, .. } = peer
        {
            let Principal { subject, role, .. } = principal;
            tracing::info!(address = %remote.ip(), %subject, ?role, "let a client in");
        }
    }

    /// Returns how long the refusal has to wait.
    fn note_failure(&self, client: &Client, failure: &AuthFailure) -> Duration {
        let Some(Peer::Tcp { remote, .. }) = &client.peer else { return Duration::ZERO };
        let address = remote.ip();
        let delay = {
            let attempts = self.failed_attempts.lock();
            let mut attempts = attempts.expect("no code panics while it holds the attempts");
            // A refusal that comes too late is none.
            attempts.delay(address, Instant::now()).min(self.handshake_timeout / 2)
        };
        if delay.is_zero() {
            tracing::info!(%address, reason = %failure, "refused a client");
        } else {
            tracing::debug!(%address, reason = %failure, ?delay, "refused a client");
        }
        delay
    }
}

fn unauthorized() -> Answer {
    let refusal = answer(StatusCode::UNAUTHORIZED, "valid credentials are required");
    refusal.with(WWW_AUTHENTICATE, "Bearer")
}

fn other_user() -> Answer {
    let text = "connections of other users are refused; allow_other_users admits them";
    answer(StatusCode::FORBIDDEN, text)
}

fn full(full: connection_limits::Full) -> Answer {
    match full {
        connection_limits::Full::Server => {
            let text = "the server has as many connections as max_connections allows";
            answer(StatusCode::SERVICE_UNAVAILABLE, text)
        }
        connection_limits::Full::Subject => {
            let text = "this client has as many connections as max_connections_per_subject allows";
            answer(StatusCode::TOO_MANY_REQUESTS, text)
        }
    }
}

fn switching_protocols(
    key: &HeaderValue,
    subprotocol: Option<HeaderValue>,
) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::default());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let accept = HeaderValue::try_from(derive_accept_key(key.as_bytes()))
        .expect("base64 is a valid header value");
    let headers = response.headers_mut();
    headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
    headers.insert(SEC_WEBSOCKET_ACCEPT, accept);
    if let Some(subprotocol) = subprotocol {
        headers.insert(SEC_WEBSOCKET_PROTOCOL, subprotocol);
    }
    response
}

fn plain(answer: Answer) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(format!("{}\n", answer.text)));
    *response.status_mut() = answer.status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    headers.insert(CONNECTION, HeaderValue::from_static("close"));
    if let Some((name, value)) = answer.header {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}

/// The wait after a failed `accept`: it fails again at once while descriptors are short.
#[derive(Default)]
struct Backoff {
    last: Option<Duration>,
}

impl Backoff {
    async fn wait(&mut self, error: &io::Error) {
        let delay = match self.last {
            None => {
                tracing::warn!(%error, "cannot accept connections; trying again");
                FIRST_BACKOFF
            }
            Some(last) => (last * 2).min(LONGEST_BACKOFF),
        };
        self.last = Some(delay);
        sleep(delay).await;
    }
}

//! Accepts sockets and performs handshakes, each on its own task with a timeout. An [`Admission`]
//! decides which requests become connections.

use std::convert::Infallible;
use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{
    CONNECTION, HeaderValue, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_PROTOCOL, UPGRADE,
};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::upgrade::OnUpgrade;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsStream;
use tungstenite::handshake::derive_accept_key;

use super::handshakes::Handshakes;
use crate::auth::network_of;
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

pub(super) trait Admission: Send + Sync + 'static {
    /// The facts about a granted request.
    type Grant: Send + 'static;

    fn decide(
        &self,
        request: Request<Incoming>,
        client: &Client,
    ) -> impl Future<Output = Decision<Self::Grant>> + Send;

    /// Records a failed TLS handshake.
    fn note_failed_handshake(&self, _peer: Option<&Peer>) {}
}

pub(super) enum Decision<Grant> {
    Answer(Response<Full<Bytes>>),
    Upgrade { key: HeaderValue, subprotocol: Option<HeaderValue>, grant: Grant },
}

/// The facts about a client that are known before its first request.
pub(super) struct Client {
    pub(super) peer: Option<Peer>,
    /// The name in the client's certificate, if it has sent one with a name.
    pub(super) certificate: Option<String>,
}

/// Accepts sockets for as long as it is polled.
pub(super) async fn accept_all<A: Admission>(
    socket: BoundSocket,
    mut handshakes: Handshakes,
    reception: Arc<Reception<A>>,
) {
    let mut backoff = Backoff::default();
    let name = reception.listener.clone();
    loop {
        let reception = Arc::clone(&reception);
        let accepted = match &socket {
            BoundSocket::Tcp(listener) => listener.accept().await.map(|(stream, remote)| {
                let address = remote.ip();
                handshakes.spawn(Some(network_of(address)), async move {
                    let handshake = reception.receive_tcp(stream, address);
                    reception.complete(Some(address), handshake).await;
                });
            }),
            BoundSocket::Unix(listener) => listener.accept().await.map(|(stream, _)| {
                handshakes.spawn(None, async move {
                    reception.complete(None, reception.receive_unix(stream)).await;
                });
            }),
        };
        match accepted {
            Ok(()) => backoff = Backoff::default(),
            Err(error) => backoff.wait(&name, &error).await,
        }
    }
}

/// Everything needed to turn a new socket into a connection.
pub(super) struct Reception<A: Admission> {
    /// The address of the listener, for log lines.
    pub(super) listener: String,
    pub(super) admission: A,
    pub(super) tls: Option<Arc<TlsServer>>,
    pub(super) keep_alive: KeepAlive,
    pub(super) handshake_timeout: Duration,
    pub(super) connections: mpsc::Sender<(Connection, A::Grant)>,
}

struct Admitted<Grant> {
    upgrade: OnUpgrade,
    grant: Grant,
}

impl<A: Admission> Reception<A> {
    async fn receive_tcp(
        &self,
        stream: TcpStream,
        address: IpAddr,
    ) -> Option<(Connection, A::Grant)> {
        stream.prepare();
        let peer = stream.peer();
        let Some(tls) = &self.tls else {
            return self.upgrade(stream, Client { peer, certificate: None }).await;
        };
        let stream = match tls.acceptor().accept(PromptlyAcknowledged(stream)).await {
            Ok(stream) => stream,
            Err(error) => {
                tracing::debug!(
                    listener = self.listener,
                    %address,
                    %error,
                    "a TLS handshake failed"
                );
                self.admission.note_failed_handshake(peer.as_ref());
                return None;
            }
        };
        let certificates = stream.get_ref().1.peer_certificates();
        let certificate = certificates.and_then(|chain| name_of(chain.first()?));
        self.upgrade(TlsStream::from(stream), Client { peer, certificate }).await
    }

    async fn receive_unix(&self, stream: UnixStream) -> Option<(Connection, A::Grant)> {
        let client = Client { peer: stream.peer(), certificate: None };
        self.upgrade(stream, client).await
    }

    /// Hands over the connection that a handshake produces within its timeout.
    async fn complete(
        &self,
        address: Option<IpAddr>,
        handshake: impl Future<Output = Option<(Connection, A::Grant)>>,
    ) {
        match timeout(self.handshake_timeout, handshake).await {
            // An error means that the listener is being dropped.
            Ok(Some(connection)) => drop(self.connections.send(connection).await),
            Ok(None) => {}
            Err(_) => {
                tracing::debug!(
                    listener = self.listener,
                    address = address.map(tracing::field::display),
                    limit = ?self.handshake_timeout,
                    "a handshake took longer than handshake_timeout"
                );
            }
        }
    }

    /// Serves HTTP until the socket is upgraded or closed.
    async fn upgrade<S: Socket>(
        &self,
        socket: S,
        client: Client,
    ) -> Option<(Connection, A::Grant)> {
        let admitted = Mutex::new(None);
        let service = service_fn(|request| self.respond(request, &client, &admitted));
        http1::Builder::new()
            .max_buf_size(MAX_REQUEST_HEAD)
            .header_read_timeout(None)
            .serve_connection(TokioIo::new(socket), service)
            .with_upgrades()
            .await
            .ok()?;
        let Admitted { upgrade, grant } = admitted.into_inner().ok()??;
        let parts = upgrade.await.ok()?.downcast::<TokioIo<S>>().ok()?;
        // The buffer holds data that the client sent after its request.
        let (socket, early) = (parts.io.into_inner(), parts.read_buf);
        let connection = websocket::connection(socket, Role::Server, &early, self.keep_alive);
        Some((Connection { peer: client.peer, ..connection }, grant))
    }

    async fn respond(
        &self,
        mut request: Request<Incoming>,
        client: &Client,
        admitted: &Mutex<Option<Admitted<A::Grant>>>,
    ) -> Result<Response<Full<Bytes>>, Infallible> {
        let upgrade = hyper::upgrade::on(&mut request);
        Ok(match self.admission.decide(request, client).await {
            Decision::Answer(response) => response,
            Decision::Upgrade { key, subprotocol, grant } => {
                let mut admitted = admitted.lock().expect("no code panics while it holds the lock");
                *admitted = Some(Admitted { upgrade, grant });
                switching_protocols(&key, subprotocol)
            }
        })
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

/// The backoff after a failed `accept`, which fails again immediately while file descriptors are
/// exhausted.
#[derive(Default)]
struct Backoff {
    last: Option<Duration>,
}

impl Backoff {
    async fn wait(&mut self, listener: &str, error: &io::Error) {
        let delay = match self.last {
            None => {
                tracing::warn!(listener, %error, "cannot accept connections; retrying");
                FIRST_BACKOFF
            }
            Some(last) => (last * 2).min(LONGEST_BACKOFF),
        };
        self.last = Some(delay);
        sleep(delay).await;
    }
}

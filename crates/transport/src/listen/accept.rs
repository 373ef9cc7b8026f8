//! Accepting sockets and shaking hands, each on a task of its own with a limit on its time.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::ready;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{CONNECTION, CONTENT_TYPE, HeaderValue, SEC_WEBSOCKET_ACCEPT, UPGRADE};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::upgrade::OnUpgrade;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{sleep, timeout};
use tungstenite::handshake::derive_accept_key;

use super::gate::{Answer, Gate, Verdict};
use crate::connection::{Connection, Peer};
use crate::socket::Socket;
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
            BoundSocket::Tcp(listener) => listener.accept().await.map(|(stream, _)| {
                handshakes.spawn(async move { reception.receive(stream).await });
            }),
            BoundSocket::Unix(listener) => listener.accept().await.map(|(stream, _)| {
                handshakes.spawn(async move { reception.receive(stream).await });
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
    pub(super) admits: fn(&Peer) -> bool,
    pub(super) keep_alive: KeepAlive,
    pub(super) handshake_timeout: Duration,
    pub(super) connections: mpsc::Sender<Connection>,
}

impl Reception {
    async fn receive(&self, socket: impl Socket) {
        socket.prepare();
        let peer = socket.peer();
        let handshake = self.shake_hands(socket, peer.as_ref());
        let Ok(Some((socket, early))) = timeout(self.handshake_timeout, handshake).await else {
            return;
        };
        let connection = websocket::connection(socket, Role::Server, &early, self.keep_alive);
        let connection = Connection { peer, ..connection };
        // Nobody takes connections any more: the listener is being dropped.
        let _ = self.connections.send(connection).await;
    }

    /// Serves HTTP until the socket is upgraded or done with. Returns it with the bytes that the
    /// client sent after its request.
    async fn shake_hands<S: Socket>(&self, socket: S, peer: Option<&Peer>) -> Option<(S, Bytes)> {
        let upgrade = Mutex::new(None);
        let service = service_fn(|request| ready(self.respond(request, peer, &upgrade)));
        http1::Builder::new()
            .max_buf_size(MAX_REQUEST_HEAD)
            .header_read_timeout(None)
            .serve_connection(TokioIo::new(socket), service)
            .with_upgrades()
            .await
            .ok()?;
        let upgrade: OnUpgrade = upgrade.into_inner().ok()??;
        let parts = upgrade.await.ok()?.downcast::<TokioIo<S>>().ok()?;
        Some((parts.io.into_inner(), parts.read_buf))
    }

    fn respond<B>(
        &self,
        mut request: Request<B>,
        peer: Option<&Peer>,
        upgrade: &Mutex<Option<OnUpgrade>>,
    ) -> Result<Response<Full<Bytes>>, Infallible> {
        Ok(match self.gate.judge(&request) {
            Verdict::Answer(answer) => plain(answer),
            Verdict::Upgrade { .. } if !peer.is_some_and(self.admits) => plain(Answer {
                status: StatusCode::FORBIDDEN,
                text: "connections of other users are refused; allow_other_users admits them",
                header: None,
            }),
            Verdict::Upgrade { key } => {
                let mut upgrade = upgrade.lock().expect("nothing panics while it holds the lock");
                *upgrade = Some(hyper::upgrade::on(&mut request));
                switching_protocols(&key)
            }
        })
    }
}

fn switching_protocols(key: &HeaderValue) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::default());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let accept = HeaderValue::try_from(derive_accept_key(key.as_bytes()))
        .expect("base64 is a valid header value");
    let headers = response.headers_mut();
    headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
    headers.insert(SEC_WEBSOCKET_ACCEPT, accept);
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

pub(super) struct Handshakes {
    max: usize,
    tasks: JoinSet<()>,
    oldest_first: VecDeque<AbortHandle>,
}

impl Handshakes {
    pub(super) fn at_most(max: usize) -> Self {
        Self { max, tasks: JoinSet::new(), oldest_first: VecDeque::new() }
    }

    fn spawn(&mut self, handshake: impl Future<Output = ()> + Send + 'static) {
        while self.tasks.try_join_next().is_some() {}
        self.oldest_first.retain(|task| !task.is_finished());
        if self.oldest_first.len() >= self.max
            && let Some(oldest) = self.oldest_first.pop_front()
        {
            oldest.abort();
        }
        self.oldest_first.push_back(self.tasks.spawn(handshake));
    }
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

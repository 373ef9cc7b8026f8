//! The HTTP proxy of a managed process: CONNECT, and requests of plain HTTP.
//!
//! Every request is judged separately. One of plain HTTP is sent over a new connection and
//! serialized again by the HTTP library, so the framing chosen by the program cannot smuggle a
//! second request.

mod forward;
mod headers;
mod rejection;
mod target;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http_body_util::{Either, Full};
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper::{Method, Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpStream;

use self::forward::{CountedStream, OwnedTask, UpstreamBody, forward};
use self::rejection::Rejection;
use self::target::{Target, connect_target, request_target};
use super::pump::{pump, reset, write_all};
use super::state::GateState;
use crate::network::policy::{Access, Host, Protocol, Route};

const HEADER_READ_TIMEOUT: Duration = Duration::from_secs(30);
const MAX_HEAD_BYTES: usize = 64 << 10;
const MAX_HEADERS: usize = 100;

type Body = Either<Full<Bytes>, UpstreamBody>;

pub(super) async fn serve_proxy(state: Arc<GateState>, stream: TcpStream) {
    serve(state, stream, None).await;
}

/// Serves a direct connection as plain HTTP. All requests go to `host`.
pub(super) async fn serve_fixed(state: Arc<GateState>, stream: TcpStream, host: Host, port: u16) {
    serve(state, stream, Some(Target { host, port })).await;
}

async fn serve(state: Arc<GateState>, stream: TcpStream, fixed: Option<Target>) {
    let service = Arc::new(ProxyService {
        peer: stream.peer_addr().ok(),
        state,
        fixed,
        tunnel: Mutex::default(),
    });
    let handler = {
        let service = Arc::clone(&service);
        service_fn(move |request| {
            let service = Arc::clone(&service);
            async move { Ok::<_, Infallible>(service.handle(request).await) }
        })
    };
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_READ_TIMEOUT)
        .max_header_size(MAX_HEAD_BYTES)
        .max_buf_size(MAX_HEAD_BYTES)
        .max_headers(MAX_HEADERS)
        // Programs such as `nc` half-close the connection after they have sent a request.
        .half_close(true)
        .preserve_header_case(true)
        .auto_date_header(false)
        .serve_connection(TokioIo::new(stream), handler)
        .with_upgrades();
    if let Err(error) = Box::pin(served).await {
        let peer = service.peer;
        tracing::debug!(%error, ?peer, "a proxy connection of a managed process failed");
    }
    let tunnel = service.tunnel.lock().expect("no code panics while it holds the tunnel").take();
    if let Some(tunnel) = tunnel {
        tunnel.run(&service.state).await;
    }
}

struct ProxyService {
    state: Arc<GateState>,
    peer: Option<SocketAddr>,
    /// The only target of a direct connection. `None` for a proxy connection, in which each request
    /// names a target.
    fixed: Option<Target>,
    /// Set by the request that turns the connection into a tunnel, which is the last request.
    tunnel: Mutex<Option<Tunnel>>,
}

impl ProxyService {
    async fn handle(&self, request: Request<Incoming>) -> Response<Body> {
        let handled = match (request.method(), &self.fixed) {
            (&Method::CONNECT, None) => self.connect(request).await,
            _ => self.forward(request).await,
        };
        handled.unwrap_or_else(Rejection::into_response)
    }

    async fn connect(&self, mut request: Request<Incoming>) -> Result<Response<Body>, Rejection> {
        let Target { host, port } = connect_target(&request).map_err(Rejection::bad_request)?;
        let host = self.meant_host(host, port)?;
        let access = Access {
            host: &host,
            port,
            protocol: Protocol::HttpsConnect,
            route: Route::Proxy,
            method: None,
        };
        let outside = self.state.connect(&access, self.peer).await;
        let outside = outside.map_err(|error| Rejection::from_dial(&error, &host, port))?;
        self.start_tunnel(Tunnel {
            inside: hyper::upgrade::on(&mut request),
            outside: Outside::Connected(outside),
        });
        Ok(Response::new(Either::Left(Full::default())))
    }

    async fn forward(&self, request: Request<Incoming>) -> Result<Response<Body>, Rejection> {
        let target =
            request_target(&request, self.fixed.as_ref()).map_err(Rejection::bad_request)?;
        headers::check_framing(request.headers()).map_err(Rejection::bad_request)?;
        let Target { host, port } = target;
        let host = self.meant_host(host, port)?;
        let method = request.method().clone();
        let access = Access {
            host: &host,
            port,
            protocol: Protocol::Http,
            route: if self.fixed.is_some() { Route::Direct } else { Route::Proxy },
            method: Some(method.as_str()),
        };
        let outside = self.state.connect(&access, self.peer).await;
        let outside = outside.map_err(|error| Rejection::from_dial(&error, &host, port))?;
        // The bytes after an upgrade are not HTTP requests and cannot be judged.
        let opaque = Access { protocol: Protocol::HttpsConnect, method: None, ..access.clone() };
        let may_upgrade = !self.state.judge.refuses_by_mode(&opaque);
        let stream = CountedStream::new(outside, Arc::clone(&self.state));
        let forwarded = forward(request, &host.with_port(port), stream, may_upgrade).await;
        let (response, tunnel) = forwarded.map_err(|error| {
            let host = host.with_port(port);
            tracing::debug!(%error, %host, "a forwarded request failed");
            Rejection::bad_gateway(format!("{host}: {error}"))
        })?;
        if let Some(tunnel) = tunnel {
            self.start_tunnel(tunnel);
        }
        Ok(response.map(Either::Right))
    }

    fn meant_host(&self, host: Host, port: u16) -> Result<Host, Rejection> {
        let named = host.with_port(port);
        self.state.meant_host(host).ok_or_else(|| {
            Rejection::bad_gateway(format!(
                "{named} is a synthetic address without a name: the name was refused, or another \
                 process looked it up"
            ))
        })
    }

    fn start_tunnel(&self, tunnel: Tunnel) {
        *self.tunnel.lock().expect("no code panics while it holds the tunnel") = Some(tunnel);
    }
}

/// A connection that stops being HTTP once both ends have switched.
struct Tunnel {
    inside: OnUpgrade,
    outside: Outside,
}

enum Outside {
    Connected(TcpStream),
    /// The host agreed to an upgrade. The task drives its connection until the upgrade is complete.
    Upgrading(OnUpgrade, OwnedTask),
}

impl Tunnel {
    async fn run(self, state: &GateState) {
        let Ok(inside) = self.inside.await else { return };
        let Some((inside, early_up)) = into_stream(inside, |stream: TcpStream| stream) else {
            return;
        };
        let (outside, early_down) = match self.outside {
            Outside::Connected(stream) => (stream, Bytes::new()),
            Outside::Upgrading(upgrade, _task) => {
                let upgraded = upgrade.await.ok();
                let stream = upgraded.and_then(|io| into_stream(io, CountedStream::into_inner));
                let Some(stream) = stream else { return reset(inside) };
                stream
            }
        };
        state.traffic.count_up(early_up.len());
        let early = async {
            write_all(&outside, &early_up).await?;
            write_all(&inside, &early_down).await
        };
        match early.await {
            Ok(()) => pump(inside, outside, &state.traffic).await,
            Err(_) => {
                reset(inside);
                reset(outside);
            }
        }
    }
}

/// Returns the socket of an upgraded connection, with the bytes already read from it.
fn into_stream<T>(
    upgraded: Upgraded,
    into_inner: impl FnOnce(T) -> TcpStream,
) -> Option<(TcpStream, Bytes)>
where
    TokioIo<T>: hyper::rt::Read + hyper::rt::Write + Unpin + 'static,
{
    let parts = upgraded.downcast::<TokioIo<T>>().ok()?;
    Some((into_inner(parts.io.into_inner()), parts.read_buf))
}

#[cfg(test)]
mod tests;

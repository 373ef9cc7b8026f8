//! Sends one request to the host and returns its response, without buffering either body.

use std::error::Error as _;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use hyper::client::conn::http1;
use hyper::header::{CONNECTION, HOST, HeaderValue};
use hyper::{Request, Response, StatusCode, Uri, Version};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use super::super::state::GateState;
use super::headers::{check_framing, remove_hop_by_hop, set_upgrade, upgrade_of};
use super::{MAX_HEAD_BYTES, Outside, Tunnel};

#[derive(Debug, thiserror::Error)]
pub(super) enum ForwardError {
    #[error("the HTTP exchange failed: {source}{}", cause(.source))]
    Http {
        #[from]
        source: hyper::Error,
    },
    #[error("the target is not valid in a Host header")]
    Host,
    #[error("{0}")]
    Framing(&'static str),
}

/// Returns the cause of the error, which its own text leaves out, as a suffix.
fn cause(error: &hyper::Error) -> String {
    error.source().map_or_else(String::new, |cause| format!(": {cause}"))
}

/// Forwards a request over a new connection. If the host switches protocols, also returns the
/// tunnel.
pub(super) async fn forward(
    mut request: Request<Incoming>,
    authority: &str,
    stream: CountedStream,
    may_upgrade: bool,
) -> Result<(Response<UpstreamBody>, Option<Tunnel>), ForwardError> {
    let inside = hyper::upgrade::on(&mut request);
    let upgrade = upgrade_of(request.headers()).filter(|_| may_upgrade);
    let wants_upgrade = upgrade.is_some();
    rewrite(&mut request, authority, upgrade)?;
    let (mut sender, connection) = http1::Builder::new()
        .preserve_header_case(true)
        .max_header_size(MAX_HEAD_BYTES)
        .handshake(TokioIo::new(stream))
        .await?;
    let host = authority.to_owned();
    let task = OwnedTask(tokio::spawn(async move {
        if let Err(error) = connection.with_upgrades().await {
            tracing::debug!(%error, %host, "a forwarded connection of a managed process failed");
        }
    }));
    let mut response = sender.send_request(request).await?;
    check_framing(response.headers()).map_err(ForwardError::Framing)?;
    let switched = upgrade_of(response.headers());
    remove_hop_by_hop(response.headers_mut());
    *response.version_mut() = Version::HTTP_11;
    if response.status() != StatusCode::SWITCHING_PROTOCOLS {
        return Ok((response.map(|body| UpstreamBody { body, _task: Some(task) }), None));
    }
    let Some(protocol) = switched.filter(|_| wants_upgrade) else {
        return Err(ForwardError::Framing(
            "the host switched protocols, but the request did not ask for it",
        ));
    };
    set_upgrade(response.headers_mut(), protocol);
    let outside = Outside::Upgrading(hyper::upgrade::on(&mut response), task);
    let response = response.map(|body| UpstreamBody { body, _task: None });
    Ok((response, Some(Tunnel { inside, outside })))
}

/// Turns a proxy request into a request to the host itself.
fn rewrite(
    request: &mut Request<Incoming>,
    authority: &str,
    upgrade: Option<HeaderValue>,
) -> Result<(), ForwardError> {
    let path = request.uri().path_and_query().cloned();
    *request.uri_mut() = path.map(Uri::from).unwrap_or_default();
    *request.version_mut() = Version::HTTP_11;
    let host = authority.strip_suffix(":80").unwrap_or(authority);
    let host = HeaderValue::from_str(host).map_err(|_| ForwardError::Host)?;
    let headers = request.headers_mut();
    remove_hop_by_hop(headers);
    headers.insert(HOST, host);
    match upgrade {
        Some(protocol) => set_upgrade(headers, protocol),
        None => _ = headers.insert(CONNECTION, HeaderValue::from_static("close")),
    }
    Ok(())
}

/// A task that is aborted when its owner is dropped.
#[derive(Debug)]
pub(super) struct OwnedTask(JoinHandle<()>);

impl Drop for OwnedTask {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The body of a response, with the task that drives its connection.
#[derive(Debug)]
pub(super) struct UpstreamBody {
    body: Incoming,
    _task: Option<OwnedTask>,
}

impl Body for UpstreamBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[derive(Debug)]
pub(super) struct CountedStream {
    stream: TcpStream,
    state: Arc<GateState>,
}

impl CountedStream {
    pub(super) fn new(stream: TcpStream, state: Arc<GateState>) -> Self {
        Self { stream, state }
    }

    pub(super) fn into_inner(self) -> TcpStream {
        self.stream
    }
}

impl AsyncRead for CountedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(context, buffer);
        self.state.traffic.count_down(buffer.filled().len() - before);
        polled
    }
}

impl AsyncWrite for CountedStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(context, bytes);
        if let Poll::Ready(Ok(written)) = &polled {
            self.state.traffic.count_up(*written);
        }
        polled
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        if let Poll::Ready(Ok(written)) = &polled {
            self.state.traffic.count_up(*written);
        }
        polled
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

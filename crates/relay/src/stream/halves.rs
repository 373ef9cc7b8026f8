//! The reading and the writing half of a stream, for the application.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use exec_server_transport::{StreamPeer, YieldBudget};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::watch;
use tokio::time::timeout;

use super::Stream;
use super::state::State;

/// The reading half. Ends once the stream has ended and every complete record was read.
#[derive(Debug)]
pub(super) struct StreamReader {
    stream: Arc<Stream>,
    /// Lets acknowledgements leave before more is read.
    budget: YieldBudget,
}

/// The writing half. Dropping it closes the stream.
#[derive(Debug)]
pub(super) struct StreamWriter {
    stream: Arc<Stream>,
    /// Lets records leave before more is written.
    budget: YieldBudget,
}

impl StreamReader {
    pub(super) fn new(stream: Arc<Stream>) -> Self {
        Self { stream, budget: YieldBudget::default() }
    }
}

impl StreamWriter {
    pub(super) fn new(stream: Arc<Stream>) -> Self {
        Self { stream, budget: YieldBudget::default() }
    }
}

impl AsyncRead for StreamReader {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        ready!(self.budget.poll_ready(context));
        let before = buffer.filled().len();
        ready!(self.stream.change(|state, now| state.poll_read(context, buffer, now)))?;
        self.budget.consume(buffer.filled().len() - before);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for StreamWriter {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        ready!(self.budget.poll_ready(context));
        let count = ready!(self.stream.change(|state, _| state.poll_write(context, bytes)))?;
        self.budget.consume(count);
        Poll::Ready(Ok(count))
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream.change(|state, _| state.poll_flush(context))
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream.change(|state, now| state.poll_shutdown(context, now))
    }
}

impl Drop for StreamWriter {
    fn drop(&mut self) {
        self.stream.change(State::close);
    }
}

/// Reports on the peer of a stream to its connection.
#[derive(Debug)]
pub(super) struct Peer(pub(super) Arc<Stream>);

impl StreamPeer for Peer {
    fn bytes_read(&self) -> Option<watch::Receiver<u64>> {
        self.0.peer_acknowledges().then(|| self.0.bytes_read.subscribe())
    }

    /// A peer that never acknowledges cannot be probed: it counts as alive until its stream ends.
    fn probe(&self, limit: Duration) -> Pin<Box<dyn Future<Output = bool> + Send + '_>> {
        let stream = &self.0;
        if !stream.peer_acknowledges() {
            return Box::pin(std::future::ready(!stream.is_over()));
        }
        let mut heard = stream.heard.subscribe();
        stream.change(|state, _| state.ask_for_heartbeat());
        Box::pin(async move { timeout(limit, heard.changed()).await.is_ok() && !stream.is_over() })
    }
}

//! The two tasks of a socket: one reads and routes its frames, one writes its queued frames.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use exec_server_relay::frame::peek_stream_id;
use exec_server_transport::{CloseCode, Connection, Incoming, Outgoing, Received, YieldBudget};
use tokio::time::{Instant, timeout};

use super::environment::{Environment, Route, Socket};
use super::frame_queue::{Closing, FrameQueue, Full};
use super::read_limits::ReadLimits;
use super::{ENDED, Router, SLOW, TEXT, count};

/// How long a socket may take for one batch. A peer that responds to pings but reads nothing else
/// would otherwise hold shared memory forever.
const WRITE_DEADLINE: Duration = Duration::from_secs(60);

const NOT_A_FRAME: Closing = Closing::new(CloseCode::Protocol, "not a relay frame");

pub(super) struct Relay<'r> {
    pub(super) router: &'r Router,
    pub(super) environment: &'r Environment,
    pub(super) socket: &'r Arc<Socket>,
    pub(super) limits: ReadLimits,
}

impl Relay<'_> {
    pub(super) async fn serve_environment(&self, connection: Connection) {
        let (mut incoming, writer) = self.start(connection);
        let mut budget = YieldBudget::default();
        while let Some(received) =
            self.limits.receive(&mut incoming, &mut budget, &self.socket.queue).await
        {
            self.limits.keep_to_rate(&self.socket.queue).await;
            match &received {
                Received::Message(frame) => self.route_to_harness(frame),
                Received::Malformed(_) => count(&self.router.counters.malformed),
            }
        }
        self.end(incoming, writer).await;
    }

    pub(super) async fn serve_harness(&self, connection: Connection) {
        let (mut incoming, writer) = self.start(connection);
        let mut budget = YieldBudget::default();
        while let Some(received) =
            self.limits.receive(&mut incoming, &mut budget, &self.socket.queue).await
        {
            self.limits.keep_to_rate(&self.socket.queue).await;
            match received {
                Received::Message(frame) => self.route_to_environment(frame).await,
                Received::Malformed(_) => {
                    count(&self.router.counters.malformed);
                    self.socket.queue.close(TEXT);
                }
            }
        }
        if incoming.peer_close() == Some(CloseCode::Normal) {
            // The harness has not lost its socket; it has ended its streams.
            self.environment.end_streams_of(self.socket.id);
        }
        self.end(incoming, writer).await;
    }

    fn start(&self, connection: Connection) -> (Incoming, tokio::task::JoinHandle<()>) {
        let Connection { mut incoming, outgoing, .. } = connection;
        self.limits.apply_to(&mut incoming);
        let socket = Arc::clone(self.socket);
        (incoming, tokio::spawn(async move { write_frames(outgoing, &socket.queue).await }))
    }

    /// Lets the peer read the close frame, and ends the writer.
    async fn end(&self, mut incoming: Incoming, writer: tokio::task::JoinHandle<()>) {
        self.socket.queue.close(ENDED);
        let Closing { code, reason } = self.socket.queue.closed().await;
        incoming.close(code, &reason);
        while incoming.recv().await.is_some() {}
        // The task never panics and is not aborted.
        let _ = writer.await;
    }

    /// Routes a frame to a harness. Never waits: a frame for another stream may be behind it.
    fn route_to_harness(&self, frame: &Bytes) {
        let counters = &self.router.counters;
        let Ok(stream_id) = peek_stream_id(frame) else { return count(&counters.malformed) };
        let Some(harness) = self.environment.harness_of(stream_id) else {
            return count(&counters.dropped);
        };
        match harness.queue.try_push(frame.clone()) {
            Ok(()) => self.count_routed(frame),
            // Another socket has used up the budget; the environment retransmits the frame.
            Err(Full::Budget) => count(&counters.dropped),
            Err(Full::Queue) => {
                count(&counters.slow);
                harness.queue.close(SLOW);
            }
        }
    }

    async fn route_to_environment(&self, frame: Bytes) {
        let counters = &self.router.counters;
        let route = match peek_stream_id(&frame) {
            Ok(stream_id) => {
                self.environment.route_to_environment(stream_id, self.socket, Instant::now())
            }
            Err(_) => Route::Malformed,
        };
        match route {
            Route::Environment(environment) => {
                self.count_routed(&frame);
                tokio::select! {
                    () = environment.queue.push(frame) => {}
                    _ = self.socket.queue.closed() => {}
                }
            }
            Route::Drop => count(&counters.dropped),
            Route::Refuse(reset) => {
                count(&counters.refusals);
                match self.socket.queue.try_push(reset) {
                    Ok(()) => {}
                    // Without the reset, the harness times out.
                    Err(Full::Budget) => count(&counters.dropped),
                    Err(Full::Queue) => self.socket.queue.close(SLOW),
                }
            }
            Route::Malformed => {
                count(&counters.malformed);
                self.socket.queue.close(NOT_A_FRAME);
            }
        }
    }

    fn count_routed(&self, frame: &Bytes) {
        self.environment.count(frame);
        let counters = &self.router.counters;
        count(&counters.frames);
        counters.bytes.fetch_add(frame.len() as u64, Ordering::Relaxed);
    }
}

/// Writes the frames of a queue until it is closed, and then closes the socket.
pub(crate) async fn write_frames(mut outgoing: Outgoing, queue: &FrameQueue) {
    outgoing.send_binary();
    let mut batch = Vec::new();
    let mut under_way = 0;
    let closing = loop {
        tokio::select! {
            biased;
            closing = queue.closed() => break closing,
            cost = queue.next_batch(&mut batch) => {
                under_way = cost;
                for frame in batch.drain(..) {
                    outgoing.push_owned(frame);
                }
            }
            () = outgoing.control_pending() => {}
        }
        tokio::select! {
            biased;
            flushed = timeout(WRITE_DEADLINE, outgoing.flush()) => match flushed {
                Ok(Ok(())) => queue.written(std::mem::take(&mut under_way)),
                Ok(Err(_)) => queue.close(ENDED),
                Err(_) => queue.close(SLOW),
            },
            closing = queue.closed() => break closing,
        }
    };
    outgoing.close(closing.code, &closing.reason).await;
}

//! The HTTP bodies that are on their way to one connection.

use std::collections::VecDeque;
use std::sync::Arc;

use exec_server_protocol::{ErrorCode, MAX_NAME_BYTES, RpcError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use super::named::{Claim, NameRules, Named};
use crate::local::MAX_BODY_BYTES;

const MAX_STREAMS: usize = 1024;
/// Whole bodies that are being read at once; further ones wait.
const WHOLE_BODIES_KIB: usize = 256 << 10;
/// How much of a stream its client may have before it says that it has consumed it.
const WINDOW_BYTES: usize = 2 << 20;

#[derive(Debug)]
pub(super) struct ConnectionBodies {
    streams: Arc<Named<Arc<Stream>>>,
    whole: Arc<Semaphore>,
}

/// What the client says about a body while it is sent.
#[derive(Debug)]
pub(super) struct Stream {
    consumed: watch::Sender<u64>,
    cancelled: watch::Sender<bool>,
}

impl Default for ConnectionBodies {
    fn default() -> Self {
        let rules = NameRules {
            member: "requestId",
            max_bytes: MAX_NAME_BYTES,
            max_names: MAX_STREAMS,
            duplicate: ErrorCode::InvalidParams,
        };
        Self { streams: Named::new(rules), whole: Arc::new(Semaphore::new(WHOLE_BODIES_KIB)) }
    }
}

impl ConnectionBodies {
    /// A stream is known by its id for as long as the claim is held.
    pub(super) fn open(
        &self,
        request_id: String,
    ) -> Result<(Arc<Stream>, Claim<Arc<Stream>>), RpcError> {
        let claim = self.streams.claim(request_id)?;
        let stream = Arc::new(Stream {
            consumed: watch::Sender::new(0),
            cancelled: watch::Sender::new(false),
        });
        // The name was taken just now.
        let _ = claim.fill(Arc::clone(&stream));
        Ok((stream, claim))
    }

    pub(super) fn acknowledge(&self, request_id: &str, seq: u64) {
        if let Some(stream) = self.streams.get(request_id) {
            stream.consumed.send_if_modified(|consumed| {
                let more = seq > *consumed;
                *consumed = seq.max(*consumed);
                more
            });
        }
    }

    pub(super) fn cancel(&self, request_id: &str) {
        if let Some(stream) = self.streams.remove(request_id) {
            stream.cancelled.send_replace(true);
        }
    }

    /// Waits until a whole body of this size, or of any, may be read.
    pub(super) async fn whole(&self, expected: Option<usize>) -> Option<OwnedSemaphorePermit> {
        let bytes = expected.unwrap_or(MAX_BODY_BYTES).min(MAX_BODY_BYTES);
        let kib = u32::try_from(bytes.div_ceil(1 << 10)).unwrap_or(u32::MAX);
        Arc::clone(&self.whole).acquire_many_owned(kib).await.ok()
    }
}

impl Stream {
    pub(super) async fn cancelled(&self) {
        // The sender is ours, so it cannot be gone.
        let _ = self.cancelled.subscribe().wait_for(|cancelled| *cancelled).await;
    }
}

/// What of a stream has been sent and not consumed. A client that never says so is held back by its socket alone.
#[derive(Debug)]
pub(super) struct StreamWindow {
    consumed: Option<watch::Receiver<u64>>,
    sent: VecDeque<(u64, usize)>,
    bytes: usize,
}

impl StreamWindow {
    pub(super) fn new(stream: &Stream, client_acks: bool) -> Self {
        let consumed = client_acks.then(|| stream.consumed.subscribe());
        Self { consumed, sent: VecDeque::new(), bytes: 0 }
    }

    pub(super) fn sent(&mut self, seq: u64, bytes: usize) {
        if self.consumed.is_some() {
            self.sent.push_back((seq, bytes));
            self.bytes += bytes;
        }
    }

    /// Waits until the client has consumed enough.
    pub(super) async fn open(&mut self) {
        let Some(consumed) = &mut self.consumed else { return };
        loop {
            let seq = *consumed.borrow_and_update();
            while let Some(&(sent, bytes)) = self.sent.front()
                && sent <= seq
            {
                self.bytes -= bytes;
                self.sent.pop_front();
            }
            if self.bytes < WINDOW_BYTES || consumed.changed().await.is_err() {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn is_open(window: &mut StreamWindow) -> bool {
        tokio::select! {
            biased;
            () = window.open() => true,
            () = std::future::ready(()) => false,
        }
    }

    #[tokio::test]
    async fn a_window_opens_when_its_client_has_consumed() {
        let bodies = ConnectionBodies::default();
        let (stream, _claim) = bodies.open("r".into()).unwrap();
        let mut window = StreamWindow::new(&stream, true);
        window.sent(1, WINDOW_BYTES - 1);
        assert!(is_open(&mut window).await);
        window.sent(2, 1);
        assert!(!is_open(&mut window).await);
        bodies.acknowledge("r", 1);
        assert!(is_open(&mut window).await);
        bodies.acknowledge("r", 0);
        bodies.acknowledge("other", 9);
        window.sent(3, WINDOW_BYTES);
        assert!(!is_open(&mut window).await, "an older confirmation changes nothing");
    }

    #[tokio::test]
    async fn a_client_that_never_confirms_is_not_waited_for() {
        let bodies = ConnectionBodies::default();
        let (stream, _claim) = bodies.open("r".into()).unwrap();
        let mut window = StreamWindow::new(&stream, false);
        window.sent(1, 10 * WINDOW_BYTES);
        assert!(is_open(&mut window).await);
    }

    #[tokio::test]
    async fn an_id_is_free_again_when_its_stream_is_over() {
        let bodies = ConnectionBodies::default();
        let (stream, claim) = bodies.open("r".into()).unwrap();
        assert_eq!(bodies.open("r".into()).unwrap_err().code, -32602);
        bodies.cancel("r");
        stream.cancelled().await;
        let (_stream, _claim) = bodies.open("r".into()).unwrap();
        drop(claim);
        assert!(bodies.open("r".into()).is_err(), "the older one took the name of the newer");
    }
}

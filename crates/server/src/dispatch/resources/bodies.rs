//! The HTTP requests and bodies of one connection.

use std::collections::{HashMap, VecDeque};
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use exec_server_protocol::{ErrorCode, ErrorKind, MAX_NAME_BYTES, RpcError};
use exec_server_transport::Holding;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use super::id_table::{Claim, IdRules, IdTable};

const MAX_STREAMS: usize = 1024;
/// Memory for whole bodies that are being read; a body that exceeds it is refused.
const WHOLE_BODIES_KIB: usize = 256 << 10;
/// Memory that is reserved at a time while a body grows.
const GROWTH_KIB: u32 = 1 << 10;
/// Memory of a delta in addition to its content.
const DELTA_OVERHEAD: usize = 128;
/// How much of a stream its client may receive before it confirms consumption.
const WINDOW_BYTES: usize = 2 << 20;

#[derive(Debug)]
pub(crate) struct HttpBodies {
    streams: Arc<IdTable<Arc<HttpStream>>>,
    requests: Arc<WholeRequests>,
    whole: Arc<Semaphore>,
}

/// Requests that are answered with their whole response. Some deployed clients use one id for all
/// such requests, so only the id of a stream must be unique.
#[derive(Debug, Default)]
struct WholeRequests {
    by_id: Mutex<HashMap<String, Vec<Arc<HttpStream>>>>,
}

impl WholeRequests {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Vec<Arc<HttpStream>>>> {
        self.by_id.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request for a whole response, which can be cancelled until this is dropped.
#[derive(Debug)]
pub(crate) struct WholeRequest {
    id: String,
    stream: Arc<HttpStream>,
    requests: Arc<WholeRequests>,
}

impl WholeRequest {
    pub(crate) async fn cancelled(&self) {
        self.stream.cancelled().await;
    }
}

impl Drop for WholeRequest {
    fn drop(&mut self) {
        let mut requests = self.requests.lock();
        if let Some(same_id) = requests.get_mut(&self.id) {
            same_id.retain(|stream| !Arc::ptr_eq(stream, &self.stream));
            if same_id.is_empty() {
                requests.remove(&self.id);
            }
        }
        drop(requests);
        self.stream.ended.send_replace(true);
    }
}

/// The state of one request: how much of its body the client has consumed, and whether it was
/// cancelled or has ended.
#[derive(Debug, Default)]
pub(crate) struct HttpStream {
    consumed: watch::Sender<u64>,
    cancelled: watch::Sender<bool>,
    ended: watch::Sender<bool>,
}

/// A stream and its id. Dropping it frees the id; no notification with that id may follow.
#[derive(Debug)]
pub(crate) struct OpenStream {
    stream: Arc<HttpStream>,
    claim: Option<Claim<Arc<HttpStream>>>,
}

impl Deref for OpenStream {
    type Target = HttpStream;

    fn deref(&self) -> &HttpStream {
        &self.stream
    }
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.claim = None;
        self.stream.ended.send_replace(true);
    }
}

/// Memory for a whole body, reserved as it grows.
#[derive(Debug)]
pub(crate) struct BodyMemory {
    whole: Arc<Semaphore>,
    permits: Option<OwnedSemaphorePermit>,
    bytes: usize,
    /// Counts the body against the memory that connections share.
    held: Holding,
}

impl BodyMemory {
    /// Returns false if no memory is left for the body.
    pub(crate) fn grow_to(&mut self, bytes: usize) -> bool {
        if !self.held.try_grow_to(bytes) {
            return false;
        }
        while self.bytes < bytes {
            let Ok(more) = Arc::clone(&self.whole).try_acquire_many_owned(GROWTH_KIB) else {
                return false;
            };
            match &mut self.permits {
                Some(permits) => permits.merge(more),
                None => self.permits = Some(more),
            }
            self.bytes += (GROWTH_KIB as usize) << 10;
        }
        true
    }
}

impl HttpBodies {
    pub(crate) fn limited() -> Self {
        Self::with_limits(MAX_STREAMS, WHOLE_BODIES_KIB)
    }

    pub(crate) fn unlimited() -> Self {
        Self::with_limits(usize::MAX, Semaphore::MAX_PERMITS)
    }

    fn with_limits(max_entries: usize, whole_kib: usize) -> Self {
        let rules = IdRules {
            member: "requestId",
            max_bytes: MAX_NAME_BYTES,
            max_entries,
            bad_id: ErrorCode::InvalidParams,
        };
        let whole = Arc::new(Semaphore::new(whole_kib));
        Self { streams: IdTable::new(rules), requests: Arc::default(), whole }
    }

    pub(crate) fn open(&self, request_id: String) -> Result<OpenStream, RpcError> {
        let stream = Arc::new(HttpStream::default());
        let claim = self.streams.insert(request_id, Arc::clone(&stream))?;
        Ok(OpenStream { stream, claim: Some(claim) })
    }

    pub(crate) fn open_whole(&self, request_id: String) -> Result<WholeRequest, RpcError> {
        if self.streams.get(&request_id).is_some() {
            let message = format!(
                "requestId {request_id:?} is already in use for a stream on this connection"
            );
            return Err(RpcError::invalid_params(message).with_kind(ErrorKind::DuplicateId));
        }
        let stream = Arc::new(HttpStream::default());
        let mut requests = self.requests.lock();
        requests.entry(request_id.clone()).or_default().push(Arc::clone(&stream));
        drop(requests);
        Ok(WholeRequest { id: request_id, stream, requests: Arc::clone(&self.requests) })
    }

    pub(crate) fn acknowledge(&self, request_id: &str, seq: u64) {
        if let Some(stream) = self.streams.get(request_id) {
            stream.consumed.send_if_modified(|consumed| {
                let more = seq > *consumed;
                *consumed = seq.max(*consumed);
                more
            });
        }
    }

    /// Cancels every request with this id. A stream keeps its id until it has ended.
    pub(crate) fn cancel(&self, request_id: &str) -> Vec<Arc<HttpStream>> {
        let mut cancelled = self.requests.lock().get(request_id).cloned().unwrap_or_default();
        cancelled.extend(self.streams.get(request_id));
        for stream in &cancelled {
            stream.cancelled.send_replace(true);
        }
        cancelled
    }

    pub(crate) fn end(&self) {
        let whole = self.requests.lock().values().flatten().cloned().collect::<Vec<_>>();
        for stream in whole.into_iter().chain(self.streams.end()) {
            stream.cancelled.send_replace(true);
        }
    }

    pub(crate) fn memory(&self, held: Holding) -> BodyMemory {
        BodyMemory { whole: Arc::clone(&self.whole), permits: None, bytes: 0, held }
    }
}

impl HttpStream {
    pub(crate) async fn cancelled(&self) {
        // Cannot fail: the sender is in `self`.
        let _ = self.cancelled.subscribe().wait_for(|cancelled| *cancelled).await;
    }

    /// Resolves once no further message about the request can follow.
    pub(crate) async fn ended(&self) {
        let _ = self.ended.subscribe().wait_for(|ended| *ended).await;
    }
}

/// The part of a stream that was sent and not yet consumed. For a client that sends no acks, only
/// the socket limits the stream.
#[derive(Debug)]
pub(crate) struct StreamWindow {
    consumed: Option<watch::Receiver<u64>>,
    sent: VecDeque<(u64, usize)>,
    bytes: usize,
}

impl StreamWindow {
    pub(crate) fn new(stream: &HttpStream, client_acks: bool) -> Self {
        let consumed = client_acks.then(|| stream.consumed.subscribe());
        Self { consumed, sent: VecDeque::new(), bytes: 0 }
    }

    pub(crate) fn sent(&mut self, seq: u64, bytes: usize) {
        if self.consumed.is_some() {
            let bytes = bytes + DELTA_OVERHEAD;
            self.sent.push_back((seq, bytes));
            self.bytes += bytes;
        }
    }

    /// Waits until the client has consumed enough.
    pub(crate) async fn open(&mut self) {
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
    async fn a_window_opens_once_its_client_has_consumed() {
        let bodies = HttpBodies::limited();
        let stream = bodies.open("r".into()).unwrap();
        let mut window = StreamWindow::new(&stream, true);
        window.sent(1, WINDOW_BYTES - 1 - DELTA_OVERHEAD);
        assert!(is_open(&mut window).await);
        window.sent(2, 0);
        assert!(!is_open(&mut window).await);
        bodies.acknowledge("r", 1);
        assert!(is_open(&mut window).await);
        bodies.acknowledge("r", 0);
        bodies.acknowledge("other", 9);
        window.sent(3, WINDOW_BYTES);
        assert!(!is_open(&mut window).await, "an older confirmation changes nothing");
    }

    #[tokio::test]
    async fn a_client_that_never_confirms_delays_nothing() {
        let bodies = HttpBodies::limited();
        let stream = bodies.open("r".into()).unwrap();
        let mut window = StreamWindow::new(&stream, false);
        window.sent(1, 10 * WINDOW_BYTES);
        assert!(is_open(&mut window).await);
    }

    #[tokio::test]
    async fn an_id_is_free_once_its_stream_has_ended() {
        let bodies = HttpBodies::limited();
        let stream = bodies.open("r".into()).unwrap();
        assert_eq!(bodies.open("r".into()).unwrap_err().code, -32602);
        let cancelled = bodies.cancel("r").remove(0);
        stream.cancelled().await;
        assert!(bodies.open("r".into()).is_err(), "it may still send notifications");
        drop(stream);
        cancelled.ended().await;
        assert!(bodies.open("r".into()).is_ok());
        assert!(bodies.cancel("other").is_empty());
    }

    #[tokio::test]
    async fn whole_requests_may_share_an_id_but_not_with_a_stream() {
        let bodies = HttpBodies::limited();
        let (first, second) = (bodies.open_whole("r".into()), bodies.open_whole("r".into()));
        let (first, second) = (first.unwrap(), second.unwrap());
        let cancelled = bodies.cancel("r");
        assert_eq!(cancelled.len(), 2);
        first.cancelled().await;
        second.cancelled().await;
        drop((first, second));
        for stream in cancelled {
            stream.ended().await;
        }
        assert!(bodies.requests.lock().is_empty());
        let _stream = bodies.open("r".into()).unwrap();
        assert_eq!(bodies.open_whole("r".into()).unwrap_err().code, -32602);
    }

    #[test]
    fn all_bodies_share_one_memory_limit() {
        let bodies = HttpBodies::limited();
        let (mut first, mut second) =
            (bodies.memory(Holding::default()), bodies.memory(Holding::default()));
        assert!(first.grow_to((WHOLE_BODIES_KIB << 10) - 1));
        assert!(!second.grow_to(1));
        drop(first);
        assert!(second.grow_to(1));
    }
}

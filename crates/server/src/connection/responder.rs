//! The duty to answer one request, exactly once.

use std::sync::{Arc, Mutex, MutexGuard};

use exec_server_protocol::{
    BytesResponse, RequestId, Rpc, RpcError, bytes_response, error_response, response,
};
use exec_server_transport::Holding;

use super::feed::Feed;
use super::lanes::Place;
use super::outbox::Outbox;

/// Dropping it unanswered answers with an internal error: no client waits for ever.
#[derive(Debug)]
pub(crate) struct Responder {
    outbox: Arc<Outbox>,
    id: Option<RequestId>,
    place: Option<Place>,
    /// Counts until the request is answered.
    _text: RequestText,
}

impl Responder {
    pub(super) fn new(outbox: &Arc<Outbox>, id: RequestId, text: RequestText) -> Self {
        Self { outbox: Arc::clone(outbox), id: Some(id), place: None, _text: text }
    }

    /// False once the connection is over: work that has not begun is dropped then.
    pub(super) fn is_wanted(&self) -> bool {
        !self.outbox.is_closed()
    }

    pub(super) fn with_place(self, place: Place) -> Self {
        let mut this = self;
        this.place = Some(place);
        this
    }

    /// From here on the request only waits: gives its place back, unless that is the only one.
    pub(crate) fn release_place(&mut self) {
        self.place.take_if(|place| !place.is_only_one());
    }

    /// Answers with the result of the named method.
    pub(crate) fn answer<M: Rpc>(self, result: Result<M::Response, RpcError>) {
        self.encode::<M>(result).send();
    }

    /// Makes the answer, to be sent later.
    pub(super) fn encode<M: Rpc>(mut self, result: Result<M::Response, RpcError>) -> Encoded {
        let id = self.id.take().expect("a responder that has answered is gone");
        let message = match result {
            Ok(result) => response(&id, &result).unwrap_or_else(|error| unencodable(&id, &error)),
            Err(error) => error_response(&id, &error),
        };
        let message = self.sendable(&id, message);
        Encoded { outbox: Arc::clone(&self.outbox), message, _place: self.place.take() }
    }

    /// Fails if the answer cannot have so many bytes, encoded.
    pub(super) fn check_bytes(&self, bytes: usize) -> Result<(), RpcError> {
        let max = self.outbox.max_answer();
        if bytes.div_ceil(3).saturating_mul(4) > max { Err(too_large(max)) } else { Ok(()) }
    }

    /// Answers with one member of bytes, and `more` behind it.
    pub(super) fn answer_bytes(mut self, member: &str, bytes: &[u8], more: &str) {
        if let Some(id) = self.id.take() {
            self.outbox.push(self.sendable(&id, bytes_response(&id, member, bytes, more)));
        }
    }

    /// The same for bytes that `read` appends, piece by piece, until they are too many.
    pub(super) fn answer_pieces(
        mut self,
        member: &str,
        expected_bytes: usize,
        read: impl FnOnce(&mut dyn FnMut(&[u8]) -> Result<(), RpcError>) -> Result<(), RpcError>,
    ) {
        let Some(id) = self.id.take() else { return };
        let max = self.outbox.max_answer();
        let mut response = BytesResponse::new(&id, member, expected_bytes.min(max));
        let read = read(&mut |piece| {
            response.append(piece);
            if response.len() > max { Err(too_large(max)) } else { Ok(()) }
        });
        self.outbox.push(match read {
            Ok(()) => self.sendable(&id, response.finish("")),
            Err(error) => error_response(&id, &error),
        });
    }

    /// Answers with events of a process up to `seq`, which count as received when the answer is.
    pub(super) fn answer_events<M: Rpc>(mut self, result: &M::Response, feed: Arc<Feed>, seq: u64) {
        let Some(id) = self.id.take() else { return };
        match response(&id, result) {
            Ok(message) if message.len() <= self.outbox.max_answer() => {
                self.outbox.answer_events(message, feed, seq);
            }
            Ok(message) => self.outbox.push(self.sendable(&id, message)),
            Err(error) => self.outbox.push(unencodable(&id, &error)),
        }
    }

    pub(crate) fn fail(mut self, error: &RpcError) {
        if let Some(id) = self.id.take() {
            self.outbox.push(error_response(&id, error));
        }
    }

    /// The last resort: no client would take a larger message, or the server has no memory for it, and the
    /// connection has other requests to live for. What may be large has a bound of its own, and an answer
    /// that comes to this was missed there.
    fn sendable(&self, id: &RequestId, message: Vec<u8>) -> Vec<u8> {
        let (len, max) = (message.len(), self.outbox.max_answer());
        if len <= max {
            return message;
        }
        tracing::warn!(len, "an answer exceeds the largest message; an error is sent instead");
        error_response(id, &too_large(max))
    }
}

/// An answer that is made and not sent. The request keeps its place.
#[derive(Debug)]
pub(super) struct Encoded {
    outbox: Arc<Outbox>,
    message: Vec<u8>,
    _place: Option<Place>,
}

impl Encoded {
    pub(super) fn len(&self) -> usize {
        self.message.len()
    }

    pub(super) fn send(self) {
        self.outbox.push(self.message);
    }
}

/// The text of all requests of a connection that were not answered yet, as one: many small requests are as
/// large as a large one.
#[derive(Debug, Default)]
pub(super) struct RequestTexts(Mutex<(usize, Holding)>);

impl RequestTexts {
    pub(super) fn new(held: Holding) -> Self {
        Self(Mutex::new((0, held)))
    }

    pub(super) fn count(self: &Arc<Self>, bytes: usize) -> RequestText {
        self.add(bytes.cast_signed());
        RequestText { all: Arc::clone(self), bytes }
    }

    fn add(&self, bytes: isize) {
        let (total, held) = &mut *self.lock();
        *total = total.saturating_add_signed(bytes);
        held.set(*total);
    }

    fn lock(&self) -> MutexGuard<'_, (usize, Holding)> {
        self.0.lock().expect("no code panics while it counts text")
    }
}

/// The text of one request, given back when dropped.
#[derive(Debug)]
pub(super) struct RequestText {
    all: Arc<RequestTexts>,
    bytes: usize,
}

impl Drop for RequestText {
    fn drop(&mut self) {
        self.all.add(-self.bytes.cast_signed());
    }
}

fn too_large(max: usize) -> RpcError {
    let message = format!("the answer exceeds the limit of {max} bytes");
    RpcError::internal(message).with_kind("answerTooLarge")
}

fn unencodable(id: &RequestId, error: &serde_json::Error) -> Vec<u8> {
    error_response(id, &RpcError::internal(format!("result of {id}: {error}")))
}

impl Drop for Responder {
    fn drop(&mut self) {
        if let Some(id) = self.id.take() {
            let error = RpcError::internal("the request was abandoned by the server");
            self.outbox.push(error_response(&id, &error));
        }
    }
}

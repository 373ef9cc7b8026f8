//! The duty to answer one request, exactly once.

use std::sync::Arc;

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
    /// For the text of the request.
    text: Holding,
}

impl Responder {
    pub(super) fn new(outbox: &Arc<Outbox>, id: RequestId, text: Holding) -> Self {
        Self { outbox: Arc::clone(outbox), id: Some(id), place: None, text }
    }

    /// The text of the request counts until it is answered.
    pub(super) fn with_text(mut self, bytes: usize) -> Self {
        self.text.set(bytes);
        self
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

    /// Answers with one member of bytes, and `more` behind it.
    pub(super) fn answer_bytes(mut self, member: &str, bytes: &[u8], more: &str) {
        if let Some(id) = self.id.take() {
            self.outbox.push(self.sendable(&id, bytes_response(&id, member, bytes, more)));
        }
    }

    /// The same for bytes that `read` appends, piece by piece.
    pub(super) fn answer_pieces(
        mut self,
        member: &str,
        expected_bytes: usize,
        read: impl FnOnce(&mut BytesResponse) -> Result<(), RpcError>,
    ) {
        let Some(id) = self.id.take() else { return };
        let mut response = BytesResponse::new(&id, member, expected_bytes);
        self.outbox.push(match read(&mut response) {
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
        let error = format!("the answer of {len} bytes exceeds the limit of {max}");
        error_response(id, &RpcError::internal(error).with_kind("answerTooLarge"))
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

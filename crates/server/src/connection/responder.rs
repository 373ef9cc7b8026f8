//! The duty to answer one request, exactly once.

use std::sync::Arc;

use exec_server_protocol::{
    BytesResponse, RequestId, Rpc, RpcError, bytes_response, error_response, response,
};

use super::feed::Feed;
use super::lanes::Place;
use super::outbox::Outbox;

/// Dropping it unanswered answers with an internal error: no client waits for ever.
#[derive(Debug)]
pub(crate) struct Responder {
    outbox: Arc<Outbox>,
    id: Option<RequestId>,
    place: Option<Place>,
}

impl Responder {
    pub(super) fn new(outbox: &Arc<Outbox>, id: RequestId) -> Self {
        Self { outbox: Arc::clone(outbox), id: Some(id), place: None }
    }

    pub(super) fn with_place(self, place: Place) -> Self {
        let mut this = self;
        this.place = Some(place);
        this
    }

    /// Gives the place back: from here on the request only waits.
    pub(crate) fn release_place(&mut self) {
        self.place = None;
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
        Encoded { outbox: Arc::clone(&self.outbox), message, _place: self.place.take() }
    }

    /// Answers with one member of bytes, and `more` behind it.
    pub(super) fn answer_bytes(mut self, member: &str, bytes: &[u8], more: &str) {
        if let Some(id) = self.id.take() {
            self.outbox.push(bytes_response(&id, member, bytes, more));
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
            Ok(()) => response.finish(""),
            Err(error) => error_response(&id, &error),
        });
    }

    /// Answers with events of a process up to `seq`, which count as received when the answer is.
    pub(super) fn answer_events<M: Rpc>(mut self, result: &M::Response, feed: Arc<Feed>, seq: u64) {
        let Some(id) = self.id.take() else { return };
        match response(&id, result) {
            Ok(message) => self.outbox.answer_events(message, feed, seq),
            Err(error) => self.outbox.push(unencodable(&id, &error)),
        }
    }

    pub(crate) fn fail(mut self, error: &RpcError) {
        if let Some(id) = self.id.take() {
            self.outbox.push(error_response(&id, error));
        }
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

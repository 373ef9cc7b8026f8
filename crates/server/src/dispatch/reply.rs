//! The duty to answer one request, exactly once.

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};

use exec_server_protocol::{
    Base64ResponseWriter, Call, ErrorKind, EventSink, FsReadBlockResponse, FsReadFileResponse,
    RequestId, Respond, Rpc, RpcError, bytes_response, error_response, response, rpc,
};
use exec_server_telemetry::short;
use exec_server_transport::Holding;

use super::events::EventStream;
use crate::adapter::LargeFile;
use crate::connection::{ClientConnection, Outbox, RequestPermit};
use crate::feed::SocketFeed;
use crate::sessions::Session;
use crate::telemetry::{LaunchSpan, RequestRecord};

/// Sends an internal error if dropped unanswered, so no client waits forever.
pub(crate) struct Reply {
    to: Option<ReplyTo>,
    permit: Option<RequestPermit>,
    /// Counted until the request is answered.
    _text: Option<RequestText>,
    record: Option<RequestRecord>,
}

enum ReplyTo {
    /// Responds with text, to the request with this id.
    Socket { outbox: Arc<Outbox>, id: RequestId },
    /// Responds with a value.
    InProcess { respond: Respond, events: Option<Arc<dyn EventSink>> },
}

impl Reply {
    pub(crate) fn over_socket(
        outbox: &Arc<Outbox>,
        id: RequestId,
        text: RequestText,
        record: RequestRecord,
    ) -> Self {
        let to = Some(ReplyTo::Socket { outbox: Arc::clone(outbox), id });
        Self { to, permit: None, _text: Some(text), record: Some(record) }
    }

    pub(crate) fn in_process(
        respond: Respond,
        events: Option<Arc<dyn EventSink>>,
        record: RequestRecord,
    ) -> Self {
        let to = Some(ReplyTo::InProcess { respond, events });
        Self { to, permit: None, _text: None, record: Some(record) }
    }

    /// Records the call for the audit log. Fails if the call must not run.
    pub(crate) fn begin(&mut self, session: &Session, call: &Call) -> Result<(), RpcError> {
        match &mut self.record {
            Some(record) => record.run(session, call),
            None => Ok(()),
        }
    }

    /// Records for the audit log that the call changes this file.
    pub(crate) fn note_file_change(&mut self, path: &Path) {
        if let Some(record) = &mut self.record {
            record.changes_file(path);
        }
    }

    /// Records for the trace that a thread works on files for the request, until it is answered.
    pub(crate) fn begin_file_work(&mut self) {
        if let Some(record) = &mut self.record {
            record.begin_file_work();
        }
    }

    /// Records for the trace that the request waits.
    pub(crate) fn pause_file_work(&mut self) {
        if let Some(record) = &mut self.record {
            record.pause_file_work();
        }
    }

    pub(crate) fn launch(&mut self) -> LaunchSpan {
        self.record.as_mut().map(RequestRecord::launch).unwrap_or_default()
    }

    /// Completes the record. Called once for every response.
    fn answered(&mut self, error: Option<&RpcError>) {
        if let Some(record) = self.record.take() {
            record.answered(error);
        }
    }

    pub(crate) fn with_permit(mut self, permit: RequestPermit) -> Self {
        self.permit = Some(permit);
        self
    }

    /// Gives the permit back while the request only waits, unless it is the connection's only one.
    pub(crate) fn release_permit(&mut self) {
        self.permit.take_if(|permit| !permit.is_only_one());
    }

    /// Returns false once the connection has ended; work that has not begun is dropped then. A
    /// client in this program always wants its responses.
    pub(crate) fn is_wanted(&self) -> bool {
        match &self.to {
            Some(ReplyTo::Socket { outbox, .. }) => !outbox.is_closed(),
            Some(ReplyTo::InProcess { .. }) => true,
            None => false,
        }
    }

    pub(crate) fn events(&mut self, connection: &Arc<ClientConnection>) -> Option<EventStream> {
        match &mut self.to {
            Some(ReplyTo::Socket { .. }) => Some(EventStream::Socket(Arc::clone(connection))),
            Some(ReplyTo::InProcess { events, .. }) => events.take().map(EventStream::in_process),
            None => None,
        }
    }

    /// Takes the sink that a client in this program sent with the call.
    pub(crate) fn take_sink(&mut self) -> Option<Arc<dyn EventSink>> {
        match &mut self.to {
            Some(ReplyTo::InProcess { events, .. }) => events.take(),
            _ => None,
        }
    }

    pub(crate) fn send<M: Rpc>(self, result: Result<M::Response, RpcError>) {
        self.prepare::<M>(result).send();
    }

    pub(crate) fn fail(mut self, error: RpcError) {
        self.answered(Some(&error));
        self.to.take().expect("a reply is sent once, by value").fail(error);
    }

    pub(crate) fn prepare<M: Rpc>(mut self, result: Result<M::Response, RpcError>) -> Prepared {
        self.answered(result.as_ref().err());
        let response = match self.to.take().expect("a reply is sent once, by value") {
            ReplyTo::InProcess { respond, .. } => {
                let result = result.map(M::into_response);
                PreparedResponse::InProcess(Box::new(move || respond(result)))
            }
            ReplyTo::Socket { outbox, id } => {
                let message = match result {
                    Ok(result) => {
                        response(&id, &result).unwrap_or_else(|error| unencodable(&id, &error))
                    }
                    Err(error) => error_response(&id, &error),
                };
                let message = sendable(&outbox, &id, message);
                PreparedResponse::Socket { outbox, message }
            }
        };
        Prepared { response, _permit: self.permit.take() }
    }

    /// Fails if this many bytes, as base64, do not fit into the response.
    pub(crate) fn check_bytes(&self, bytes: usize) -> Result<(), RpcError> {
        let Some(ReplyTo::Socket { outbox, .. }) = &self.to else { return Ok(()) };
        let max = outbox.max_response();
        if bytes.div_ceil(3).saturating_mul(4) > max { Err(too_large(max)) } else { Ok(()) }
    }

    pub(crate) fn send_file(self, content: Vec<u8>) {
        let Some((_, id)) = self.socket() else {
            let response = FsReadFileResponse { data_base64: content.into() };
            return self.send::<rpc::FsReadFile>(Ok(response));
        };
        let message = bytes_response(id, "dataBase64", &content, "");
        self.push(message);
    }

    /// Reads the file in pieces, straight into the response.
    pub(crate) fn send_large_file(self, file: LargeFile) {
        self.send_pieces(file.expected_bytes(), |take| file.finish(take));
    }

    fn send_pieces(
        self,
        expected: usize,
        read: impl FnOnce(&mut dyn FnMut(&[u8]) -> Result<(), RpcError>) -> Result<(), RpcError>,
    ) {
        let Some((outbox, id)) = self.socket() else {
            let mut content = Vec::with_capacity(expected);
            let read = read(&mut |piece| {
                content.extend_from_slice(piece);
                Ok(())
            });
            let response = read.map(|()| FsReadFileResponse { data_base64: content.into() });
            return self.send::<rpc::FsReadFile>(response);
        };
        let max = outbox.max_response();
        let mut response = Base64ResponseWriter::new(id, "dataBase64", expected.min(max));
        let read = read(&mut |piece| {
            response.append(piece);
            if response.len() > max { Err(too_large(max)) } else { Ok(()) }
        });
        match read {
            Ok(()) => self.push(response.finish("")),
            Err(error) => self.fail(error),
        }
    }

    pub(crate) fn send_block(self, bytes: Vec<u8>, eof: bool) {
        let Some((_, id)) = self.socket() else {
            let response = FsReadBlockResponse { chunk: bytes.into(), eof };
            return self.send::<rpc::FsReadBlock>(Ok(response));
        };
        let more = if eof { r#","eof":true"# } else { r#","eof":false"# };
        let message = bytes_response(id, "chunk", &bytes, more);
        self.push(message);
    }

    /// Responds with events of a process up to `seq`. They count as received once the response has
    /// been received.
    pub(crate) fn send_events<M: Rpc>(
        mut self,
        result: M::Response,
        feed: Arc<SocketFeed>,
        seq: u64,
    ) {
        let Some((outbox, id)) = self.socket() else { return self.send::<M>(Ok(result)) };
        match response(id, &result) {
            Ok(message) if message.len() <= outbox.max_response() => {
                outbox.push_events(message, feed, seq);
                self.to = None;
                self.answered(None);
            }
            _ => self.send::<M>(Ok(result)),
        }
    }

    fn socket(&self) -> Option<(&Arc<Outbox>, &RequestId)> {
        match &self.to {
            Some(ReplyTo::Socket { outbox, id }) => Some((outbox, id)),
            _ => None,
        }
    }

    fn push(mut self, message: Vec<u8>) {
        self.answered(None);
        if let Some(ReplyTo::Socket { outbox, id }) = self.to.take() {
            outbox.push(sendable(&outbox, &id, message));
        }
    }
}

impl ReplyTo {
    fn fail(self, error: RpcError) {
        match self {
            Self::Socket { outbox, id } => {
                let message = error_response(&id, &error);
                outbox.push(sendable(&outbox, &id, message));
            }
            Self::InProcess { respond, .. } => respond(Err(error)),
        }
    }
}

/// A response that is built but not sent. The request keeps its permit.
pub(crate) struct Prepared {
    response: PreparedResponse,
    _permit: Option<RequestPermit>,
}

enum PreparedResponse {
    Socket { outbox: Arc<Outbox>, message: Vec<u8> },
    InProcess(Box<dyn FnOnce() + Send>),
}

impl Prepared {
    /// Returns the memory that the response takes in the connection's queue.
    pub(crate) fn len(&self) -> usize {
        match &self.response {
            PreparedResponse::Socket { message, .. } => message.len(),
            PreparedResponse::InProcess(_) => 0,
        }
    }

    pub(crate) fn send(self) {
        match self.response {
            PreparedResponse::Socket { outbox, message } => outbox.push(message),
            PreparedResponse::InProcess(respond) => respond(),
        }
    }
}

/// Replaces a response that is too large with an error: no client accepts such a message, or the
/// server has no memory for it, and closing the connection would fail its other requests. This is
/// the last resort, since responses that may be large have their own limits.
fn sendable(outbox: &Outbox, id: &RequestId, message: Vec<u8>) -> Vec<u8> {
    let (len, max) = (message.len(), outbox.max_response());
    if len <= max {
        return message;
    }
    let request = short(&id.to_string());
    tracing::warn!(
        request,
        len,
        max,
        "a response exceeds the message limit; sending an error instead"
    );
    error_response(id, &too_large(max))
}

fn too_large(max: usize) -> RpcError {
    let message = format!("the response exceeds the limit of {max} bytes; request less at once");
    RpcError::internal(message).with_kind(ErrorKind::AnswerTooLarge)
}

/// Counts the bytes of all unanswered requests of a connection towards its memory: many small
/// requests can take as much memory as a large one.
#[derive(Debug, Default)]
pub(crate) struct RequestTexts(Mutex<(usize, Holding)>);

impl RequestTexts {
    pub(crate) fn new(held: Holding) -> Self {
        Self(Mutex::new((0, held)))
    }

    pub(crate) fn count(self: &Arc<Self>, bytes: usize) -> RequestText {
        self.add(bytes.cast_signed());
        RequestText { all: Arc::clone(self), bytes }
    }

    /// Returns whether every request has been answered.
    pub(crate) fn is_empty(&self) -> bool {
        self.lock().0 == 0
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

/// The text of one request, released when dropped.
#[derive(Debug)]
pub(crate) struct RequestText {
    all: Arc<RequestTexts>,
    bytes: usize,
}

impl Drop for RequestText {
    fn drop(&mut self) {
        self.all.add(-self.bytes.cast_signed());
    }
}

fn unencodable(id: &RequestId, error: &serde_json::Error) -> Vec<u8> {
    let message = format!("cannot encode the response to request {id}: {error}");
    error_response(id, &RpcError::internal(message))
}

impl std::fmt::Debug for Reply {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let id = self.socket().map(|(_, id)| id);
        f.debug_struct("Reply").field("id", &id).finish_non_exhaustive()
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        if let Some(to) = self.to.take() {
            let error = RpcError::internal("the server abandoned the request");
            self.answered(Some(&error));
            to.fail(error);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use exec_server_transport::MemoryBudget;

    use super::*;

    #[test]
    fn a_panic_while_reading_a_large_file_gets_a_response() {
        let budget = MemoryBudget::new(1 << 20);
        let outbox = Arc::new(Outbox::new(&budget.share()));
        let text = Arc::new(RequestTexts::default()).count(0);
        // The budget counts only large responses. The error response is large because it repeats
        // the id.
        let id = RequestId::String("x".repeat(100_000));
        let reply = Reply::over_socket(&outbox, id, text, RequestRecord::unobserved());
        let answer = AssertUnwindSafe(|| reply.send_pieces(100, |_| panic!("on purpose")));
        catch_unwind(answer).unwrap_err();
        assert!(budget.used() > 0, "nothing waits to be sent");
    }

    /// An error may repeat a long path of the request.
    #[test]
    fn an_oversized_error_is_replaced_by_a_small_one() {
        let budget = MemoryBudget::new(1 << 20);
        let outbox = Arc::new(Outbox::new(&budget.share()));
        let text = Arc::new(RequestTexts::default()).count(0);
        let reply =
            Reply::over_socket(&outbox, RequestId::Integer(1), text, RequestRecord::unobserved());
        let len = outbox.max_response() + 1;
        reply.fail(RpcError::invalid_request("x".repeat(len)));
        assert!(!outbox.is_closed() && budget.used() < len, "{} bytes wait", budget.used());
    }
}

//! Requests from the server to one client: the open ones, and their responses.
//!
//! Every request ends exactly once: with a response, or with a failure. This module does not know
//! what a request is about.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

use exec_server_protocol::{
    ErrorCode, MAX_SERVER_REQUESTS, RequestId, RpcError, ServerCall, ServerCallResponse,
    ServerMethod, ServerNotification, ServerRequest,
};
use serde_json::value::{RawValue, Value};
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;

use super::client_connection::ClientConnection;

/// Maximum length of a client's text in a failure.
const MAX_SHOWN_CHARACTERS: usize = 200;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RequestFailure {
    #[error("the client has reached the limit of {MAX_SERVER_REQUESTS} unanswered requests")]
    TooMany,
    #[error("the client did not respond in time")]
    TimedOut,
    #[error("the client's connection ended before its response")]
    Disconnected,
    #[error("the session ended before the client's response")]
    SessionEnded,
    #[error("the client responded with an error: {0}")]
    Refused(RpcError),
    #[error("the client dropped the request without a response")]
    Dropped,
    #[error("cannot read the client's response: {0}")]
    Unreadable(String),
}

type Outcome = Result<ServerCallResponse, RequestFailure>;

#[derive(Debug)]
pub(crate) struct ServerRequests {
    open: Mutex<OpenRequests<Waiter>>,
    /// Whether the client has finished the handshake. Before that it expects no requests.
    ready: watch::Sender<bool>,
}

#[derive(Debug)]
struct Waiter {
    method: ServerMethod,
    outcome: oneshot::Sender<Outcome>,
}

impl ServerRequests {
    pub(super) fn new(ready: bool) -> Self {
        Self { open: Mutex::default(), ready: watch::Sender::new(ready) }
    }

    pub(super) fn set_ready(&self) {
        self.ready.send_replace(true);
    }

    pub(super) fn is_ready(&self) -> bool {
        *self.ready.borrow()
    }

    async fn ready(&self) {
        // Cannot fail: `self` holds the sender.
        let _ = self.ready.subscribe().wait_for(|ready| *ready).await;
    }

    /// Ignores a response to a request that is not open: the response may be late.
    pub(super) fn handle_response(
        &self,
        id: &RequestId,
        result: Option<&RawValue>,
        error: Option<&RawValue>,
    ) {
        let waiter = match id {
            RequestId::Integer(id) => self.lock().remove(*id),
            RequestId::String(_) => None,
        };
        let Some(Waiter { method, outcome }) = waiter else {
            return tracing::debug!(%id, "ignoring a response to a request that is not open");
        };
        let response = match (result, error) {
            (_, Some(error)) => Err(RequestFailure::Refused(read_error(error))),
            (Some(result), None) => method
                .decode_response(result)
                .map_err(|error| RequestFailure::Unreadable(printable(&error.to_string()))),
            (None, None) => Err(RequestFailure::Unreadable("it has no result".to_owned())),
        };
        let _ = outcome.send(response);
    }

    fn finish(&self, id: i64, response: Outcome) {
        if let Some(waiter) = self.lock().remove(id) {
            let _ = waiter.outcome.send(response);
        }
    }

    fn begin(self: &Arc<Self>, method: ServerMethod) -> Result<OpenRequest, RequestFailure> {
        let (sender, outcome) = oneshot::channel();
        let id = self.lock().insert(Waiter { method, outcome: sender });
        let id = id.ok_or(RequestFailure::TooMany)?;
        Ok(OpenRequest { requests: Arc::clone(self), id, outcome })
    }

    fn lock(&self) -> MutexGuard<'_, OpenRequests<Waiter>> {
        self.open.lock().expect("no code panics while it holds the open requests")
    }
}

impl ClientConnection {
    /// Sends a request to the client. Dropping the future withdraws the request; its response is
    /// then ignored.
    pub(crate) async fn request<R: ServerRequest>(
        &self,
        params: R::Params,
        deadline: Instant,
    ) -> Result<R::Response, RequestFailure> {
        let mut request = self.requests().begin(R::METHOD)?;
        let asked = async {
            self.requests().ready().await;
            self.send_request(&request, R::into_call(params)).await;
            (&mut request.outcome).await.unwrap_or(Err(RequestFailure::Disconnected))
        };
        let response = tokio::select! {
            biased;
            response = asked => response?,
            () = self.closed() => return Err(RequestFailure::Disconnected),
            () = tokio::time::sleep_until(deadline) => return Err(RequestFailure::TimedOut),
        };
        let mismatch =
            || RequestFailure::Unreadable("the response belongs to another method".to_owned());
        R::from_response(response).ok_or_else(mismatch)
    }

    async fn send_request(&self, request: &OpenRequest, call: ServerCall) {
        if let Some(socket) = self.socket() {
            // Wait for room: otherwise timed-out requests to a client that reads nothing would pile
            // up in the outbox.
            socket.outbox().room().await;
            return socket.outbox().push(call.encode(request.id));
        }
        let responder = Responder { requests: Arc::clone(&request.requests), id: request.id };
        match self.handler() {
            Some(handler) => handler.request(
                call,
                Box::new(move |response| {
                    responder.respond(response.map_err(RequestFailure::Refused));
                }),
            ),
            None => {
                let message = "the client handles no requests";
                let error = RpcError::new(ErrorCode::MethodNotFound, message);
                responder.respond(Err(RequestFailure::Refused(error)));
            }
        }
    }

    /// Sends a notification if that is possible at once.
    pub(crate) fn try_notify(&self, notification: ServerNotification) -> bool {
        match (self.socket(), self.handler()) {
            (Some(socket), _) => {
                let outbox = socket.outbox();
                let has_room = self.requests().is_ready() && outbox.has_room();
                if has_room {
                    outbox.push(notification.encode());
                }
                has_room && !outbox.is_closed()
            }
            (None, Some(handler)) => {
                handler.notify(notification);
                true
            }
            (None, None) => false,
        }
    }

    /// Resolves when the connection has ended. Never resolves for a client in the server's own
    /// process, which has no socket; the end of its session ends its requests.
    async fn closed(&self) {
        match self.socket() {
            Some(socket) => socket.outbox().closed().await,
            None => std::future::pending().await,
        }
    }
}

#[derive(Debug)]
struct OpenRequests<W> {
    last_id: i64,
    waiters: HashMap<i64, W>,
}

impl<W> Default for OpenRequests<W> {
    fn default() -> Self {
        Self { last_id: 0, waiters: HashMap::new() }
    }
}

impl<W> OpenRequests<W> {
    /// Returns the id of the new request; `None` if too many are open.
    fn insert(&mut self, waiter: W) -> Option<i64> {
        if self.waiters.len() >= MAX_SERVER_REQUESTS {
            return None;
        }
        self.last_id += 1;
        self.waiters.insert(self.last_id, waiter);
        Some(self.last_id)
    }

    fn remove(&mut self, id: i64) -> Option<W> {
        self.waiters.remove(&id)
    }
}

/// A request that waits for its response. Dropping it frees its slot.
#[derive(Debug)]
struct OpenRequest {
    requests: Arc<ServerRequests>,
    id: i64,
    outcome: oneshot::Receiver<Outcome>,
}

impl Drop for OpenRequest {
    fn drop(&mut self) {
        self.requests.lock().remove(self.id);
    }
}

/// The duty of a client in this program to respond. Dropping it fails the request.
struct Responder {
    requests: Arc<ServerRequests>,
    id: i64,
}

impl Responder {
    fn respond(self, response: Outcome) {
        self.requests.finish(self.id, response);
    }
}

impl Drop for Responder {
    fn drop(&mut self) {
        self.requests.finish(self.id, Err(RequestFailure::Dropped));
    }
}

/// Reads the error of a response, without its `data`, which may be anything.
fn read_error(error: &RawValue) -> RpcError {
    let error = serde_json::from_str::<Value>(error.get()).unwrap_or_default();
    match (error["code"].as_i64(), error["message"].as_str()) {
        (Some(code), Some(message)) => RpcError { code, message: printable(message), data: None },
        _ => RpcError::internal("the error has no code or message"),
    }
}

/// Returns a client's text shortened and on one line, for messages.
fn printable(text: &str) -> String {
    let shown = text.chars().take(MAX_SHOWN_CHARACTERS);
    shown.map(|character| if character.is_control() { ' ' } else { character }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_count_from_one_and_are_never_used_again() {
        let mut open = OpenRequests::default();
        assert_eq!((open.insert('a'), open.insert('b')), (Some(1), Some(2)));
        assert_eq!((open.remove(1), open.remove(1)), (Some('a'), None));
        assert_eq!(open.insert('c'), Some(3));
        assert_eq!(open.remove(2), Some('b'));
    }

    #[test]
    fn a_request_beyond_the_limit_is_refused_until_another_has_ended() {
        let mut open = OpenRequests::default();
        for id in 1..=256 {
            assert_eq!(open.insert(()), Some(id));
        }
        assert_eq!(open.insert(()), None);
        assert_eq!(open.remove(7), Some(()));
        assert_eq!((open.insert(()), open.insert(())), (Some(257), None));
    }
}

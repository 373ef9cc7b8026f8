//! Requests from the server: each is answered by a task, on the connection that brought it.

use std::collections::HashMap;

use exec_server_protocol::{
    ErrorKind, MAX_SERVER_REQUESTS, Request, RequestId, RpcError, ServerCall, ServerCallResponse,
    error_response,
};
use tokio::task::{self, JoinError, JoinSet};

use super::{Driver, MAX_BUFFERED};

/// The requests that are being answered. Dropping it ends their tasks.
#[derive(Default)]
pub(super) struct ServerRequests {
    tasks: JoinSet<ServerCallResponse>,
    // Invariant: requests of the connection that the driver has now.
    asked: HashMap<task::Id, RequestId>,
}

/// The end of a task that answered a request.
pub(super) type Answered = Result<(task::Id, ServerCallResponse), JoinError>;

impl ServerRequests {
    /// Resolves when a task has ended, and never if there is none. Cancel-safe.
    pub(super) async fn answered(&mut self) -> Answered {
        match self.tasks.join_next_with_id().await {
            Some(answered) => answered,
            None => std::future::pending().await,
        }
    }

    /// The connection that the answers should go to is lost.
    pub(super) fn abandon(&mut self) {
        self.tasks.abort_all();
        self.asked.clear();
    }
}

impl Driver {
    pub(super) fn requested(&mut self, request: Request<'_>) {
        let call = match ServerCall::decode(&request) {
            Ok(call) if self.requests.asked.len() < MAX_SERVER_REQUESTS => call,
            Ok(_) => {
                let error = RpcError::internal("too many requests of the server are unanswered");
                return self.refuse(&request.id, &error.with_kind(ErrorKind::Overloaded));
            }
            Err(error) => {
                tracing::debug!(method = %request.method, %error, "refusing a request");
                return self.refuse(&request.id, &error);
            }
        };
        let task = self.requests.tasks.spawn(self.network.clone().answer(call));
        self.requests.asked.insert(task.id(), request.id);
    }

    pub(super) fn answer(&mut self, answered: Answered) {
        let task = match &answered {
            Ok((task, _)) => *task,
            Err(error) => error.id(),
        };
        let Some(id) = self.requests.asked.remove(&task) else { return };
        match answered {
            Ok((_, response)) => self.push(&response.encode(&id)),
            // The handler panicked.
            Err(_) => self.refuse(&id, &RpcError::internal("the handler of the client failed")),
        }
    }

    /// A server that reads nothing gets no refusals: they would fill the memory.
    fn refuse(&mut self, id: &RequestId, error: &RpcError) {
        if self.link.as_ref().is_some_and(|link| link.outgoing.buffered() < MAX_BUFFERED) {
            self.push(&error_response(id, error));
        }
    }
}

//! Requests from the server. A task handles each; the response goes to the connection that carried
//! the request.

use std::collections::HashMap;

use exec_server_protocol::{
    MAX_SERVER_REQUESTS, Request, RequestId, RpcError, ServerCall, ServerCallResponse,
    error_response,
};
use tokio::task::{self, JoinError, JoinSet};

use super::{Driver, MAX_BUFFERED};
use crate::network::too_many_server_requests;

/// The requests being handled. Dropping this aborts their tasks.
#[derive(Default)]
pub(super) struct ServerRequests {
    tasks: JoinSet<ServerCallResponse>,
    // Invariant: all of these requests came over the current connection.
    asked: HashMap<task::Id, RequestId>,
}

pub(super) type Answered = Result<(task::Id, ServerCallResponse), JoinError>;

impl ServerRequests {
    /// Resolves when a task ends; pends forever if there is none. Cancel-safe.
    pub(super) async fn answered(&mut self) -> Answered {
        match self.tasks.join_next_with_id().await {
            Some(answered) => answered,
            None => std::future::pending().await,
        }
    }

    /// Aborts all tasks: their responses can no longer be sent.
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
                return self.refuse(&request.id, &too_many_server_requests());
            }
            Err(error) => {
                let (session, method) = (self.session_id.as_deref(), &*request.method);
                tracing::debug!(session, method, %error, "refusing a server request");
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
            // A panic, not an abort: `abandon` forgets the requests of aborted tasks.
            Err(_) => {
                self.refuse(&id, &RpcError::internal("the client's request handler panicked"));
            }
        }
    }

    /// Refuses a request. Sends nothing to a server that does not read: refusals would pile up in
    /// memory.
    fn refuse(&mut self, id: &RequestId, error: &RpcError) {
        if self.link.as_ref().is_some_and(|link| link.outgoing.buffered() < MAX_BUFFERED) {
            self.push(&error_response(id, error));
        }
    }
}

//! Managed networking in the client: handlers for the server's requests and reports.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;

use exec_server_protocol::{
    ErrorKind, MAX_SERVER_REQUESTS, NetworkDecision, NetworkPolicyDecisionNotification,
    NetworkPolicyRequestParams, NetworkPolicyResponse, RpcError, ServerCall, ServerCallResponse,
};

use crate::ExecServerClientConnectOptions;

type Deciding = Pin<Box<dyn Future<Output = NetworkDecision> + Send>>;

/// Decides about hosts that no rule of a process covers, while the process waits.
///
/// Each request runs as a task of the client, so it may wait for a person. If the connection is
/// lost in the meantime, the future is dropped and the server asks again on the next connection.
/// The server does not withdraw a request that it has given up on; it ignores the response.
#[derive(Clone)]
pub struct NetworkRequestHandler(Arc<dyn Fn(NetworkPolicyRequestParams) -> Deciding + Send + Sync>);

impl NetworkRequestHandler {
    #[must_use]
    pub fn new<F, D>(decide: F) -> Self
    where
        F: Fn(NetworkPolicyRequestParams) -> D + Send + Sync + 'static,
        D: Future<Output = NetworkDecision> + Send + 'static,
    {
        Self(Arc::new(move |params| Box::pin(decide(params))))
    }
}

pub(crate) fn too_many_server_requests() -> RpcError {
    let message =
        format!("the client already has {MAX_SERVER_REQUESTS} unanswered server requests");
    RpcError::internal(message).with_kind(ErrorKind::Overloaded)
}

impl fmt::Debug for NetworkRequestHandler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NetworkRequestHandler")
    }
}

/// Receives each decision that the server made about a host. Must not block.
#[derive(Clone)]
pub struct NetworkDecisionHandler(Arc<dyn Fn(NetworkPolicyDecisionNotification) + Send + Sync>);

impl NetworkDecisionHandler {
    #[must_use]
    pub fn new(take: impl Fn(NetworkPolicyDecisionNotification) + Send + Sync + 'static) -> Self {
        Self(Arc::new(take))
    }
}

impl fmt::Debug for NetworkDecisionHandler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NetworkDecisionHandler")
    }
}

#[derive(Debug, Clone, Default)]
pub(crate) struct NetworkHandlers {
    on_request: Option<NetworkRequestHandler>,
    on_decision: Option<NetworkDecisionHandler>,
}

impl NetworkHandlers {
    pub(crate) fn of(options: &ExecServerClientConnectOptions) -> Self {
        Self {
            on_request: options.on_network_request.clone(),
            on_decision: options.on_network_decision.clone(),
        }
    }

    pub(crate) async fn answer(self, call: ServerCall) -> ServerCallResponse {
        let ServerCall::NetworkPolicyRequest(params) = call;
        let decision = match self.on_request {
            Some(NetworkRequestHandler(decide)) => decide(params).await,
            None => NetworkDecision::deny("this client has no handler for network requests"),
        };
        ServerCallResponse::NetworkPolicyRequest(NetworkPolicyResponse { decision })
    }

    pub(crate) fn notify(&self, decision: NetworkPolicyDecisionNotification) {
        if let Some(NetworkDecisionHandler(take)) = &self.on_decision {
            take(decision);
        }
    }
}

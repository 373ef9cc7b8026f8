//! Requests and notifications from a session to its client, over whichever connection the client
//! has.

use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use exec_server_host::network::gate::DecisionRecord;
use exec_server_protocol::{
    NetworkDecision, NetworkPolicyDecisionNotification, NetworkPolicyRequestParams,
    ServerNotification, ServerRequest, server_request,
};
use tokio::sync::watch;
use tokio::time::Instant;

use super::session::Session;
use crate::adapter::NetworkClient;
use crate::connection::{ConnectionId, RequestFailure};
use crate::telemetry::Telemetry;

/// A session as the gates of its processes see it. The gates must not keep the session alive.
#[derive(Debug)]
struct SessionNetworkClient {
    session: Weak<Session>,
    telemetry: Arc<Telemetry>,
}

impl NetworkClient for SessionNetworkClient {
    fn ask(
        self: Arc<Self>,
        params: NetworkPolicyRequestParams,
        deadline: Instant,
    ) -> Pin<Box<dyn Future<Output = Result<NetworkDecision, String>> + Send>> {
        Box::pin(async move {
            let session =
                self.session.upgrade().ok_or_else(|| "the session has ended".to_owned())?;
            let asked =
                session.ask_client::<server_request::NetworkPolicyRequest>(&params, deadline);
            match asked.await {
                Ok(response) => Ok(response.decision),
                Err(failure) => Err(failure.to_string()),
            }
        })
    }

    fn notify(&self, decision: NetworkPolicyDecisionNotification) {
        if let Some(session) = self.session.upgrade() {
            session.notify(decision);
        }
    }

    fn record(&self, process_id: &str, decision: &DecisionRecord) {
        let session = self.session.upgrade();
        self.telemetry.network_decision(session.as_deref(), process_id, decision);
    }
}

impl Session {
    pub(crate) fn network_client(
        self: &Arc<Self>,
        telemetry: &Arc<Telemetry>,
    ) -> Arc<dyn NetworkClient> {
        let (session, telemetry) = (Arc::downgrade(self), Arc::clone(telemetry));
        Arc::new(SessionNetworkClient { session, telemetry })
    }

    /// Sends a request to the client of this session and waits for its response until the deadline.
    /// If the connection is lost first, the request is repeated on the next one. Callers must fail
    /// closed: a failure says nothing about the client's decision.
    pub(crate) async fn ask_client<R: ServerRequest>(
        &self,
        params: &R::Params,
        deadline: Instant,
    ) -> Result<R::Response, RequestFailure> {
        let mut attachment = self.subscribe_attachment();
        loop {
            // Marked as seen before the connection is read, so that no later change is missed.
            attachment.mark_unchanged();
            if let Some(connection) = self.connection() {
                let asked = connection.request::<R>(params.clone(), deadline);
                tokio::select! {
                    biased;
                    answer = asked => match answer {
                        Err(RequestFailure::Disconnected) => {}
                        answer => return answer,
                    },
                    () = self.has_left(connection.id(), &mut attachment) => continue,
                }
            } else if self.is_ended() {
                return Err(RequestFailure::SessionEnded);
            }
            tokio::select! {
                biased;
                _ = attachment.changed() => {}
                () = tokio::time::sleep_until(deadline) => return Err(RequestFailure::TimedOut),
            }
        }
    }

    /// Resolves when the session is no longer attached to this connection.
    async fn has_left(&self, connection: ConnectionId, attachment: &mut watch::Receiver<()>) {
        while self.check_attached(connection).is_ok() {
            // Cannot fail: the sender is in this session.
            let _ = attachment.changed().await;
        }
    }

    /// Sends a notification that the client can do without: it is dropped, and counted, if it
    /// cannot be sent at once.
    pub(crate) fn notify(&self, notification: impl Into<ServerNotification>) {
        let connection = self.connection();
        let notified = connection.is_some_and(|client| client.try_notify(notification.into()));
        if !notified {
            let dropped = self.dropped_notifications.fetch_add(1, Ordering::Relaxed) + 1;
            tracing::debug!(session = self.id(), dropped, "dropped a notification");
        }
    }
}

#[cfg(test)]
mod tests;

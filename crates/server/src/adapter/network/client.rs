//! The client behind a gate: it decides about hosts that no rule names, and is notified of
//! decisions.

use std::fmt::Debug;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use exec_server_host::network::gate::{
    Answer, DecisionRecord, DecisionScope, DecisionSource, GateClient, Question, Verdict,
};
use exec_server_host::network::policy::Protocol;
use exec_server_protocol::{
    NetworkDecision, NetworkDecisionScope, NetworkDecisionSource,
    NetworkPolicyDecisionNotification, NetworkPolicyRequestParams, NetworkProtocol, NetworkRequest,
    NetworkVerdict,
};
use tokio::time::Instant;

/// The part of a session that gates need.
pub(crate) trait NetworkClient: Debug + Send + Sync {
    /// `Err` says why there is no response.
    fn ask(
        self: Arc<Self>,
        params: NetworkPolicyRequestParams,
        deadline: Instant,
    ) -> Pin<Box<dyn Future<Output = Result<NetworkDecision, String>> + Send>>;

    /// Must not block; the notification may be dropped.
    fn notify(&self, decision: NetworkPolicyDecisionNotification);

    /// Records a decision for the operator, whether or not the client is notified.
    fn record(&self, process_id: &str, decision: &DecisionRecord);
}

/// A client that never responds.
#[cfg(test)]
#[derive(Debug)]
pub(crate) struct NoClient;

#[cfg(test)]
impl NetworkClient for NoClient {
    fn ask(
        self: Arc<Self>,
        _: NetworkPolicyRequestParams,
        _: Instant,
    ) -> Pin<Box<dyn Future<Output = Result<NetworkDecision, String>> + Send>> {
        Box::pin(std::future::pending())
    }

    fn notify(&self, _: NetworkPolicyDecisionNotification) {}

    fn record(&self, _: &str, _: &DecisionRecord) {}
}

#[derive(Debug)]
pub(super) struct ProcessGateClient {
    process_id: String,
    client: Arc<dyn NetworkClient>,
    /// `None`: the client must not be asked.
    ask_timeout: Option<Duration>,
    /// Whether the client gets notifications. Only a client whose start requests a managed network
    /// is known to support them.
    is_told: bool,
}

impl ProcessGateClient {
    pub(super) fn new(
        process_id: String,
        client: Arc<dyn NetworkClient>,
        ask_timeout: Option<Duration>,
        is_told: bool,
    ) -> Self {
        Self { process_id, client, ask_timeout, is_told }
    }
}

impl GateClient for ProcessGateClient {
    fn ask(&self, question: Question) -> Pin<Box<dyn Future<Output = Answer> + Send>> {
        let Some(timeout) = self.ask_timeout else {
            let reason = "the start does not let the client decide about hosts".to_owned();
            return Box::pin(std::future::ready(Answer::Deny { reason }));
        };
        let params = NetworkPolicyRequestParams {
            process_id: self.process_id.clone(),
            request: NetworkRequest {
                protocol: protocol(question.protocol),
                host: question.host,
                port: question.port,
            },
        };
        let answer = Arc::clone(&self.client).ask(params, Instant::now() + timeout);
        Box::pin(async {
            match answer.await {
                Ok(NetworkDecision::Allow) => Answer::Allow,
                Ok(NetworkDecision::Deny { reason }) => Answer::Deny { reason: reason.into() },
                Ok(NetworkDecision::Ask { reason }) => Answer::Ask { reason: reason.into() },
                Err(reason) => Answer::Unanswered { reason },
            }
        })
    }

    fn decided(&self, record: &DecisionRecord) {
        self.client.record(&self.process_id, record);
        if !self.is_told {
            return;
        }
        self.client.notify(NetworkPolicyDecisionNotification {
            process_id: self.process_id.clone(),
            timestamp: humantime::format_rfc3339_millis(record.time).to_string(),
            scope: match record.scope {
                DecisionScope::Domain => NetworkDecisionScope::Domain,
                DecisionScope::NonDomain => NetworkDecisionScope::NonDomain,
            },
            decision: match record.verdict {
                Verdict::Allow => NetworkVerdict::Allow,
                Verdict::Deny => NetworkVerdict::Deny,
                Verdict::Ask => NetworkVerdict::Ask,
            },
            source: match record.source {
                DecisionSource::BaselinePolicy => NetworkDecisionSource::BaselinePolicy,
                DecisionSource::ModeGuard => NetworkDecisionSource::ModeGuard,
                DecisionSource::ProxyState => NetworkDecisionSource::ProxyState,
                DecisionSource::Decider => NetworkDecisionSource::Decider,
            },
            reason: record.reason.clone().into_owned(),
            protocol: protocol(record.protocol),
            host: record.host.clone(),
            port: record.port,
            method: record.method.clone(),
            client: record.client.clone(),
            policy_override: record.policy_override,
        });
    }
}

fn protocol(protocol: Protocol) -> NetworkProtocol {
    match protocol {
        Protocol::Http => NetworkProtocol::Http,
        Protocol::HttpsConnect => NetworkProtocol::HttpsConnect,
        Protocol::Socks5Tcp => NetworkProtocol::Socks5Tcp,
        Protocol::Socks5Udp => NetworkProtocol::Socks5Udp,
    }
}

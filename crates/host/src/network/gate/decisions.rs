//! Decides whether a program may connect: by the policy, or by the client if the policy asks for
//! it. Every decision about a connection is recorded.

use std::borrow::Cow;
use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use super::client::{
    Answer, DecisionRecord, DecisionScope, DecisionSource, GateClient, Question, Verdict,
};
use super::questions::{AskError, Questions};
use super::refused_hosts::{RefusedHost, RefusedHosts};
use crate::network::policy::{Access, Decision, DenyReason, Host, NetworkPolicy, Protocol, Route};

/// The maximum number of refused names whose lookups are recorded. Lookups of further names are
/// refused without a record, so that a program that looks up random names does not flood the
/// client.
const MAX_RECORDED_NAMES: usize = 1_024;

/// The port in the record of a refused lookup.
const LOOKUP_PORT: u16 = 443;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Refusal {
    #[error("refused by the policy: {0:?}")]
    Policy(DenyReason),
    #[error("refused by the client: {reason}")]
    Client { reason: String },
    #[error("the client has too many unanswered questions about hosts")]
    TooManyQuestions,
}

#[derive(Debug)]
pub(super) struct Judge {
    policy: NetworkPolicy,
    client: Arc<dyn GateClient>,
    questions: Questions,
    refused: Mutex<RefusedHosts>,
    recorded_names: Mutex<HashSet<String>>,
}

impl Judge {
    pub(super) fn new(policy: NetworkPolicy, client: Arc<dyn GateClient>) -> Self {
        let questions = Questions::new(Arc::clone(&client));
        Self {
            policy,
            client,
            questions,
            refused: Mutex::default(),
            recorded_names: Mutex::default(),
        }
    }

    /// Waits for the client's answer if the policy asks for one. `peer` is the program's end of the
    /// connection.
    pub(super) async fn judge<'a>(
        &'a self,
        access: &'a Access<'a>,
        peer: Option<SocketAddr>,
    ) -> Result<Permission<'a>, Refusal> {
        let outcome = match self.policy.decide(access) {
            Decision::Allow => Outcome::allowed_by_policy(),
            Decision::Deny(reason) => return Err(self.refuse(access, peer, reason)),
            Decision::Ask => self.ask(access, peer).await?,
        };
        Ok(Permission { judge: self, access, peer, outcome: Some(outcome) })
    }

    /// Whether the policy gives limited mode as the reason for refusing the access. A GET request
    /// of plain HTTP may then be allowed. Records nothing.
    pub(super) fn refuses_by_mode(&self, access: &Access<'_>) -> bool {
        self.policy.decide(access) == Decision::Deny(DenyReason::Method)
    }

    pub(super) fn names(&self, host: &Host) -> bool {
        self.policy.names(host)
    }

    /// The first refusal of a name is recorded.
    pub(super) fn may_look_up(&self, name: &Host, peer: SocketAddr) -> bool {
        if self.policy.may_reach(name) {
            return true;
        }
        let host = name.to_string();
        let mut recorded =
            self.recorded_names.lock().expect("no code panics while it holds the recorded names");
        let is_new = recorded.len() < MAX_RECORDED_NAMES && recorded.insert(host.clone());
        drop(recorded);
        if is_new {
            let access = Access {
                host: name,
                port: LOOKUP_PORT,
                protocol: Protocol::HttpsConnect,
                route: Route::Direct,
                method: None,
            };
            let reason = match self.policy.decide(&access) {
                Decision::Deny(reason) => reason,
                Decision::Allow | Decision::Ask => DenyReason::NotAllowed,
            };
            self.record(&access, Some(peer), Outcome::denied_by_policy(reason));
        }
        self.add_refused(RefusedHost { host, port: None });
        false
    }

    pub(super) fn refused_hosts(&self) -> RefusedHosts {
        self.refused.lock().expect("no code panics while it holds the list").clone()
    }

    async fn ask(&self, access: &Access<'_>, peer: Option<SocketAddr>) -> Result<Outcome, Refusal> {
        let question = Question {
            protocol: access.protocol,
            host: access.host.to_string(),
            port: access.port,
        };
        let (outcome, refusal) = match self.questions.ask(question).await {
            Ok(Answer::Allow) => return Ok(Outcome::decider(Verdict::Allow, "allow".into())),
            Ok(Answer::Deny { reason }) => {
                (Outcome::decider(Verdict::Deny, reason.clone()), Refusal::Client { reason })
            }
            Ok(Answer::Ask { reason }) => {
                (Outcome::decider(Verdict::Ask, reason.clone()), Refusal::Client { reason })
            }
            Ok(Answer::Unanswered { reason }) => {
                (Outcome::decider(Verdict::Deny, reason.clone()), Refusal::Client { reason })
            }
            Err(AskError::TooMany) => {
                (Outcome::gate_limit("too_many_questions"), Refusal::TooManyQuestions)
            }
            Err(AskError::Abandoned) => {
                let reason = "the question was not answered".to_owned();
                (Outcome::decider(Verdict::Deny, reason.clone()), Refusal::Client { reason })
            }
        };
        self.record(access, peer, outcome);
        self.add_refused(RefusedHost { host: access.host.to_string(), port: Some(access.port) });
        Err(refusal)
    }

    fn refuse(&self, access: &Access<'_>, peer: Option<SocketAddr>, reason: DenyReason) -> Refusal {
        self.record(access, peer, Outcome::denied_by_policy(reason));
        self.add_refused(RefusedHost { host: access.host.to_string(), port: Some(access.port) });
        Refusal::Policy(reason)
    }

    fn add_refused(&self, host: RefusedHost) {
        self.refused.lock().expect("no code panics while it holds the list").add(host);
    }

    fn record(&self, access: &Access<'_>, peer: Option<SocketAddr>, outcome: Outcome) {
        self.client.decided(&DecisionRecord {
            time: SystemTime::now(),
            scope: match outcome.source {
                DecisionSource::BaselinePolicy | DecisionSource::Decider => DecisionScope::Domain,
                DecisionSource::ModeGuard | DecisionSource::ProxyState => DecisionScope::NonDomain,
            },
            verdict: outcome.verdict,
            source: outcome.source,
            reason: outcome.reason,
            protocol: access.protocol,
            host: access.host.to_string(),
            port: access.port,
            method: access.method.map(str::to_owned),
            // A listener may be an IPv6 socket, which shows IPv4 addresses as mapped ones.
            client: peer
                .map(|peer| SocketAddr::new(peer.ip().to_canonical(), peer.port()).to_string()),
            policy_override: outcome.source == DecisionSource::Decider
                && outcome.verdict == Verdict::Allow,
        });
    }
}

/// An access that the policy or the client has allowed, but whose addresses are not checked yet.
/// The client receives one decision: a refusal if an address is refused, otherwise the permission,
/// when this value is dropped.
#[derive(Debug)]
#[must_use]
pub(super) struct Permission<'a> {
    judge: &'a Judge,
    access: &'a Access<'a>,
    peer: Option<SocketAddr>,
    /// `None` once a refusal was recorded instead.
    outcome: Option<Outcome>,
}

impl Permission<'_> {
    pub(super) fn access(&self) -> &Access<'_> {
        self.access
    }

    pub(super) fn check_resolved(&mut self, addresses: &[IpAddr]) -> Result<(), Refusal> {
        let Self { judge, access, peer, .. } = *self;
        let is_allowed = |address: &IpAddr| judge.policy.check_resolved(*address, access.port);
        addresses.iter().try_for_each(is_allowed).map_err(|reason| {
            self.outcome = None;
            judge.refuse(access, peer, reason)
        })
    }
}

impl Drop for Permission<'_> {
    fn drop(&mut self) {
        if let Some(outcome) = self.outcome.take() {
            self.judge.record(self.access, self.peer, outcome);
        }
    }
}

/// The part of a record that depends on the decision.
#[derive(Debug)]
struct Outcome {
    verdict: Verdict,
    source: DecisionSource,
    reason: Cow<'static, str>,
}

impl Outcome {
    fn allowed_by_policy() -> Self {
        let source = DecisionSource::BaselinePolicy;
        Self { verdict: Verdict::Allow, source, reason: "allow".into() }
    }

    fn denied_by_policy(reason: DenyReason) -> Self {
        let (source, reason) = match reason {
            DenyReason::NotAllowed => (DecisionSource::BaselinePolicy, "not_allowed"),
            DenyReason::Denied => (DecisionSource::BaselinePolicy, "denied"),
            DenyReason::PrivateAddress => (DecisionSource::BaselinePolicy, "not_allowed_local"),
            DenyReason::Method => (DecisionSource::ModeGuard, "method_not_allowed"),
        };
        Self { verdict: Verdict::Deny, source, reason: reason.into() }
    }

    fn decider(verdict: Verdict, reason: String) -> Self {
        Self { verdict, source: DecisionSource::Decider, reason: reason.into() }
    }

    fn gate_limit(reason: &'static str) -> Self {
        let source = DecisionSource::ProxyState;
        Self { verdict: Verdict::Deny, source, reason: reason.into() }
    }
}

#[cfg(test)]
mod tests;

//! The client's side of a gate: questions about hosts, and records of decisions.

use std::borrow::Cow;
use std::fmt;
use std::pin::Pin;
use std::time::SystemTime;

use crate::network::policy::Protocol;

/// The client that owns a managed process.
pub trait GateClient: Send + Sync + fmt::Debug {
    /// Asks about a host that no `allow` pattern names. The gate waits without a timeout: the
    /// implementation sets one, and returns [`Answer::Unanswered`] when it expires.
    fn ask(&self, question: Question) -> Pin<Box<dyn Future<Output = Answer> + Send>>;

    /// Called for every decision about an [`Access`](crate::network::policy::Access), and for the
    /// first refused lookup of a name. Must not block.
    fn decided(&self, record: &DecisionRecord);
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Question {
    pub protocol: Protocol,
    pub host: String,
    pub port: u16,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    Allow,
    Deny {
        reason: String,
    },
    /// The client cannot decide without its user. The access is refused; the next attempt asks
    /// again.
    Ask {
        reason: String,
    },
    /// No answer arrived. The access is refused; the next attempt asks again.
    Unanswered {
        reason: String,
    },
}

/// One decision, as reported by `network/policyDecision`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DecisionRecord {
    pub time: SystemTime,
    pub scope: DecisionScope,
    pub verdict: Verdict,
    pub source: DecisionSource,
    /// A word such as `not_allowed`, or the text of the client's answer.
    pub reason: Cow<'static, str>,
    pub protocol: Protocol,
    pub host: String,
    pub port: u16,
    pub method: Option<String>,
    /// The address of the program's end of the connection.
    pub client: Option<String>,
    /// The client allowed a host that the rules alone would refuse.
    pub policy_override: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DecisionScope {
    /// The decision is about the host.
    Domain,
    /// The decision would be the same for every host.
    NonDomain,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    Allow,
    Deny,
    Ask,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DecisionSource {
    BaselinePolicy,
    /// [`Mode::Limited`](crate::network::policy::Mode::Limited).
    ModeGuard,
    /// A limit of the gate itself.
    ProxyState,
    /// The client.
    Decider,
}

//! The hosts that a process may reach, as in the flags of `run` and in `environments.toml`.

use std::num::NonZeroU64;
use std::time::Duration;

use exec_server_host::network::policy::{HostPattern, PatternError};
use exec_server_protocol::{NetworkEnforcement, NetworkRules};

/// Host rules. Without any, the sandbox decides about the network as a whole.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HostOptions {
    /// Patterns such as `example.org`, `*.example.org` or `example.org:8443`.
    pub allow: Vec<String>,
    /// Patterns that take precedence over `allow`.
    pub deny: Vec<String>,
    /// Ask about hosts that match no pattern.
    pub ask: bool,
    /// Refuse the start if the rules would not cover programs that ignore proxies.
    pub require_transparent: bool,
}

impl HostOptions {
    /// How long the client may take to answer a question about a host.
    pub(crate) const ANSWER_TIMEOUT: Duration = Duration::from_millis(Self::ANSWER_TIMEOUT_MS);
    const ANSWER_TIMEOUT_MS: u64 = 120_000;

    /// Checks whether a pattern is valid in [`Self::allow`] and [`Self::deny`].
    pub fn check_pattern(text: &str) -> Result<(), PatternError> {
        text.parse::<HostPattern>().map(drop)
    }

    #[must_use]
    pub fn has_rules(&self) -> bool {
        *self != Self::default()
    }

    /// Whether any host is allowed or can be asked about.
    #[must_use]
    pub fn can_reach_any(&self) -> bool {
        self.ask || !self.allow.is_empty()
    }

    pub(crate) fn extend(&mut self, other: &Self) {
        self.allow.extend_from_slice(&other.allow);
        self.deny.extend_from_slice(&other.deny);
        self.ask |= other.ask;
        self.require_transparent |= other.require_transparent;
    }

    /// Returns `None` without rules.
    #[must_use]
    pub fn rules(&self) -> Option<NetworkRules> {
        self.has_rules().then(|| NetworkRules {
            allow: self.allow.clone(),
            deny: self.deny.clone(),
            ask: self.ask,
            ask_timeout_ms: NonZeroU64::new(Self::ANSWER_TIMEOUT_MS).filter(|_| self.ask),
            require: self.require_transparent.then_some(NetworkEnforcement::Transparent),
            hide: false,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_sent_only_if_there_are_any() {
        assert_eq!(HostOptions::default().rules(), None);
        let options = HostOptions {
            allow: vec!["a.example".to_owned()],
            require_transparent: true,
            ..HostOptions::default()
        };
        let rules = options.rules().unwrap();
        assert_eq!((rules.allow, rules.ask_timeout_ms), (vec!["a.example".to_owned()], None));
        assert_eq!(rules.require, Some(NetworkEnforcement::Transparent));
        let asking = HostOptions { ask: true, ..HostOptions::default() }.rules().unwrap();
        let timeout = asking.ask_timeout_ms.unwrap().get();
        assert_eq!(Duration::from_millis(timeout), HostOptions::ANSWER_TIMEOUT);
    }
}

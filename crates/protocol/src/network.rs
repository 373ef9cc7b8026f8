//! Managed networking: the rules of a start, policy requests to the client, and reports of
//! decisions.

use std::collections::BTreeMap;
use std::fmt;
use std::num::NonZeroU64;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::misspelt::CaseChecked;
use crate::nullable;

pub const MAX_REASON_BYTES: usize = 1024;

/// Whether programs read a proxy from a variable of this name: `HTTPS_PROXY`, `npm_config_proxy`, …
#[must_use]
pub fn is_proxy_variable(name: &str) -> bool {
    name.to_ascii_uppercase().ends_with("_PROXY")
}

/// `managedNetwork` of a start: the process reaches the given loopback ports of the server, and
/// other hosts only as `network` or `networkProxy` says.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", remote = "Self")]
pub struct ManagedNetwork {
    /// Loopback ports of the client's own proxy.
    #[serde(default, deserialize_with = "nullable::or_default")]
    pub loopback_ports: Vec<u16>,
    /// Allow the process to bind local sockets and exchange loopback traffic. This server ignores
    /// it.
    #[serde(default, deserialize_with = "nullable::or_default")]
    pub allow_local_binding: bool,
}

/// `networkProxy` of a start: the server runs a proxy for this process.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", remote = "Self")]
pub struct NetworkProxy {
    pub proxy: NetworkProxySettings,
    #[serde(default, deserialize_with = "nullable::or_default")]
    pub audit_metadata: BTreeMap<String, Option<String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub environment_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub execution_id: Option<String>,
    /// Ask the client about hosts that no rule names, and wait this long for the response.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy_decision_timeout_ms: Option<NonZeroU64>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", remote = "Self")]
pub struct NetworkProxySettings {
    /// Default true: settings without this member still ask for a proxy.
    #[serde(default = "enabled", deserialize_with = "enabled_unless_false")]
    pub enabled: bool,
    #[serde(default, deserialize_with = "nullable::or_default")]
    pub enable_socks5: bool,
    #[serde(default, deserialize_with = "nullable::or_default")]
    pub enable_socks5_udp: bool,
    #[serde(default, deserialize_with = "nullable::or_default")]
    pub allow_upstream_proxy: bool,
    #[serde(default, deserialize_with = "nullable::or_default")]
    pub dangerously_allow_all_unix_sockets: bool,
    #[serde(default, deserialize_with = "nullable::or_default")]
    pub mode: NetworkMode,
    /// Keys are host patterns.
    #[serde(default)]
    pub domains: Option<BTreeMap<String, DomainPermission>>,
    /// Keys are socket paths. No effect on Linux.
    #[serde(default)]
    pub unix_sockets: Option<BTreeMap<String, UnixSocketPermission>>,
    /// Allow connections to private addresses. No effect on binding.
    #[serde(default, deserialize_with = "nullable::or_default")]
    pub allow_local_binding: bool,
}

impl Default for NetworkProxySettings {
    /// A proxy that denies everything.
    fn default() -> Self {
        Self {
            enabled: true,
            enable_socks5: false,
            enable_socks5_udp: false,
            allow_upstream_proxy: false,
            dangerously_allow_all_unix_sockets: false,
            mode: NetworkMode::default(),
            domains: None,
            unix_sockets: None,
            allow_local_binding: false,
        }
    }
}

fn enabled() -> bool {
    true
}

fn enabled_unless_false<'de, D: Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or(true))
}

/// Implements serde so that a member that differs from a known one only in case is an error: a
/// misspelt rule must not count as absent.
macro_rules! check_case {
    ($($name:ident),*) => {
        $(
            impl Serialize for $name {
                fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                    Self::serialize(self, serializer)
                }
            }

            impl<'de> Deserialize<'de> for $name {
                fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                    Self::deserialize(CaseChecked(deserializer))
                }
            }
        )*
    };
}

check_case!(ManagedNetwork, NetworkProxy, NetworkProxySettings);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum NetworkMode {
    #[default]
    Full,
    /// Only GET, HEAD and OPTIONS over plain HTTP.
    Limited,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum DomainPermission {
    Allow,
    Deny,
    /// Same as no rule.
    None,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum UnixSocketPermission {
    Allow,
    Deny,
}

/// `network` of a start (extension): the hosts that the process may reach. As in a sandbox, unknown
/// members are errors.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NetworkRules {
    /// Host patterns to allow.
    #[serde(default, deserialize_with = "nullable::or_default")]
    pub allow: Vec<String>,
    /// Host patterns to deny. They take precedence over `allow`.
    #[serde(default, deserialize_with = "nullable::or_default")]
    pub deny: Vec<String>,
    /// Ask the client about hosts that no rule names.
    #[serde(default, deserialize_with = "nullable::or_default")]
    pub ask: bool,
    /// How long to wait for the client's response.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ask_timeout_ms: Option<NonZeroU64>,
    /// With `transparent`: refuse the start if the server can enforce the rules only by proxies.
    /// Other values demand nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub require: Option<NetworkEnforcement>,
    /// Refused names do not resolve.
    #[serde(default, deserialize_with = "nullable::or_default")]
    pub hide: bool,
}

/// How network rules are enforced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum NetworkEnforcement {
    /// The process has no network.
    None,
    /// Enforced for every program, whether or not it uses a proxy.
    Transparent,
    /// Programs can connect only to the port numbers of the proxies: to the proxies themselves, and
    /// to the same ports of other hosts.
    Proxy,
}

/// Network use of a process with a managed network (extension).
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct NetworkUse {
    pub bytes_up: u64,
    pub bytes_down: u64,
    /// The first refused hosts, without duplicates.
    #[serde(
        default,
        deserialize_with = "nullable::or_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub refused: Vec<RefusedHost>,
    /// The list of refused hosts is incomplete.
    #[serde(
        default,
        deserialize_with = "nullable::or_default",
        skip_serializing_if = "std::ops::Not::not"
    )]
    pub refused_more: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RefusedHost {
    pub host: String,
    /// Absent if the name was only looked up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
}

impl fmt::Display for RefusedHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.port {
            None => f.write_str(&self.host),
            Some(port) if self.host.contains(':') => write!(f, "[{}]:{port}", self.host),
            Some(port) => write!(f, "{}:{port}", self.host),
        }
    }
}

/// `network/policyRequest`: asks whether a process may reach a host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct NetworkPolicyRequestParams {
    pub process_id: String,
    pub request: NetworkRequest,
}

/// The destination that a process tries to reach.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct NetworkRequest {
    pub protocol: NetworkProtocol,
    pub host: String,
    pub port: u16,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum NetworkProtocol {
    Http,
    HttpsConnect,
    Socks5Tcp,
    Socks5Udp,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct NetworkPolicyResponse {
    pub decision: NetworkDecision,
}

/// The client's decision about one host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "type", rename_all = "camelCase")]
pub enum NetworkDecision {
    Allow,
    Deny {
        reason: DecisionReason,
    },
    /// The client must ask a person first, so the host is refused for now.
    Ask {
        reason: DecisionReason,
    },
}

impl NetworkDecision {
    /// Denies with a reason, which is sanitised and truncated to fit.
    #[must_use]
    pub fn deny(reason: &str) -> Self {
        Self::Deny { reason: DecisionReason::fitting(reason) }
    }

    /// Like [`Self::deny`], for [`Self::Ask`].
    #[must_use]
    pub fn ask(reason: &str) -> Self {
        Self::Ask { reason: DecisionReason::fitting(reason) }
    }
}

/// The reason of a decision, for display: at most [`MAX_REASON_BYTES`], without control characters.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct DecisionReason(String);

impl DecisionReason {
    /// Truncates the reason and replaces control characters with spaces.
    #[must_use]
    pub fn fitting(reason: &str) -> Self {
        let printable =
            reason.chars().map(|character| if character.is_control() { ' ' } else { character });
        let mut text = String::new();
        for character in printable {
            if text.len() + character.len_utf8() > MAX_REASON_BYTES {
                break;
            }
            text.push(character);
        }
        Self(text)
    }

    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecisionReasonError {
    #[error("reason of {len} bytes exceeds the limit of {MAX_REASON_BYTES}")]
    TooLong { len: usize },
    #[error("reason contains control characters")]
    ControlCharacter,
}

impl TryFrom<String> for DecisionReason {
    type Error = DecisionReasonError;

    fn try_from(reason: String) -> Result<Self, DecisionReasonError> {
        if reason.len() > MAX_REASON_BYTES {
            return Err(DecisionReasonError::TooLong { len: reason.len() });
        }
        if reason.chars().any(char::is_control) {
            return Err(DecisionReasonError::ControlCharacter);
        }
        Ok(Self(reason))
    }
}

impl From<DecisionReason> for String {
    fn from(reason: DecisionReason) -> Self {
        reason.0
    }
}

/// `network/policyDecision`: reports a decision about one host to the owner of the process only.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct NetworkPolicyDecisionNotification {
    pub process_id: String,
    /// RFC 3339.
    pub timestamp: String,
    pub scope: NetworkDecisionScope,
    pub decision: NetworkVerdict,
    pub source: NetworkDecisionSource,
    pub reason: String,
    pub protocol: NetworkProtocol,
    pub host: String,
    pub port: u16,
    /// The method of a plain HTTP request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
    /// The source address of the process's connection.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client: Option<String>,
    /// The client allowed a host that the rules alone would refuse.
    #[serde(default, deserialize_with = "nullable::or_default")]
    pub policy_override: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum NetworkDecisionScope {
    Domain,
    NonDomain,
}

/// A decision without its reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum NetworkVerdict {
    Allow,
    Deny,
    Ask,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum NetworkDecisionSource {
    /// The rules decided.
    BaselinePolicy,
    /// The mode `limited` decided.
    ModeGuard,
    /// The proxy could not decide: for example, too many questions to the client are pending.
    ProxyState,
    /// The client decided.
    Decider,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_proxy_settings_of_a_deployed_client_decode() {
        let sent = json!({
            "proxy": {
                "enabled": true, "enableSocks5": true, "enableSocks5Udp": false,
                "allowUpstreamProxy": false, "dangerouslyAllowAllUnixSockets": false,
                "mode": "limited", "domains": {"*.example.com": "allow", "b.test": "none"},
                "unixSockets": {"/run/a": "deny"}, "allowLocalBinding": true,
            },
            "auditMetadata": {"a": "b", "c": null},
            "environmentId": "e", "executionId": "x", "policyDecisionTimeoutMs": 500,
        });
        let proxy: NetworkProxy = serde_json::from_value(sent.clone()).unwrap();
        assert_eq!(proxy.proxy.mode, NetworkMode::Limited);
        assert_eq!(serde_json::to_value(&proxy).unwrap(), sent);
    }

    #[test]
    fn null_and_absence_mean_the_default() {
        let absent: NetworkProxy = serde_json::from_value(json!({"proxy": {}})).unwrap();
        let null: NetworkProxy = serde_json::from_value(json!({
            "proxy": {"enabled": null, "enableSocks5": null, "mode": null, "domains": null},
            "auditMetadata": null, "policyDecisionTimeoutMs": null,
        }))
        .unwrap();
        assert_eq!(absent, NetworkProxy::default());
        assert_eq!(null, absent);
        assert!(absent.proxy.enabled);
        let rules: NetworkRules = serde_json::from_value(json!({"allow": null})).unwrap();
        assert_eq!(rules, NetworkRules::default());
    }

    #[test]
    fn misspelt_and_impossible_settings_are_errors() {
        for (proxy, expected) in [
            (json!({}), "proxy"),
            (json!({"proxy": {"Domains": {}}}), "Domains"),
            (json!({"proxy": {"mode": "fast"}}), "fast"),
            (json!({"proxy": {}, "policyDecisionTimeoutMs": 0}), "0"),
        ] {
            let error = serde_json::from_value::<NetworkProxy>(proxy).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
        for rules in [json!({"denny": []}), json!({"askTimeoutMs": 0}), json!({"require": "x"})] {
            assert!(serde_json::from_value::<NetworkRules>(rules.clone()).is_err(), "{rules}");
        }
        let ports = json!({"loopbackports": [1]});
        assert!(serde_json::from_value::<ManagedNetwork>(ports).is_err());
    }

    #[test]
    fn decisions_have_a_type_and_a_bounded_reason() {
        let read = |value: &serde_json::Value| NetworkDecision::deserialize(value);
        for (value, decision) in [
            (json!({"type": "allow"}), NetworkDecision::Allow),
            (json!({"type": "deny", "reason": "no"}), NetworkDecision::deny("no")),
            (json!({"type": "ask", "reason": ""}), NetworkDecision::ask("")),
        ] {
            assert_eq!(read(&value).unwrap(), decision);
            assert_eq!(serde_json::to_value(&decision).unwrap(), value);
        }
        for (reason, fits) in [
            ("é".repeat(MAX_REASON_BYTES / 2), true),
            ("x".repeat(MAX_REASON_BYTES + 1), false),
            ("a\nb".to_owned(), false),
            ("\u{9b}31m".to_owned(), false),
        ] {
            assert_eq!(read(&json!({"type": "deny", "reason": reason})).is_ok(), fits, "{reason}");
            let fitting = DecisionReason::fitting(&reason);
            assert_eq!(DecisionReason::try_from(fitting.as_str().to_owned()), Ok(fitting));
        }
        for value in [json!({"type": "deny"}), json!({"type": "maybe"}), json!({}), json!(1)] {
            assert!(read(&value).is_err(), "{value}");
        }
    }

    #[test]
    fn protocol_names_match_the_contract() {
        let protocols = [
            (NetworkProtocol::Http, "http"),
            (NetworkProtocol::HttpsConnect, "https_connect"),
            (NetworkProtocol::Socks5Tcp, "socks5_tcp"),
            (NetworkProtocol::Socks5Udp, "socks5_udp"),
        ];
        for (protocol, name) in protocols {
            assert_eq!(serde_json::to_value(protocol).unwrap(), name);
        }
        assert_eq!(serde_json::to_value(NetworkDecisionScope::NonDomain).unwrap(), "non_domain");
        let source = serde_json::to_value(NetworkDecisionSource::BaselinePolicy).unwrap();
        assert_eq!(source, "baseline_policy");
    }
}

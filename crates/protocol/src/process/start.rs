//! `process/start`.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::is_default;
use crate::misspelt::CaseChecked;
use crate::{
    EffectiveLimits, Enforcement, LimitsRequest, ManagedNetwork, NetworkProxy, NetworkRules,
    PathUri, SandboxRequest, nullable,
};

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", remote = "Self")]
pub struct StartParams {
    /// Chosen by the client, unique in its session; not an OS pid.
    pub process_id: String,
    pub argv: Vec<String>,
    pub cwd: PathUri,
    /// The child's whole environment or, with `envPolicy`, additions to the inherited one.
    #[serde(default, deserialize_with = "nullable::or_default")]
    pub env: BTreeMap<String, String>,
    #[serde(default, deserialize_with = "nullable::or_default")]
    pub tty: bool,
    #[serde(default, deserialize_with = "nullable::or_default")]
    pub pipe_stdin: bool,
    #[serde(default)]
    pub arg0: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub env_policy: Option<EnvPolicy>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<SandboxRequest>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enforce_managed_network: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub managed_network: Option<ManagedNetwork>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network_proxy: Option<Box<NetworkProxy>>,
    /// The hosts that the process may reach (extension).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<Box<NetworkRules>>,
    /// The behaviour when the log is full (extension).
    #[serde(
        default,
        deserialize_with = "nullable::or_default",
        skip_serializing_if = "is_default"
    )]
    pub on_full: OnFull,
    /// When the process exits, also kill everything it left running (extension).
    #[serde(
        default,
        deserialize_with = "nullable::or_default",
        skip_serializing_if = "is_default"
    )]
    pub kill_on_exit: bool,
    /// Terminals only. Default 24 × 80 (extension).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<TerminalSize>,
    /// Whether the server prepares the environment and the sandbox (extension).
    #[serde(
        default,
        deserialize_with = "nullable::or_default",
        skip_serializing_if = "is_default"
    )]
    pub mode: ExecMode,
    /// Terminate the process after this time (extension).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// Upper bounds for the process and everything it starts (extension).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<Box<LimitsRequest>>,
    /// Refuse the start if a process of any session that the client can see has this `processId`
    /// (extension).
    #[serde(
        default,
        deserialize_with = "nullable::or_default",
        skip_serializing_if = "is_default"
    )]
    pub claim_name: bool,
}

impl Serialize for StartParams {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Self::serialize(self, serializer)
    }
}

/// A misspelt `sandbox` or `pipeStdin` must not count as absent.
impl<'de> Deserialize<'de> for StartParams {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::deserialize(CaseChecked(deserializer))
    }
}

impl StartParams {
    /// Returns a start with pipes, no stdin and an empty environment. Set the other fields as
    /// needed.
    #[must_use]
    pub fn new(
        process_id: impl Into<String>,
        argv: impl IntoIterator<Item = impl Into<String>>,
        cwd: PathUri,
    ) -> Self {
        Self {
            process_id: process_id.into(),
            argv: argv.into_iter().map(Into::into).collect(),
            cwd,
            env: BTreeMap::new(),
            tty: false,
            pipe_stdin: false,
            arg0: None,
            env_policy: None,
            sandbox: None,
            enforce_managed_network: None,
            managed_network: None,
            network_proxy: None,
            network: None,
            on_full: OnFull::default(),
            kill_on_exit: false,
            size: None,
            mode: ExecMode::default(),
            timeout_ms: None,
            limits: None,
            claim_name: false,
        }
    }

    #[must_use]
    pub fn asks_for_managed_network(&self) -> bool {
        self.managed_network.is_some() || self.network_proxy.is_some() || self.network.is_some()
    }
}

/// How the child's environment is derived from the server's.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct EnvPolicy {
    #[serde(default, deserialize_with = "nullable::or_default")]
    pub inherit: EnvInherit,
    /// Keep variables whose names contain KEY, SECRET or TOKEN.
    #[serde(default, deserialize_with = "nullable::or_default")]
    pub ignore_default_excludes: bool,
    #[serde(default, deserialize_with = "nullable::or_default")]
    pub exclude: Vec<String>,
    #[serde(default, deserialize_with = "nullable::or_default")]
    pub set: BTreeMap<String, String>,
    #[serde(default, deserialize_with = "nullable::or_default")]
    pub include_only: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum EnvInherit {
    Core,
    #[default]
    All,
    None,
}

/// The behaviour when the log can hold no more unconfirmed output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum OnFull {
    /// The child blocks on its next write.
    #[default]
    Block,
    /// The server drops the oldest output and declares the gap.
    Discard,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum ExecMode {
    #[default]
    Direct,
    /// The client has prepared the command: `envPolicy` and `sandbox` are not allowed.
    Prepared,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TerminalSize {
    pub rows: u16,
    pub cols: u16,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct StartResponse {
    pub process_id: String,
    #[serde(default, deserialize_with = "nullable::or_default")]
    pub sandbox_type: SandboxType,
    /// The mechanisms that confine the process. Absent if there are none (extension).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enforcement: Option<Enforcement>,
    /// The timeout that the server enforces, from the request or from a limit. Absent without a
    /// timeout (extension).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// The limits of the process. Absent without any (extension).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<Box<EffectiveLimits>>,
}

/// The mechanism that enforces the sandbox. A server that omits it enforces nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum SandboxType {
    #[default]
    None,
    MacosSeatbelt,
    LinuxSeccomp,
    WindowsRestrictedToken,
}

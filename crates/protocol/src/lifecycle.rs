//! Handshake and sessions.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::nullable;

/// The `protocolVersion` in the response to `initialize`.
pub const PROTOCOL_VERSION: &str = "exec-server.v0";

/// `{}`: no params, or an empty result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Empty {}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct InitializeParams {
    #[serde(default, deserialize_with = "nullable::or_default")]
    pub client_name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resume_session_id: Option<String>,
    /// How long the session survives without a connection. 0 ends it at once (extension).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detached_ttl_ms: Option<u64>,
    /// Whether this client confirms output with `process/ack` (extension).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub acks: Option<bool>,
    /// With `resumeSessionId` and `acks`: the last event that the client has of each process. Later
    /// events follow as notifications (extension).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub positions: Option<BTreeMap<String, u64>>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct InitializeResponse {
    pub session_id: String,
    pub protocol_version: String,
    /// The granted value. Present when the client asked (extension).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detached_ttl_ms: Option<u64>,
    /// The granted value. Present when the client asked (extension).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub acks: Option<bool>,
    /// The last event in the log of each process that the client named and that still exists.
    /// Present if the client sent `positions` with `acks` (extension).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub positions: Option<BTreeMap<String, u64>>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct SessionCloseParams {
    /// The session to close. Default: the session of this connection.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_id: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SessionListResponse {
    pub sessions: Vec<SessionInfo>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct SessionInfo {
    pub session_id: String,
    pub client_name: String,
    pub attached: bool,
    /// Ids of the session's processes, including finished ones that are still readable.
    pub processes: Vec<String>,
    /// The owner of the session. Sent to admins only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ObserveParams {
    pub session_id: String,
    pub process_id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after_seq: Option<u64>,
}

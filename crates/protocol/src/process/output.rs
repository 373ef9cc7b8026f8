//! Output and exit of a process: polled by `process/read`, pushed by notifications.

use serde::{Deserialize, Serialize};

use super::is_default;
use crate::{Base64Bytes, Denial, LimitName, NetworkUse, nullable};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ReadParams {
    pub process_id: String,
    #[serde(default)]
    pub after_seq: Option<u64>,
    #[serde(default)]
    pub max_bytes: Option<u64>,
    #[serde(default)]
    pub wait_ms: Option<u64>,
}

/// Output of a process and its state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ReadResponse {
    pub chunks: Vec<OutputChunk>,
    pub next_seq: u64,
    pub exited: bool,
    pub exit_code: Option<i32>,
    pub closed: bool,
    /// The reason why the server lost track of the process.
    pub failure: Option<String>,
    pub sandbox_denied: bool,
    /// The access that seems to have been denied (extension).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub denied: Option<Denial>,
    /// Size of the gap between `afterSeq` and the returned output (extension).
    #[serde(
        default,
        deserialize_with = "nullable::or_default",
        skip_serializing_if = "is_default"
    )]
    pub dropped_bytes: u64,
    #[serde(flatten)]
    pub exit: Option<ExitDetails>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct OutputChunk {
    pub seq: u64,
    pub stream: OutputStream,
    pub chunk: Base64Bytes,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum OutputStream {
    Stdout,
    Stderr,
    Pty,
}

impl OutputStream {
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Stdout => "stdout",
            Self::Stderr => "stderr",
            Self::Pty => "pty",
        }
    }
}

/// How a process ended, and its resource use (extension).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ExitDetails {
    /// The signal that killed the process (extension).
    pub signal: Option<i32>,
    /// Time from start to exit (extension).
    pub duration_ms: u64,
    /// Processor time of the process, including children that it waited for (extension).
    pub cpu_ms: u64,
    /// Peak memory of the process, or of a child that it waited for if that is more (extension).
    pub max_rss_bytes: u64,
    /// The server terminated the process at its deadline: after `timeoutMs` or, if that is shorter,
    /// the limit `wallTimeMs` (extension).
    #[serde(
        default,
        deserialize_with = "nullable::or_default",
        skip_serializing_if = "is_default"
    )]
    pub timed_out: bool,
    /// The server terminated the process because the server shut down (extension).
    #[serde(
        default,
        deserialize_with = "nullable::or_default",
        skip_serializing_if = "is_default"
    )]
    pub server_stopped: bool,
    /// Limits that the process and everything it started had reached when the process exited
    /// (extension).
    #[serde(
        default,
        deserialize_with = "nullable::or_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub limits_hit: Vec<LimitName>,
    /// Peak memory of the process and everything it started, if measured (extension).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peak_memory_bytes: Option<u64>,
    /// Processor time of the process and everything it started, if measured (extension).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tree_cpu_ms: Option<u64>,
    /// Network use until the exit, for a process with a managed network (extension).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<Box<NetworkUse>>,
}

/// `process/output`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct OutputNotification {
    pub process_id: String,
    /// The session of the process. Present only for an observer (extension).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_id: Option<String>,
    pub seq: u64,
    pub stream: OutputStream,
    pub chunk: Base64Bytes,
    /// Size of the gap just before this chunk (extension).
    #[serde(
        default,
        deserialize_with = "nullable::or_default",
        skip_serializing_if = "is_default"
    )]
    pub dropped_bytes: u64,
}

/// `process/exited`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ExitedNotification {
    pub process_id: String,
    /// The session of the process. Present only for an observer (extension).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_id: Option<String>,
    pub seq: u64,
    pub exit_code: i32,
    #[serde(default)]
    pub sandbox_denied: bool,
    /// The access that seems to have been denied (extension).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub denied: Option<Denial>,
    /// Size of the gap just before this event (extension).
    #[serde(
        default,
        deserialize_with = "nullable::or_default",
        skip_serializing_if = "is_default"
    )]
    pub dropped_bytes: u64,
    #[serde(flatten)]
    pub exit: Option<ExitDetails>,
}

/// `process/closed`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ClosedNotification {
    pub process_id: String,
    /// The session of the process. Present only for an observer (extension).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_id: Option<String>,
    pub seq: u64,
    /// Size of the gap just before this event (extension).
    #[serde(
        default,
        deserialize_with = "nullable::or_default",
        skip_serializing_if = "is_default"
    )]
    pub dropped_bytes: u64,
}

/// `process/ack`, from client to server (extension).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct AckParams {
    pub process_id: String,
    pub seq: u64,
}

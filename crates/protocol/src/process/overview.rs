//! `process/wait`, `process/snapshot` and `process/list`: the state of processes, without a stream
//! of output.

use serde::{Deserialize, Serialize};

use super::is_default;
use crate::{Base64Bytes, LimitName, nullable};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct WaitParams {
    pub process_id: String,
    #[serde(default)]
    pub timeout_ms: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct WaitResponse {
    pub exited: bool,
    pub exit_code: Option<i32>,
    pub signal: Option<i32>,
    pub closed: bool,
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
    /// Peak memory of the process tree, if measured (extension).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peak_memory_bytes: Option<u64>,
    /// Processor time of the process tree, if measured (extension).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tree_cpu_ms: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct SnapshotResponse {
    pub stdout: Base64Bytes,
    pub stderr: Base64Bytes,
    pub terminal: Base64Bytes,
    /// Output between the head and the tail of a stream is omitted.
    pub truncated: bool,
    pub exit_code: Option<i32>,
    pub running: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ListParams {
    /// The session whose processes are listed. Default: the client's own (extension).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_id: Option<String>,
    /// Ask for `firstSeqWithin`, the first event of the last `withinMs` milliseconds (extension).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub within_ms: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ListResponse {
    pub processes: Vec<ProcessSummary>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ProcessSummary {
    pub process_id: String,
    pub argv: Vec<String>,
    pub tty: bool,
    pub running: bool,
    pub exit_code: Option<i32>,
    pub started_at_ms: u64,
    pub next_seq: u64,
    /// Number of descendants that are still running, or 0 if the server cannot count them
    /// (extension).
    #[serde(default)]
    pub descendants: u64,
    /// The server terminated the process at its deadline: after `timeoutMs` or, if that is shorter,
    /// the limit `wallTimeMs` (extension).
    #[serde(
        default,
        deserialize_with = "nullable::or_default",
        skip_serializing_if = "is_default"
    )]
    pub timed_out: bool,
    /// Limits that the process and everything it started had reached when the process exited
    /// (extension).
    #[serde(
        default,
        deserialize_with = "nullable::or_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub limits_hit: Vec<LimitName>,
    /// Sequence number of the first retained event of the last `withinMs` milliseconds, if
    /// requested; `nextSeq` if there is none (extension). For output in the spill file it may be
    /// somewhat earlier.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_seq_within: Option<u64>,
}

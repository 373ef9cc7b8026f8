//! The v0 methods and notifications: `command/exec` and its relatives.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{Base64Bytes, PathUri, nullable};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ExecParams {
    pub process_id: String,
    pub argv: Vec<String>,
    pub cwd: PathUri,
    #[serde(default, deserialize_with = "nullable::or_default")]
    pub env: BTreeMap<String, String>,
    #[serde(default, deserialize_with = "nullable::or_default")]
    pub tty: bool,
    /// Maximum number of bytes of the process's output that the server keeps in memory. Can only
    /// lower the server's own setting.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_bytes_cap: Option<u64>,
    #[serde(default)]
    pub arg0: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ExecResponse {
    pub process_id: String,
    pub running: bool,
    pub exit_code: Option<i32>,
    pub stdout: Option<Base64Bytes>,
    pub stderr: Option<Base64Bytes>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ExecWriteResponse {
    pub accepted: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum LegacyStream {
    Stdout,
    Stderr,
}

/// `command/exec/outputDelta`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ExecOutputDeltaNotification {
    pub process_id: String,
    pub stream: LegacyStream,
    pub chunk: Base64Bytes,
}

/// `command/exec/exited`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ExecExitedNotification {
    pub process_id: String,
    pub exit_code: i32,
}

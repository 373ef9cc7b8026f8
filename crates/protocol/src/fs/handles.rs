//! Files in blocks: read from a handle, or written to one. Handles belong to their connection.

use serde::{Deserialize, Serialize};

use super::content::{WriteCondition, is_false};
use super::entries::FsMetadata;
use crate::{Base64Bytes, PathUri, SandboxRequest, nullable};

/// The longest `handleId`.
pub const MAX_HANDLE_ID_BYTES: usize = 32;
/// The most that is read or written at once.
pub const MAX_BLOCK_BYTES: usize = 1 << 20;

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct FsOpenParams {
    pub path: PathUri,
    /// Chosen by the client.
    pub handle_id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub follow_symlinks: Option<bool>,
    /// The answer is to say what was opened (ours).
    #[serde(default, deserialize_with = "nullable::or_default", skip_serializing_if = "is_false")]
    pub details: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<SandboxRequest>,
}

/// A new file that takes its name when the handle is closed.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct FsCreateParams {
    pub path: PathUri,
    /// Chosen by the client; of the same kind as those of `fs/open`.
    pub handle_id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub follow_symlinks: Option<bool>,
    /// Permission bits; when left out those of the file that is replaced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub if_modified_at_ms: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub if_size: Option<u64>,
    #[serde(default, deserialize_with = "nullable::or_default", skip_serializing_if = "is_false")]
    pub create_new: bool,
    /// Names what is being written (letters, digits, `-` and `_`). What was written under the same key is kept when the
    /// connection ends, and is found again by the next `fs/create` with the key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resume_key: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<SandboxRequest>,
}

impl FsCreateParams {
    #[must_use]
    pub fn new(path: PathUri, handle_id: impl Into<String>) -> Self {
        Self {
            path,
            handle_id: handle_id.into(),
            follow_symlinks: None,
            mode: None,
            if_modified_at_ms: None,
            if_size: None,
            create_new: false,
            resume_key: None,
            sandbox: None,
        }
    }

    #[must_use]
    pub fn condition(&self) -> WriteCondition {
        WriteCondition {
            modified_at_ms: self.if_modified_at_ms,
            size: self.if_size,
            create_new: self.create_new,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct FsHandleResponse {
    pub handle_id: String,
    /// What was opened, if `fs/open` was asked for details (ours).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<FsMetadata>,
    /// Of `fs/create`: how much is written already (ours).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct FsReadBlockParams {
    pub handle_id: String,
    pub offset: u64,
    pub len: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FsReadBlockResponse {
    pub chunk: Base64Bytes,
    /// Nothing comes after this chunk.
    pub eof: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct FsWriteBlockParams {
    pub handle_id: String,
    pub offset: u64,
    pub chunk: Base64Bytes,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct FsCloseParams {
    pub handle_id: String,
    /// A file that was being written is not to take its name (ours).
    #[serde(default, deserialize_with = "nullable::or_default", skip_serializing_if = "is_false")]
    pub discard: bool,
    /// The same, but what has a `resumeKey` is kept to be found again (ours).
    #[serde(default, deserialize_with = "nullable::or_default", skip_serializing_if = "is_false")]
    pub keep: bool,
}

/// Empty, unless a file that was written has taken its name (ours).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct FsCloseResponse {
    #[serde(default, deserialize_with = "nullable::or_default", skip_serializing_if = "is_false")]
    pub committed: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub modified_at_ms: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
}

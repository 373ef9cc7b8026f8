//! Files in blocks, read or written through a handle. Handles belong to their connection.

use serde::{Deserialize, Serialize};

use super::content::{WriteCondition, is_false};
use super::entries::FsMetadata;
use crate::{Base64Bytes, PathUri, SandboxRequest, nullable};

pub const MAX_HANDLE_ID_BYTES: usize = 32;
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
    /// Ask for the metadata of the opened file in the response (extension).
    #[serde(default, deserialize_with = "nullable::or_default", skip_serializing_if = "is_false")]
    pub details: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<SandboxRequest>,
}

/// Creates a file. It appears under its path only once `fs/close` commits it.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct FsCreateParams {
    pub path: PathUri,
    /// Chosen by the client. Shares the namespace of `fs/open` handles.
    pub handle_id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub follow_symlinks: Option<bool>,
    /// Permission bits. When left out, a replaced file keeps its bits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub if_modified_at_ms: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub if_size: Option<u64>,
    #[serde(default, deserialize_with = "nullable::or_default", skip_serializing_if = "is_false")]
    pub create_new: bool,
    /// Names the write, so that it can be continued (letters, digits, `-` and `_`). Data written
    /// under this key survives the connection, and the next `fs/create` of the same path with the
    /// key continues the write.
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
    /// Metadata of the opened file, if `fs/open` asked for details (extension).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<FsMetadata>,
    /// In the response to `fs/create`: the end of the data written earlier under the `resumeKey`,
    /// otherwise 0. Blocks before this end that were in flight when the connection was lost may be
    /// missing (extension).
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
    /// No data follows this chunk.
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
    /// Discard the written file instead of committing it (extension).
    #[serde(default, deserialize_with = "nullable::or_default", skip_serializing_if = "is_false")]
    pub discard: bool,
    /// Like `discard`, but keep data written under a `resumeKey` for a later `fs/create`
    /// (extension).
    #[serde(default, deserialize_with = "nullable::or_default", skip_serializing_if = "is_false")]
    pub keep: bool,
}

/// Empty unless a written file was committed (extension).
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

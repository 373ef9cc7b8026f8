//! Whole files in one message.

use serde::{Deserialize, Serialize};

use crate::{Base64Bytes, PathUri, SandboxRequest, nullable};

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct FsReadFileParams {
    pub path: PathUri,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub follow_symlinks: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<SandboxRequest>,
}

impl FsReadFileParams {
    #[must_use]
    pub fn new(path: PathUri) -> Self {
        Self { path, follow_symlinks: None, sandbox: None }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct FsReadFileResponse {
    pub data_base64: Base64Bytes,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct FsWriteFileParams {
    pub path: PathUri,
    pub data_base64: Base64Bytes,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub follow_symlinks: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<SandboxRequest>,
    /// Write a temporary file, sync it and rename it over the old one, so that readers, even
    /// after a crash, see all of the old or all of the new content. Otherwise the write replaces
    /// the content of the existing inode (extension).
    #[serde(default, deserialize_with = "nullable::or_default", skip_serializing_if = "is_false")]
    pub atomic: bool,
    /// Permission bits of the file after the write. When left out, an existing file keeps its bits
    /// (extension).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<u32>,
    /// Write only if the file was last modified at this time (extension).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub if_modified_at_ms: Option<i64>,
    /// Write only if the file has this size (extension).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub if_size: Option<u64>,
    /// Write only if the name does not exist (extension).
    #[serde(default, deserialize_with = "nullable::or_default", skip_serializing_if = "is_false")]
    pub create_new: bool,
}

impl FsWriteFileParams {
    #[must_use]
    pub fn new(path: PathUri, content: impl Into<Base64Bytes>) -> Self {
        Self {
            path,
            data_base64: content.into(),
            follow_symlinks: None,
            sandbox: None,
            atomic: false,
            mode: None,
            if_modified_at_ms: None,
            if_size: None,
            create_new: false,
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

/// A write fails unless this condition holds for its path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WriteCondition {
    pub modified_at_ms: Option<i64>,
    pub size: Option<u64>,
    pub create_new: bool,
}

impl WriteCondition {
    #[must_use]
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }
}

/// Empty unless the write had a condition. If it had one, carries the values for the next
/// condition, read before another request can write the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct FsWriteFileResponse {
    /// Modification time of the file after the write (extension).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub modified_at_ms: Option<i64>,
    /// Size of the file after the write (extension).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes fields by reference")]
pub(super) fn is_false(flag: &bool) -> bool {
    !flag
}

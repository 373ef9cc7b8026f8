//! Metadata, symlinks and permissions of one path.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};

use serde::{Deserialize, Serialize};

use crate::{Base64Bytes, PathUri, SandboxRequest};

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct FsGetMetadataParams {
    pub path: PathUri,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub follow_symlinks: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<SandboxRequest>,
}

/// Times are milliseconds since 1970, or 0 if the file system does not record them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct FsMetadata {
    pub is_directory: bool,
    pub is_file: bool,
    /// Whether the name itself is a symlink, even when the other members describe its target.
    pub is_symlink: bool,
    pub size: u64,
    #[serde(default)]
    pub created_at_ms: i64,
    #[serde(default)]
    pub modified_at_ms: i64,
    /// Permission bits (extension).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<u32>,
    /// Present only if the entry is neither a file nor a directory nor a symlink (extension).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub special: Option<SpecialFile>,
}

/// A file that is neither regular nor a directory nor a symlink.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum SpecialFile {
    Fifo,
    Socket,
    CharacterDevice,
    BlockDevice,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct FsCanonicalizeParams {
    pub path: PathUri,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<SandboxRequest>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FsPathResponse {
    pub path: PathUri,
}

/// Makes `path` a symlink to `target`, or to the bytes of `targetBase64` if the target is not
/// UTF-8. The target is not checked.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct FsSymlinkParams {
    pub path: PathUri,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_base64: Option<Base64Bytes>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub follow_symlinks: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<SandboxRequest>,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LinkTargetError {
    #[error("exactly one of target and targetBase64 is required")]
    NotOne,
    #[error("a symlink target must not be empty or contain a NUL byte")]
    Impossible,
}

impl FsSymlinkParams {
    #[must_use]
    pub fn new(path: PathUri, target: &OsStr) -> Self {
        let (target, target_base64) = on_the_wire(target);
        Self { path, target, target_base64, follow_symlinks: None, sandbox: None }
    }

    pub fn link_target(&self) -> Result<OsString, LinkTargetError> {
        from_the_wire(self.target.as_deref(), self.target_base64.as_ref())
    }
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct FsReadLinkParams {
    pub path: PathUri,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub follow_symlinks: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<SandboxRequest>,
}

/// Exactly one member is present, as in [`FsSymlinkParams`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct FsReadLinkResponse {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_base64: Option<Base64Bytes>,
}

impl FsReadLinkResponse {
    #[must_use]
    pub fn new(target: &OsStr) -> Self {
        let (target, target_base64) = on_the_wire(target);
        Self { target, target_base64 }
    }

    pub fn link_target(&self) -> Result<OsString, LinkTargetError> {
        from_the_wire(self.target.as_deref(), self.target_base64.as_ref())
    }
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct FsSetPermissionsParams {
    pub path: PathUri,
    /// Permission bits, at most `0o7777`.
    pub mode: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub follow_symlinks: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<SandboxRequest>,
}

fn on_the_wire(target: &OsStr) -> (Option<String>, Option<Base64Bytes>) {
    match target.to_str() {
        Some(text) => (Some(text.to_owned()), None),
        None => (None, Some(Base64Bytes::from(target.as_bytes().to_vec()))),
    }
}

fn from_the_wire(
    text: Option<&str>,
    bytes: Option<&Base64Bytes>,
) -> Result<OsString, LinkTargetError> {
    let target = match (text, bytes) {
        (Some(text), None) => OsString::from(text),
        (None, Some(bytes)) => OsString::from_vec(bytes.to_vec()),
        _ => return Err(LinkTargetError::NotOne),
    };
    if target.is_empty() || target.as_bytes().contains(&0) {
        return Err(LinkTargetError::Impossible);
    }
    Ok(target)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_target_round_trips() {
        for bytes in [&b"../a b"[..], b"/abs", b"not\xff\xfeutf8"] {
            let response = FsReadLinkResponse::new(OsStr::from_bytes(bytes));
            let text = serde_json::to_string(&response).unwrap();
            let read: FsReadLinkResponse = serde_json::from_str(&text).unwrap();
            assert_eq!(read.link_target().unwrap().as_bytes(), bytes);
        }
    }

    #[test]
    fn a_target_must_be_given_once_and_be_valid() {
        let target = |params: &str| {
            let params: FsSymlinkParams = serde_json::from_str(params).unwrap();
            params.link_target()
        };
        assert_eq!(target(r#"{"path":"/a"}"#), Err(LinkTargetError::NotOne));
        let both = r#"{"path":"/a","target":"b","targetBase64":"Yg=="}"#;
        assert_eq!(target(both), Err(LinkTargetError::NotOne));
        assert_eq!(target(r#"{"path":"/a","target":""}"#), Err(LinkTargetError::Impossible));
        assert_eq!(target(r#"{"path":"/a","target":"a\u0000"}"#), Err(LinkTargetError::Impossible));
    }
}

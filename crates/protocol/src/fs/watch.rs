//! Notifications of changes below a path.

use serde::{Deserialize, Serialize};

use super::content::is_false;
use crate::{PathUri, SandboxRequest, nullable};

/// Maximum length of a `watchId` or `searchId`.
pub const MAX_WATCH_ID_BYTES: usize = 128;

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct FsWatchParams {
    pub path: PathUri,
    /// Chosen by the client, unique on its connection.
    pub watch_id: String,
    #[serde(default, deserialize_with = "nullable::or_default")]
    pub recursive: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<SandboxRequest>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct FsUnwatchParams {
    pub watch_id: String,
}

/// A batch of changes that one watch has seen.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ChangedNotification {
    pub watch_id: String,
    /// Every `path` and `from` of `changes`, once.
    pub changed_paths: Vec<PathUri>,
    #[serde(default)]
    pub changes: Vec<FileChange>,
    /// Changes were lost: anything below the watched path may have changed.
    #[serde(default, deserialize_with = "nullable::or_default", skip_serializing_if = "is_false")]
    pub rescan: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct FileChange {
    pub path: PathUri,
    pub kind: ChangeKind,
    /// The former path of a renamed entry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<PathUri>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum ChangeKind {
    Created,
    Modified,
    Removed,
    Renamed,
}

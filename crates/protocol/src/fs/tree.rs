//! Directories and what is in them.

use serde::{Deserialize, Serialize};

use super::content::is_false;
use crate::{PathUri, SandboxRequest, nullable};

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FsCreateDirectoryParams {
    pub path: PathUri,
    /// Also what is missing above it, and an existing directory is no error. True when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recursive: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub follow_symlinks: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<SandboxRequest>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FsReadDirectoryParams {
    pub path: PathUri,
    /// Each name as what it is itself, symlinks as symlinks and dangling ones too, with mode, size and time (ours).
    #[serde(default, deserialize_with = "nullable::or_default", skip_serializing_if = "is_false")]
    pub details: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<SandboxRequest>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FsReadDirectoryResponse {
    pub entries: Vec<DirectoryEntry>,
}

impl FsReadDirectoryResponse {
    /// Gives each entry its path that came without one, as those of a server that only knows names.
    #[must_use]
    pub fn with_paths(mut self, directory: &PathUri) -> Self {
        for entry in &mut self.entries {
            // No entry of a directory is the root.
            if entry.path.as_path().parent().is_none()
                && let Some(path) = PathUri::from_path(directory.as_path().join(&entry.file_name))
            {
                entry.path = path;
            }
        }
        self
    }
}

fn root() -> PathUri {
    PathUri::from_path("/").expect("it is absolute")
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DirectoryEntry {
    /// For display: a name that is not UTF-8 is whole only in `path`.
    pub file_name: String,
    pub is_directory: bool,
    pub is_file: bool,
    /// Ours; see [`FsReadDirectoryResponse::with_paths`].
    #[serde(default = "root")]
    pub path: PathUri,
    /// These only where details were asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub is_symlink: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub modified_at_ms: Option<i64>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FsWalkParams {
    pub path: PathUri,
    #[serde(default, deserialize_with = "nullable::or_default")]
    pub options: WalkOptions,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<SandboxRequest>,
}

/// How far a walk goes; the most that a server allows when left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WalkOptions {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_depth: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_directories: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_entries: Option<u64>,
    #[serde(default, deserialize_with = "nullable::or_default")]
    pub follow_directory_symlinks: bool,
    #[serde(default, deserialize_with = "nullable::or_default", skip_serializing_if = "is_false")]
    pub prune_hidden_directories: bool,
}

impl WalkOptions {
    pub const MAX_DEPTH: u64 = 64;
    pub const MAX_DIRECTORIES: u64 = 10_000;
    pub const MAX_ENTRIES: u64 = 50_000;
}

/// Of `fs/walk` and `fs/glob`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FsWalkResponse {
    pub entries: Vec<TreeEntry>,
    /// What could not be looked into, and why.
    pub errors: Vec<TreeError>,
    /// A limit was reached before the end.
    pub truncated: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TreeEntry {
    pub path: PathUri,
    pub kind: TreeEntryKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum TreeEntryKind {
    Directory,
    File,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TreeError {
    pub path: PathUri,
    pub message: String,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FsRemoveParams {
    pub path: PathUri,
    /// True when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recursive: Option<bool>,
    /// What is not there is no error. True when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub force: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub follow_symlinks: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<SandboxRequest>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FsCopyParams {
    pub source_path: PathUri,
    pub destination_path: PathUri,
    #[serde(default, deserialize_with = "nullable::or_default")]
    pub recursive: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<SandboxRequest>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FsRenameParams {
    pub source_path: PathUri,
    pub destination_path: PathUri,
    /// Whether what has the new name already is replaced. True when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replace: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub follow_symlinks: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<SandboxRequest>,
}

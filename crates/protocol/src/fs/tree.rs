//! Directories and what is in them.

use std::os::unix::ffi::OsStrExt as _;

use serde::{Deserialize, Serialize};

use super::content::is_false;
use super::entries::SpecialFile;
use crate::{PathUri, SandboxRequest, nullable};

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
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
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct FsReadDirectoryParams {
    pub path: PathUri,
    /// Each name as what it is itself, symlinks as symlinks and dangling ones too, with mode, size and time (ours).
    #[serde(default, deserialize_with = "nullable::or_default", skip_serializing_if = "is_false")]
    pub details: bool,
    /// Only what comes behind this name of the directory: the `next` of the page before (ours).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<PathUri>,
    /// A page of at most so many names, instead of everything or an error (ours).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<SandboxRequest>,
}

impl FsReadDirectoryParams {
    pub const MAX_ENTRIES: u64 = 50_000;
    /// With details they are more values, and a message has a limit of those.
    pub const MAX_DETAILED_ENTRIES: u64 = 25_000;

    #[must_use]
    pub fn new(path: PathUri) -> Self {
        Self { path, details: false, after: None, limit: None, sandbox: None }
    }

    /// Asks for pages as large as a server makes them, if not for smaller ones.
    #[must_use]
    pub fn in_pages(self) -> Self {
        let limit = Some(self.limit.unwrap_or(self.most_entries()));
        Self { limit, ..self }
    }

    /// The most names that one answer may have.
    #[must_use]
    pub fn most_entries(&self) -> u64 {
        if self.details { Self::MAX_DETAILED_ENTRIES } else { Self::MAX_ENTRIES }
    }

    /// What asks for the page behind the one that was answered; `None` if that was the last.
    pub fn following(
        &self,
        answered: &FsReadDirectoryResponse,
    ) -> Result<Option<Self>, PageOrderError> {
        let Some(next) = &answered.next else { return Ok(None) };
        let before = self.after.as_ref().and_then(|after| after.as_path().file_name());
        // Whoever does not get on would ask for ever.
        match next.as_path().file_name() {
            Some(name) if before.is_none_or(|before| before.as_bytes() < name.as_bytes()) => {
                Ok(Some(Self { after: Some(next.clone()), ..self.clone() }))
            }
            _ => Err(PageOrderError { next: next.clone() }),
        }
    }
}

/// A page that ends no further on than the one before it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a page of a directory does not end behind the one before it, but at {next}")]
pub struct PageOrderError {
    pub next: PathUri,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FsReadDirectoryResponse {
    pub entries: Vec<DirectoryEntry>,
    /// Only of a page, and only if names come behind it: the last name that was looked at (ours).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<PathUri>,
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
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct DirectoryEntry {
    /// For display: a name that is not UTF-8 is whole only in `path`.
    pub file_name: String,
    pub is_directory: bool,
    pub is_file: bool,
    /// Where the entry is. A server that only knows names leaves it out (ours).
    #[serde(default = "root")]
    pub path: PathUri,
    /// With `details` (ours).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub is_symlink: Option<bool>,
    /// With `details`: the permission bits (ours).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<u32>,
    /// With `details` (ours).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    /// With `details` (ours).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub modified_at_ms: Option<i64>,
    /// With `details` (ours).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub special: Option<SpecialFile>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
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
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
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
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FsWalkResponse {
    pub entries: Vec<TreeEntry>,
    /// What could not be looked into, and why.
    pub errors: Vec<TreeError>,
    /// A limit was reached before the end.
    pub truncated: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TreeEntry {
    pub path: PathUri,
    pub kind: TreeEntryKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum TreeEntryKind {
    Directory,
    File,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TreeError {
    pub path: PathUri,
    pub message: String,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
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
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
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
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
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

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(next: Option<&str>) -> FsReadDirectoryResponse {
        let next = next.map(|next| next.parse().unwrap());
        FsReadDirectoryResponse { entries: Vec::new(), next }
    }

    #[test]
    fn pages_follow_each_other_to_the_last() {
        let first = FsReadDirectoryParams::new("/d".parse().unwrap()).in_pages();
        assert_eq!((first.limit, &first.after), (Some(50_000), &None));
        let second = first.following(&answered(Some("/d/b"))).unwrap().unwrap();
        assert_eq!(second.after, Some("/d/b".parse().unwrap()));
        assert!(second.following(&answered(None)).unwrap().is_none());
        for next in ["/d/b", "/d/a", "/d/B", "/"] {
            assert!(second.following(&answered(Some(next))).is_err(), "{next}");
        }
        // By the bytes of names.
        assert!(second.following(&answered(Some("file:///d/%FF"))).unwrap().is_some());
    }

    #[test]
    fn whoever_asks_for_no_page_says_nothing_of_pages() {
        let whole = FsReadDirectoryParams::new("/d".parse().unwrap());
        assert_eq!(serde_json::to_string(&whole).unwrap(), r#"{"path":"file:///d"}"#);
        assert_eq!(serde_json::to_string(&answered(None)).unwrap(), r#"{"entries":[]}"#);
    }
}

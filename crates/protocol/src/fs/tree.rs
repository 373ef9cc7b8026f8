//! Directories and trees.

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
    /// Also create missing parents, and accept an existing directory. Default true.
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
    /// Describe symlinks instead of their targets, list dangling symlinks as well, and add mode,
    /// size and time (extension).
    #[serde(default, deserialize_with = "nullable::or_default", skip_serializing_if = "is_false")]
    pub details: bool,
    /// Return only names after this one: the `next` of the previous page (extension).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<PathUri>,
    /// Return a page of at most this many names. Default with `after`: the largest page. With
    /// neither, the response has all names, or is an error if it would be too large (extension).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<SandboxRequest>,
}

impl FsReadDirectoryParams {
    pub const MAX_ENTRIES: u64 = 50_000;
    /// Lower than [`Self::MAX_ENTRIES`], because entries with details consist of more values: see
    /// [`crate::MAX_JSON_VALUES`].
    pub const MAX_DETAILED_ENTRIES: u64 = 25_000;

    #[must_use]
    pub fn new(path: PathUri) -> Self {
        Self { path, details: false, after: None, limit: None, sandbox: None }
    }

    /// Turns the request into a paged one. Keeps its limit, if any; otherwise asks for the largest
    /// pages.
    #[must_use]
    pub fn in_pages(self) -> Self {
        let limit = Some(self.limit.unwrap_or(self.most_entries()));
        Self { limit, ..self }
    }

    #[must_use]
    pub fn most_entries(&self) -> u64 {
        if self.details { Self::MAX_DETAILED_ENTRIES } else { Self::MAX_ENTRIES }
    }

    /// Returns the request for the page after `answered`, or `None` if that was the last page.
    pub fn following(
        &self,
        answered: &FsReadDirectoryResponse,
    ) -> Result<Option<Self>, PageOrderError> {
        let Some(next) = &answered.next else { return Ok(None) };
        let before = self.after.as_ref().and_then(|after| after.as_path().file_name());
        // A page that makes no progress would lead to an endless loop.
        match next.as_path().file_name() {
            Some(name) if before.is_none_or(|before| before.as_bytes() < name.as_bytes()) => {
                Ok(Some(Self { after: Some(next.clone()), ..self.clone() }))
            }
            _ => Err(PageOrderError { next: next.clone() }),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a directory page ends at {next}, which is not after the end of the previous page")]
pub struct PageOrderError {
    pub next: PathUri,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FsReadDirectoryResponse {
    pub entries: Vec<DirectoryEntry>,
    /// The last name that was examined for this page, even if the page leaves it out. Present only
    /// if more names follow (extension).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<PathUri>,
}

impl FsReadDirectoryResponse {
    /// Fills in the path of each entry that lacks one, for servers that send only names.
    #[must_use]
    pub fn with_paths(mut self, directory: &PathUri) -> Self {
        for entry in &mut self.entries {
            // No entry of a directory is the root, so the root marks a missing path.
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
    PathUri::from_path("/").expect("`/` is absolute")
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct DirectoryEntry {
    /// For display. If the name is not UTF-8, only `path` carries all of its bytes.
    pub file_name: String,
    pub is_directory: bool,
    pub is_file: bool,
    /// The path of the entry. Other servers, which send only names, leave it out (extension).
    #[serde(default = "root")]
    pub path: PathUri,
    /// Present with `details` (extension).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub is_symlink: Option<bool>,
    /// The permission bits. Present with `details` (extension).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<u32>,
    /// Present with `details` (extension).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    /// Present with `details` (extension).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub modified_at_ms: Option<i64>,
    /// Present with `details`, if the entry is neither a file nor a directory nor a symlink
    /// (extension).
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

/// Options of a walk. Each limit defaults to the server's maximum.
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

/// Response to `fs/walk` and `fs/glob`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FsWalkResponse {
    pub entries: Vec<TreeEntry>,
    /// Paths that could not be read, and the reason.
    pub errors: Vec<TreeError>,
    /// A limit other than `maxDepth` ended the walk or the glob early.
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
    /// Default true.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recursive: Option<bool>,
    /// Accept a path that does not exist. Default true.
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
    /// Whether to replace an existing destination. Default true.
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
        // Names are ordered by their bytes.
        assert!(second.following(&answered(Some("file:///d/%FF"))).unwrap().is_some());
    }

    #[test]
    fn an_unpaged_request_has_no_paging_members() {
        let whole = FsReadDirectoryParams::new("/d".parse().unwrap());
        assert_eq!(serde_json::to_string(&whole).unwrap(), r#"{"path":"file:///d"}"#);
        assert_eq!(serde_json::to_string(&answered(None)).unwrap(), r#"{"entries":[]}"#);
    }
}

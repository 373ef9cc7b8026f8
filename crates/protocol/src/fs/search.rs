//! Finding lines and names in a tree.

use serde::{Deserialize, Serialize};

use super::content::is_false;
use crate::{PathUri, SandboxRequest, nullable};

/// Looks for lines in a file, or in all files of a tree.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct FsSearchParams {
    pub path: PathUri,
    /// Chosen by the client, unique among the searches that run on its connection.
    pub search_id: String,
    /// A regular expression, or the very text if `literal`.
    pub pattern: String,
    #[serde(default, deserialize_with = "nullable::or_default", skip_serializing_if = "is_false")]
    pub literal: bool,
    #[serde(default, deserialize_with = "nullable::or_default", skip_serializing_if = "is_false")]
    pub ignore_case: bool,
    /// Only whole words.
    #[serde(default, deserialize_with = "nullable::or_default", skip_serializing_if = "is_false")]
    pub word: bool,
    /// Only files that one of these matches; `!` in front excludes.
    #[serde(
        default,
        deserialize_with = "nullable::or_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub globs: Vec<String>,
    /// Also hidden files.
    #[serde(default, deserialize_with = "nullable::or_default", skip_serializing_if = "is_false")]
    pub hidden: bool,
    /// Also what `.gitignore` and its like exclude.
    #[serde(default, deserialize_with = "nullable::or_default", skip_serializing_if = "is_false")]
    pub ignored: bool,
    /// Lines of context around each match, at most 100.
    #[serde(default, deserialize_with = "nullable::or_default")]
    pub before: u32,
    #[serde(default, deserialize_with = "nullable::or_default")]
    pub after: u32,
    /// Matching lines after which the search ends; 10,000 when left out, and at most 100,000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_matches: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<SandboxRequest>,
}

impl FsSearchParams {
    pub const DEFAULT_MATCHES: u64 = 10_000;
    pub const MAX_MATCHES: u64 = 100_000;
    pub const MAX_CONTEXT: u32 = 100;

    #[must_use]
    pub fn new(path: PathUri, pattern: impl Into<String>) -> Self {
        Self {
            path,
            search_id: String::new(),
            pattern: pattern.into(),
            literal: false,
            ignore_case: false,
            word: false,
            globs: Vec::new(),
            hidden: false,
            ignored: false,
            before: 0,
            after: 0,
            max_matches: None,
            sandbox: None,
        }
    }
}

/// Sent when the search is over, after its results.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct FsSearchResponse {
    pub matches: u64,
    pub files_searched: u64,
    /// Files and directories that could not be read.
    pub unreadable: u64,
    /// A limit was reached before the end.
    pub truncated: bool,
    pub cancelled: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct SearchResultsNotification {
    pub search_id: String,
    pub results: Vec<SearchMatch>,
}

/// One line that matches.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct SearchMatch {
    pub path: PathUri,
    /// From 1.
    pub line_number: u64,
    /// Without its line end; what is not UTF-8 is replaced, and a very long line is cut.
    pub text: String,
    /// It was cut: the line goes on behind `text`.
    #[serde(default, deserialize_with = "nullable::or_default", skip_serializing_if = "is_false")]
    pub line_truncated: bool,
    /// Where in `text`, in bytes.
    pub submatches: Vec<Submatch>,
    #[serde(
        default,
        deserialize_with = "nullable::or_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub before: Vec<SearchLine>,
    #[serde(
        default,
        deserialize_with = "nullable::or_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub after: Vec<SearchLine>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Submatch {
    pub start: u64,
    pub end: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct SearchLine {
    pub line_number: u64,
    pub text: String,
    #[serde(default, deserialize_with = "nullable::or_default", skip_serializing_if = "is_false")]
    pub line_truncated: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct FsCancelSearchParams {
    pub search_id: String,
}

/// Finds names below a directory. The result is that of a walk.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct FsGlobParams {
    pub path: PathUri,
    /// Names that one of these matches, relative to `path`; `!` in front excludes.
    pub patterns: Vec<String>,
    /// Also hidden names.
    #[serde(default, deserialize_with = "nullable::or_default", skip_serializing_if = "is_false")]
    pub hidden: bool,
    /// Also what `.gitignore` and its like exclude.
    #[serde(default, deserialize_with = "nullable::or_default", skip_serializing_if = "is_false")]
    pub ignored: bool,
    /// At most, and when left out, 50,000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_entries: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<SandboxRequest>,
}

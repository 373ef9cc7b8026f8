//! Searching a tree for lines and names.

use serde::{Deserialize, Serialize};

use super::content::is_false;
use crate::{PathUri, SandboxRequest, nullable};

/// Searches for lines in one file or in all files of a tree.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct FsSearchParams {
    pub path: PathUri,
    /// Chosen by the client, unique among the running searches of its connection.
    pub search_id: String,
    /// A regular expression, or plain text if `literal` is set.
    pub pattern: String,
    #[serde(default, deserialize_with = "nullable::or_default", skip_serializing_if = "is_false")]
    pub literal: bool,
    #[serde(default, deserialize_with = "nullable::or_default", skip_serializing_if = "is_false")]
    pub ignore_case: bool,
    /// Match whole words only.
    #[serde(default, deserialize_with = "nullable::or_default", skip_serializing_if = "is_false")]
    pub word: bool,
    /// Search only files that match one of these globs; a leading `!` excludes.
    #[serde(
        default,
        deserialize_with = "nullable::or_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub globs: Vec<String>,
    /// Also search hidden files.
    #[serde(default, deserialize_with = "nullable::or_default", skip_serializing_if = "is_false")]
    pub hidden: bool,
    /// Also search files excluded by `.gitignore` and similar files.
    #[serde(default, deserialize_with = "nullable::or_default", skip_serializing_if = "is_false")]
    pub ignored: bool,
    /// Lines of context before each match, at most 100.
    #[serde(default, deserialize_with = "nullable::or_default")]
    pub before: u32,
    /// Lines of context after each match, at most 100.
    #[serde(default, deserialize_with = "nullable::or_default")]
    pub after: u32,
    /// End the search after this many matching lines. Default 10,000, at most 100,000.
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

/// The response, sent after all results of the search.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct FsSearchResponse {
    pub matches: u64,
    pub files_searched: u64,
    /// Files and directories that could not be read.
    pub unreadable: u64,
    /// A limit ended the search early.
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

/// One matching line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct SearchMatch {
    pub path: PathUri,
    /// Counted from 1.
    pub line_number: u64,
    /// The line without its line ending. Invalid UTF-8 is replaced, and a very long line is cut.
    pub text: String,
    /// The line was cut: it continues after `text`.
    #[serde(default, deserialize_with = "nullable::or_default", skip_serializing_if = "is_false")]
    pub line_truncated: bool,
    /// Positions of the matches in `text`, in bytes; at most 1,000.
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

/// Finds names below a directory. The result has the form of an `fs/walk` result.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct FsGlobParams {
    pub path: PathUri,
    /// Return only names, relative to `path`, that match one of these globs; a leading `!`
    /// excludes.
    pub patterns: Vec<String>,
    /// Also return hidden names.
    #[serde(default, deserialize_with = "nullable::or_default", skip_serializing_if = "is_false")]
    pub hidden: bool,
    /// Also return names excluded by `.gitignore` and similar files.
    #[serde(default, deserialize_with = "nullable::or_default", skip_serializing_if = "is_false")]
    pub ignored: bool,
    /// Maximum number of entries. Default and upper limit: 50,000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_entries: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<SandboxRequest>,
}

//! A requested policy in terms of this machine. Every wire form is translated into it.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeclaredPolicy {
    pub files: DeclaredFiles,
    pub network: Network,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeclaredFiles {
    Unrestricted,
    /// A path that no entry covers is denied, unless it is a device that every program needs.
    Restricted {
        entries: Vec<Entry>,
        /// The depth to which a glob may match, in components below its start directory.
        glob_scan_max_depth: Option<usize>,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub path: EntryPath,
    pub access: Access,
    pub skip_missing: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EntryPath {
    /// Absolute, without `..`.
    Path(PathBuf),
    /// `*` and `?` stop at a `/`, `**` does not. `{a,b}`, `[a-z]` and `[!a-z]` are supported, `\`
    /// escapes the next character. A match includes everything below it. A relative glob starts at
    /// the working directory and at each workspace root.
    ///
    /// A denying glob stays a pattern: it also applies to files created after the policy was
    /// resolved, and no path entry overrides it. A granting glob stands for its matches at the time
    /// when the policy is resolved, without symlinks. A path entry below the start directory of the
    /// glob overrides the matches below that path.
    Glob(String),
    Root,
    /// The paths that a dynamically linked program needs to start.
    Minimal,
    WorkingDirectory,
    /// Each workspace root, or the subpath in each. Without workspace roots the entry grants
    /// nothing, and a denying entry is an error.
    ProjectRoots {
        subpath: Option<PathBuf>,
    },
    Tmpdir,
    SlashTmp,
}

/// In ascending order: if two policies apply, the lower access wins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Access {
    Deny,
    /// Includes execution.
    Read,
    /// Includes reading.
    Write,
}

/// In ascending order, like [`Access`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Network {
    Restricted,
    /// Through the gate of the process, which knows the allowed hosts.
    Managed,
    Enabled,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PolicyContext {
    pub cwd: Option<PathBuf>,
    pub workspace_roots: Vec<PathBuf>,
    pub tmpdir: Option<PathBuf>,
    /// Paths that no entry makes writable.
    pub protected_paths: Vec<PathBuf>,
    pub link_trust: LinkTrust,
}

/// Facts about the origin of symlinks.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LinkTrust {
    pub written: WrittenRoots,
    /// Symlinks that the operator trusts, by their own paths.
    pub trusted: Vec<PathBuf>,
    /// The home directory of the server's user. Only `.git` makes it a workspace: tools keep their
    /// settings under the other protected names.
    pub home: Option<PathBuf>,
}

/// All directories in which sandboxes of this user were ever allowed to write, except `/tmp` and
/// `/var/tmp`, whose symlinks are never trusted anyway.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WrittenRoots {
    Known(Arc<BTreeSet<PathBuf>>),
    /// The history is unknown, so any directory may be one of them.
    Unknown,
}

impl Default for WrittenRoots {
    fn default() -> Self {
        Self::Known(Arc::default())
    }
}

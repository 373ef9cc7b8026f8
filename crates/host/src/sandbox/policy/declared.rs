//! What was asked for, in the terms of this machine. Whatever the wire looks like is translated to this.

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
    /// What no entry speaks of is denied.
    Restricted {
        entries: Vec<Entry>,
        /// How many components below the directory where it starts a glob may match.
        glob_scan_max_depth: Option<usize>,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub path: EntryPath,
    pub access: Access,
    /// If there is nothing at the path, the entry counts for nothing.
    pub skip_missing: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EntryPath {
    /// Absolute, without `..`.
    Path(PathBuf),
    /// `*` and `?` stop at a `/`, `**` does not, `{a,b}`, `[a-z]` and `[!a-z]` are known, `\` takes the meaning from what follows;
    /// what matches counts with everything below it. A relative one starts at the working directory and at each workspace root.
    ///
    /// One that denies stays a pattern, also for what is made later, and no path wins over it. One that grants is
    /// what it matches when the policy is resolved, symlinks aside, and a path wins over it if that is below where the glob starts.
    Glob(String),
    /// All of it.
    Root,
    /// What a dynamic program needs in order to start.
    Minimal,
    /// The working directory.
    WorkingDirectory,
    /// Each workspace root, and nothing without any.
    ProjectRoots {
        subpath: Option<PathBuf>,
    },
    /// What `TMPDIR` says.
    Tmpdir,
    SlashTmp,
}

/// In ascending order: of two policies that both apply, the lesser access is what remains.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Access {
    Deny,
    /// Also to execute.
    Read,
    /// Also to read.
    Write,
}

/// In ascending order, as [`Access`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Network {
    Restricted,
    /// Through the gate of the process, which knows the hosts that it may reach.
    Managed,
    Enabled,
}

/// What the names in a declared policy are relative to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PolicyContext {
    pub cwd: Option<PathBuf>,
    pub workspace_roots: Vec<PathBuf>,
    pub tmpdir: Option<PathBuf>,
    /// Never writable because a directory around them is.
    pub protected_paths: Vec<PathBuf>,
    pub link_trust: LinkTrust,
}

/// What is known about the origin of symlinks.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LinkTrust {
    pub written: WrittenRoots,
    /// Symlinks that the operator vouches for, by their own paths.
    pub trusted: Vec<PathBuf>,
    /// Of the server's user. It is no workspace although tools keep their settings under protected
    /// names in it.
    pub home: Option<PathBuf>,
}

/// The directories that sandboxes of this user were ever granted for writing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WrittenRoots {
    Known(Arc<BTreeSet<PathBuf>>),
    /// Any directory may be one of them.
    Unknown,
}

impl Default for WrittenRoots {
    fn default() -> Self {
        Self::Known(Arc::default())
    }
}

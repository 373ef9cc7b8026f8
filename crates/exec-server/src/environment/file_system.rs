//! The files of an environment, as callers see them. Part of every environment in a later version; nothing implements
//! it yet.

use std::fmt::Debug;

use async_trait::async_trait;
use bytes::Bytes;
use exec_server_client::ExecServerError;
use exec_server_protocol::{PathUri, SandboxRequest};

/// Reads and changes the files of the machine on which the processes of an environment run.
///
/// Every call may carry the policy under which it is to be done; without one it has the rights of the server.
#[async_trait]
pub trait ExecutorFileSystem: Debug + Send + Sync {
    /// The content of a regular file that fits into one message. Larger ones are read in blocks; see [`Self::open`].
    async fn read_file(
        &self,
        path: &PathUri,
        symlinks: Symlinks,
        sandbox: Option<&SandboxRequest>,
    ) -> Result<Bytes, ExecServerError>;

    /// Replaces the content and keeps an existing inode, so that hard links survive.
    async fn write_file(
        &self,
        path: &PathUri,
        content: Bytes,
        symlinks: Symlinks,
        sandbox: Option<&SandboxRequest>,
    ) -> Result<(), ExecServerError>;

    async fn create_directory(
        &self,
        path: &PathUri,
        options: CreateDirectoryOptions,
        sandbox: Option<&SandboxRequest>,
    ) -> Result<(), ExecServerError>;

    async fn metadata(
        &self,
        path: &PathUri,
        symlinks: Symlinks,
        sandbox: Option<&SandboxRequest>,
    ) -> Result<FileMetadata, ExecServerError>;

    async fn canonicalize(
        &self,
        path: &PathUri,
        sandbox: Option<&SandboxRequest>,
    ) -> Result<PathUri, ExecServerError>;

    /// The entries of one directory. A dangling symlink is left out.
    async fn read_directory(
        &self,
        path: &PathUri,
        sandbox: Option<&SandboxRequest>,
    ) -> Result<Vec<DirectoryEntry>, ExecServerError>;

    /// The tree below a directory, as far as the options go.
    async fn walk(
        &self,
        path: &PathUri,
        options: WalkOptions,
        sandbox: Option<&SandboxRequest>,
    ) -> Result<Walk, ExecServerError>;

    /// A symlink is removed, never its target.
    async fn remove(
        &self,
        path: &PathUri,
        options: RemoveOptions,
        sandbox: Option<&SandboxRequest>,
    ) -> Result<(), ExecServerError>;

    /// Symlinks are copied as symlinks.
    async fn copy(
        &self,
        source: &PathUri,
        destination: &PathUri,
        depth: CopyDepth,
        sandbox: Option<&SandboxRequest>,
    ) -> Result<(), ExecServerError>;

    /// Opens a regular file for reading in blocks.
    async fn open(
        &self,
        path: &PathUri,
        sandbox: Option<&SandboxRequest>,
    ) -> Result<Box<dyn OpenFile>, ExecServerError>;

    /// Reports changes of a file, or of a directory, until the watch is dropped.
    async fn watch(
        &self,
        path: &PathUri,
        depth: WatchDepth,
        sandbox: Option<&SandboxRequest>,
    ) -> Result<Box<dyn FileWatch>, ExecServerError>;
}

/// A file that stays the one that was opened, whatever happens to its name. Dropping it closes it.
#[async_trait]
pub trait OpenFile: Debug + Send + Sync {
    /// At most `len` bytes, and at most [`MAX_BLOCK_BYTES`].
    async fn read_block(&self, offset: u64, len: usize) -> Result<FileBlock, ExecServerError>;
}

/// Changes below one path.
#[async_trait]
pub trait FileWatch: Debug + Send {
    /// The canonical form of what is watched.
    fn path(&self) -> &PathUri;

    /// What has changed since the last call, several changes together; `None` when no more can come. Cancel-safe.
    async fn next(&mut self) -> Option<Vec<PathUri>>;
}

pub const MAX_BLOCK_BYTES: usize = 1 << 20;

/// What a symlink in a path means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Symlinks {
    #[default]
    Follow,
    /// No component of the path may be one; checked without a race.
    Refuse,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileBlock {
    pub bytes: Bytes,
    /// Nothing comes after these bytes.
    pub eof: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileMetadata {
    pub is_directory: bool,
    pub is_file: bool,
    /// Whether the name itself is a symlink, also when the rest describes its target.
    pub is_symlink: bool,
    pub size: u64,
    /// Where the file system knows it.
    pub created_at_ms: Option<i64>,
    pub modified_at_ms: Option<i64>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirectoryEntry {
    /// For display: a name that is not UTF-8 is whole only in `path`.
    pub file_name: String,
    pub path: PathUri,
    /// Types are those of a symlink's target.
    pub is_directory: bool,
    pub is_file: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CreateDirectoryOptions {
    /// Also what is missing above it; an existing directory is then no error.
    pub recursive: bool,
    pub symlinks: Symlinks,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RemoveOptions {
    pub recursive: bool,
    /// What is not there is no error.
    pub force: bool,
    pub symlinks: Symlinks,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CopyDepth {
    /// One file or symlink.
    Single,
    /// A directory with all that is in it.
    Tree,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WatchDepth {
    /// The path and, if it is a directory, what is directly in it.
    Single,
    Tree,
}

/// How far a walk goes. The defaults are the most that a server allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WalkOptions {
    pub max_depth: u32,
    pub max_directories: u32,
    pub max_entries: u32,
    pub follow_directory_symlinks: bool,
    pub prune_hidden_directories: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Walk {
    pub entries: Vec<WalkEntry>,
    /// What could not be looked into, and why.
    pub errors: Vec<WalkError>,
    /// A limit was reached before the end.
    pub truncated: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WalkEntry {
    pub path: PathUri,
    pub kind: WalkEntryKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WalkEntryKind {
    Directory,
    File,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WalkError {
    pub path: PathUri,
    pub message: String,
}

impl Default for CreateDirectoryOptions {
    fn default() -> Self {
        Self { recursive: true, symlinks: Symlinks::Follow }
    }
}

impl Default for RemoveOptions {
    fn default() -> Self {
        Self { recursive: true, force: true, symlinks: Symlinks::Follow }
    }
}

impl Default for WalkOptions {
    fn default() -> Self {
        Self {
            max_depth: 64,
            max_directories: 10_000,
            max_entries: 50_000,
            follow_directory_symlinks: false,
            prune_hidden_directories: false,
        }
    }
}

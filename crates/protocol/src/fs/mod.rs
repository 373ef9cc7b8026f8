//! `fs/*`: params, results and notifications.
//!
//! `follow_symlinks` defaults to `true`; `false` means that no component of the path may be a
//! symlink. The methods that create, rename or read a name itself (`createDirectory`, `symlink`,
//! `rename`, `readLink`) exempt the last component.

mod content;
mod entries;
mod handles;
mod search;
mod tree;
mod watch;

pub use content::{
    FsReadFileParams, FsReadFileResponse, FsWriteFileParams, FsWriteFileResponse, WriteCondition,
};
pub use entries::{
    FsCanonicalizeParams, FsGetMetadataParams, FsMetadata, FsPathResponse, FsReadLinkParams,
    FsReadLinkResponse, FsSetPermissionsParams, FsSymlinkParams, LinkTargetError, SpecialFile,
};
pub use handles::{
    FsCloseParams, FsCloseResponse, FsCreateParams, FsHandleResponse, FsOpenParams,
    FsReadBlockParams, FsReadBlockResponse, FsWriteBlockParams, MAX_BLOCK_BYTES,
    MAX_HANDLE_ID_BYTES,
};
pub use search::{
    FsCancelSearchParams, FsGlobParams, FsSearchParams, FsSearchResponse, SearchLine, SearchMatch,
    SearchResultsNotification, Submatch,
};
pub use tree::{
    DirectoryEntry, FsCopyParams, FsCreateDirectoryParams, FsReadDirectoryParams,
    FsReadDirectoryResponse, FsRemoveParams, FsRenameParams, FsWalkParams, FsWalkResponse,
    PageOrderError, TreeEntry, TreeEntryKind, TreeError, WalkOptions,
};
pub use watch::{
    ChangeKind, ChangedNotification, FileChange, FsUnwatchParams, FsWatchParams, MAX_WATCH_ID_BYTES,
};

/// The largest file that fits into one message as base64, with room for the envelope.
pub const MAX_FILE_BYTES: u64 = 47 << 20;

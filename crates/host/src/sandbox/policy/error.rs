use std::io;
use std::path::PathBuf;

use super::TooMuch;
use super::resolved_path::MAX_LINKS;

/// Why a declared policy is invalid on this machine or cannot be enforced.
#[derive(Debug, thiserror::Error)]
pub enum PolicyError {
    #[error("sandbox path {path:?} is not absolute")]
    Relative { path: PathBuf },
    #[error("sandbox path {path:?} contains `..`")]
    ParentComponent { path: PathBuf },
    #[error("subpath {subpath:?} leaves the project roots; it must be relative and without `..`")]
    Subpath { subpath: PathBuf },
    #[error(
        "sandbox path {path:?} leads into the /proc directory of one process; inside the sandbox, that path means a different process; name /proc instead"
    )]
    OneProcess { path: PathBuf },
    #[error("sandbox path {path:?} leads through more than {MAX_LINKS} symlinks")]
    TooManyLinks { path: PathBuf },
    #[error("cannot resolve sandbox path {path:?} at {at:?}: {source}")]
    Unreadable { path: PathBuf, at: PathBuf, source: io::Error },
    #[error("cannot protect {path:?} in the sandbox: cannot inspect it: {source}")]
    UnreadableProtected { path: PathBuf, source: io::Error },
    #[error(
        "the sandbox reaches {path:?} through the symlink {link:?}, which a program in the sandbox could replace; name {path:?} itself"
    )]
    ReplaceableLink { path: PathBuf, link: PathBuf },
    #[error(
        "the sandbox grants {path:?} through the symlink {link:?}, which a sandboxed process could have created: {doubt}; name {path:?} itself, or add the symlink to sandbox.trusted_links of the server"
    )]
    PlantedLink { path: PathBuf, link: PathBuf, doubt: LinkDoubt },
    #[error(
        "cannot make {what} {path:?} writable: it is at or below {protected:?}, which sandboxes protect; use another directory, or replace the sandbox entry for {what} with one that names {path:?}"
    )]
    ImplicitRoot { what: &'static str, path: PathBuf, protected: PathBuf },
    #[error(
        "cannot protect {path:?} in the sandbox: it is a symlink; replace it with a file or directory"
    )]
    ProtectedLink { path: PathBuf },
    #[error(
        "cannot protect {path:?} in the sandbox: user {owner} has put a symlink there; remove it"
    )]
    ForeignLink { path: PathBuf, owner: u32 },
    #[error("invalid sandbox glob {pattern:?}: {why}")]
    InvalidGlob { pattern: String, why: String },
    #[error(
        "the sandbox denies more than {max} globs (a relative glob counts once for the working directory and once for each workspace root); deny directories by path"
    )]
    TooManyGlobs { max: usize },
    #[error("glob_scan_max_depth must be at least 1")]
    ZeroDepth,
    #[error(
        "sandbox glob {pattern:?} is relative, but there is no working directory and no workspace root; write an absolute glob"
    )]
    GlobWithoutBase { pattern: String },
    #[error(
        "scanning for the globs of the sandbox exceeds the limit of {limit}; the limit was reached at {pattern:?}; name directories by path, or lower glob_scan_max_depth"
    )]
    TooMuchToScan { pattern: String, limit: TooMuch },
    #[error(
        "the globs of the sandbox grant more than {max} paths; the limit was reached at {pattern:?}; grant directories by path"
    )]
    TooManyMatches { pattern: String, max: usize },
    #[error(
        "the globs of the sandbox exceed {max} characters in total (braces count once for each alternative, a relative glob once for the working directory and once for each workspace root); use fewer or shorter globs"
    )]
    GlobsTooLong { max: usize },
    #[error(
        "the sandbox names more than {max} paths and globs, counted once per project root; name the directories that contain them"
    )]
    TooManyPaths { max: usize },
    #[error("the sandbox denies {what}, which neither the request nor this machine defines")]
    NothingToDeny { what: &'static str },
}

/// Why a sandboxed process may have created a symlink.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LinkDoubt {
    #[error("sandboxes were allowed to write in {root:?}")]
    Written { root: PathBuf },
    #[error(
        "the server cannot read its record of where sandboxes were allowed to write; its log says why"
    )]
    Unknown,
    #[error("it is in a directory that counts as a workspace because of {name:?}")]
    Workspace { name: PathBuf },
    #[error("it is in the temporary directory {directory:?}")]
    Temporary { directory: PathBuf },
}

use std::io;
use std::path::PathBuf;

use super::TooMuch;

/// Why a declared policy has no meaning on this machine, or none that could be kept.
#[derive(Debug, thiserror::Error)]
pub enum PolicyError {
    #[error("path {path:?} of the sandbox is not absolute")]
    Relative { path: PathBuf },
    #[error("path {path:?} of the sandbox has `..` in it")]
    ParentComponent { path: PathBuf },
    #[error("subpath {subpath:?} of the project roots does not stay below them")]
    Subpath { subpath: PathBuf },
    #[error(
        "path {path:?} of the sandbox leads to a directory of one process in /proc, which is another one in the sandbox"
    )]
    OneProcess { path: PathBuf },
    #[error("path {path:?} of the sandbox leads through too many symlinks")]
    TooManyLinks { path: PathBuf },
    #[error("path {path:?} of the sandbox cannot be looked at, because of {at:?}: {source}")]
    Unreadable { path: PathBuf, at: PathBuf, source: io::Error },
    #[error(
        "{path:?} cannot be kept apart: {link:?} is a symlink which a program in the sandbox could replace; name what it leads to"
    )]
    ReplaceableLink { path: PathBuf, link: PathBuf },
    #[error(
        "the sandbox grants {path:?} through the symlink {link:?}, which a process in a sandbox could have made, because {doubt}; name {path:?} itself, or add the symlink to sandbox.trusted_links of the server"
    )]
    PlantedLink { path: PathBuf, link: PathBuf, doubt: LinkDoubt },
    #[error(
        "{what} {path:?} lies in {protected:?}, where nothing can be written unless an entry names it; use another directory, or list this one in writable_roots"
    )]
    ImplicitRoot { what: &'static str, path: PathBuf, protected: PathBuf },
    #[error("{path:?} is to be protected in the sandbox, and it is a symlink, which cannot be")]
    ProtectedLink { path: PathBuf },
    #[error(
        "{path:?} is to be protected in the sandbox, and user {owner} has put a symlink there, which cannot be; remove it"
    )]
    ForeignLink { path: PathBuf, owner: u32 },
    #[error("glob {pattern:?} of the sandbox is not valid: {why}")]
    InvalidGlob { pattern: String, why: String },
    #[error("the sandbox denies more than {max} globs, counted for each directory they start at")]
    TooManyGlobs { max: usize },
    #[error("globs of the sandbox are to match at depth 0, where nothing is")]
    ZeroDepth,
    #[error(
        "glob {pattern:?} of the sandbox is relative, and there is neither a working directory nor a workspace root"
    )]
    GlobWithoutBase { pattern: String },
    #[error("looking for glob {pattern:?} of the sandbox takes more than {limit}")]
    TooMuchToScan { pattern: String, limit: TooMuch },
    #[error("globs of the sandbox grant more than {max} paths, up to {pattern:?}")]
    TooManyMatches { pattern: String, max: usize },
    #[error(
        "the globs of the sandbox are longer than {max} characters in all, counted for each alternative and for each directory they start at"
    )]
    GlobsTooLong { max: usize },
    #[error("the sandbox speaks of more than {max} paths, counted for each project root")]
    TooManyPaths { max: usize },
    #[error("the sandbox denies {what}, and there is none that is known")]
    NothingToDeny { what: &'static str },
}

/// Why a symlink may be the work of a process in a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LinkDoubt {
    #[error("sandboxes were allowed to write in {root:?}")]
    Written { root: PathBuf },
    #[error("it is unknown where sandboxes were allowed to write")]
    Unknown,
    #[error("it is in the workspace that has {name:?}")]
    Workspace { name: PathBuf },
    #[error("it is in the temporary directory {directory:?}")]
    Temporary { directory: PathBuf },
}

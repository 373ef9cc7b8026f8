//! Why an operation on files failed.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use super::confinement::Need;
use super::kind::FileKind;

#[derive(Debug, thiserror::Error)]
pub enum FsError {
    /// The kernel's own answer.
    #[error("cannot {action} {path}: {source}", path = .path.display())]
    Os { action: &'static str, path: PathBuf, source: io::Error },
    /// The caller allows no symlinks.
    #[error("{path} leads through a symlink, which this request does not allow", path = .path.display())]
    Symlink { path: PathBuf },
    #[error("{path} is {found}, not {wanted}", path = .path.display())]
    WrongKind { path: PathBuf, found: FileKind, wanted: &'static str },
    /// It ends in a slash or a dot.
    #[error("{path} is the name of a directory, and something else was meant", path = .path.display())]
    NamesDirectory { path: PathBuf },
    #[error("{path} is larger than {max} bytes", path = .path.display())]
    TooLarge { path: PathBuf, max: u64 },
    #[error("{path} has more than {max} entries", path = .path.display())]
    TooManyEntries { path: PathBuf, max: usize },
    /// The file is not what the caller believes it to be; nothing was changed.
    #[error("{path} {is}", path = .path.display())]
    Conflict { path: PathBuf, is: String },
    /// What was asked for makes no sense for this path.
    #[error("{path} {why}", path = .path.display())]
    Unsuitable { path: PathBuf, why: &'static str },
    /// Opening it would have to wait for the holder of the lease.
    #[error("{path} is leased by another process", path = .path.display())]
    Leased { path: PathBuf },
    /// The kernel's, for one user, which all programs share.
    #[error("no more can be watched: a limit is reached ({limit})")]
    NoWatches { limit: &'static str },
    /// By the policy that this thread is kept to. It says nothing about whether there is anything at the path.
    /// Existing clients look for the words "Permission denied".
    #[error("cannot {action} {extent}{path}: Permission denied by the sandbox", path = .path.display())]
    Denied { path: PathBuf, extent: Extent, action: &'static str },
}

/// What of a path is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    Itself,
    Inside,
}

impl fmt::Display for Extent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Itself => "",
            Self::Inside => "something in ",
        })
    }
}

impl FsError {
    /// For `map_err`: the kernel refused to do `action` to `path`.
    pub(crate) fn os(action: &'static str, path: &Path) -> impl FnOnce(Errno) -> Self {
        move |errno| match errno {
            Errno::LOOP => {
                let why = "leads through too many symlinks";
                Self::Unsuitable { path: path.to_owned(), why }
            }
            _ => Self::Os { action, path: path.to_owned(), source: errno.into() },
        }
    }

    /// The same where a file is opened without waiting for whoever holds a lease of it.
    pub(super) fn opening(action: &'static str, path: &Path) -> impl FnOnce(Errno) -> Self {
        move |errno| match errno {
            Errno::AGAIN => Self::Leased { path: path.to_owned() },
            _ => Self::os(action, path)(errno),
        }
    }

    pub(super) fn denied(path: &Path, need: Need) -> Self {
        let action = match need {
            Need::Pass | Need::Read => "read",
            Need::Write | Need::MakeDirectory | Need::Change => "change",
        };
        Self::Denied { path: path.to_owned(), extent: Extent::Itself, action }
    }

    /// Something below the path, which is not to be named.
    pub(super) fn denied_inside(path: &Path, need: Need) -> Self {
        match Self::denied(path, need) {
            Self::Denied { path, action, .. } => {
                Self::Denied { path, extent: Extent::Inside, action }
            }
            other => other,
        }
    }

    pub(crate) fn already_exists(path: &Path) -> Self {
        Self::Conflict { path: path.to_owned(), is: "exists already".to_owned() }
    }

    /// Whether the system had no descriptors or no memory left.
    #[must_use]
    pub fn is_out_of_resources(&self) -> bool {
        let Self::Os { source, .. } = self else { return false };
        let errno = Errno::from_io_error(source);
        matches!(errno, Some(Errno::MFILE | Errno::NFILE | Errno::NOMEM))
    }

    /// Whether there is nothing of that name.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::Os { source, .. } if source.kind() == io::ErrorKind::NotFound)
    }
}

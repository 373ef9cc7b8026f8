//! Errors of file operations.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use super::confinement::RequiredAccess;
use crate::fs::path::kind::FileKind;

#[derive(Debug)]
pub enum FsError {
    Os {
        action: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    /// The path contains a symlink, and the caller allows none.
    Symlink {
        path: PathBuf,
    },
    WrongKind {
        path: PathBuf,
        found: FileKind,
        wanted: &'static str,
    },
    /// The path ends in a slash, `.` or `..`, so it can only name a directory.
    NamesDirectory {
        path: PathBuf,
    },
    TooLarge {
        path: PathBuf,
        max: u64,
    },
    TooManyEntries {
        path: PathBuf,
        max: usize,
    },
    /// The file is not in the state that the caller expects, or others change it at the same time.
    Conflict {
        path: PathBuf,
        is: String,
    },
    /// The operation is refused or abandoned. `why` continues a sentence that begins with the path.
    Unsuitable {
        path: PathBuf,
        why: &'static str,
    },
    /// Another process holds a lease (fcntl(2)) on the file, so opening it would have to wait.
    Leased {
        path: PathBuf,
    },
    /// A limit on watches, their queues or open files was reached; `limit` names it.
    NoWatches {
        limit: &'static str,
    },
    /// The policy of this thread denies the access. Reveals nothing about whether the path exists.
    Denied {
        path: PathBuf,
        extent: Extent,
        action: &'static str,
    },
}

/// Whether an error concerns a path itself or something below it.
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

impl fmt::Display for FsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let reason = self.reason();
        match self {
            Self::Os { action, path, .. } => {
                write!(f, "cannot {action} {}: {reason}", path.display())
            }
            Self::Denied { path, extent, action } => {
                write!(f, "cannot {action} {extent}{}: {reason}", path.display())
            }
            other => match other.path() {
                Some(path) => write!(f, "{} {reason}", path.display()),
                None => f.write_str(&reason),
            },
        }
    }
}

impl std::error::Error for FsError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Os { source, .. } => Some(source),
            _ => None,
        }
    }
}

impl FsError {
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        match self {
            Self::Os { path, .. }
            | Self::Symlink { path }
            | Self::WrongKind { path, .. }
            | Self::NamesDirectory { path }
            | Self::TooLarge { path, .. }
            | Self::TooManyEntries { path, .. }
            | Self::Conflict { path, .. }
            | Self::Unsuitable { path, .. }
            | Self::Leased { path }
            | Self::Denied { path, .. } => Some(path),
            Self::NoWatches { .. } => None,
        }
    }

    /// Returns the reason, without the path.
    #[must_use]
    pub fn reason(&self) -> String {
        match self {
            Self::Os { source, .. } => source.to_string(),
            Self::Symlink { .. } => {
                "leads through a symlink, which this request does not allow".to_owned()
            }
            Self::WrongKind { found, wanted, .. } => format!("is {found}, not {wanted}"),
            Self::NamesDirectory { .. } => {
                "names a directory, because it ends in a slash or a dot".to_owned()
            }
            Self::TooLarge { max, .. } => format!("is larger than {max} bytes"),
            Self::TooManyEntries { max, .. } => format!("has more than {max} entries"),
            Self::Conflict { is, .. } => is.clone(),
            Self::Unsuitable { why, .. } => (*why).to_owned(),
            Self::Leased { .. } => "is leased by another process; try again later".to_owned(),
            Self::NoWatches { limit } => {
                format!("cannot watch more files; raise the {limit}")
            }
            // Some deployed clients look for the words "Permission denied".
            Self::Denied { .. } => "Permission denied by the sandbox".to_owned(),
        }
    }

    /// Returns a closure for `map_err`: `action` failed on `path`.
    pub(crate) fn os(action: &'static str, path: &Path) -> impl FnOnce(Errno) -> Self {
        move |errno| match errno {
            Errno::LOOP => {
                let why = "leads through too many symlinks";
                Self::Unsuitable { path: path.to_owned(), why }
            }
            _ => Self::Os { action, path: path.to_owned(), source: errno.into() },
        }
    }

    /// Like [`Self::os`], for a file that was opened with `O_NONBLOCK`: `EAGAIN` means that another
    /// process holds a lease on it.
    pub(super) fn opening(action: &'static str, path: &Path) -> impl FnOnce(Errno) -> Self {
        move |errno| match errno {
            Errno::AGAIN => Self::Leased { path: path.to_owned() },
            _ => Self::os(action, path)(errno),
        }
    }

    pub(super) fn denied(path: &Path, required: RequiredAccess) -> Self {
        let action = match required {
            RequiredAccess::Pass | RequiredAccess::Read => "read",
            RequiredAccess::Write | RequiredAccess::MakeDirectory | RequiredAccess::Change => {
                "change"
            }
        };
        Self::Denied { path: path.to_owned(), extent: Extent::Itself, action }
    }

    /// Denies access to something below `path`, without revealing its name.
    pub(super) fn denied_inside(path: &Path, required: RequiredAccess) -> Self {
        match Self::denied(path, required) {
            Self::Denied { path, action, .. } => {
                Self::Denied { path, extent: Extent::Inside, action }
            }
            other => other,
        }
    }

    pub(crate) fn already_exists(path: &Path) -> Self {
        Self::Conflict { path: path.to_owned(), is: "already exists".to_owned() }
    }

    /// Whether descriptors or memory ran out, in this process or in the system.
    #[must_use]
    pub fn is_out_of_resources(&self) -> bool {
        let Self::Os { source, .. } = self else { return false };
        let errno = Errno::from_io_error(source);
        matches!(errno, Some(Errno::MFILE | Errno::NFILE | Errno::NOMEM))
    }

    #[must_use]
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::Os { source, .. } if source.kind() == io::ErrorKind::NotFound)
    }
}

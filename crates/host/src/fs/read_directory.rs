//! What is in one directory.

use std::ffi::{CStr, OsStr, OsString};
use std::ops::ControlFlow;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use rustix::fs::{AtFlags, FileType, Stat};
use rustix::io::Errno;

use super::confinement::{Need, View};
use super::error::FsError;
use super::kind::FileKind;
use super::listing::{Listing, followed_type, own_type};
use super::resolve::{self, Symlinks};

/// What a symlink in a directory is listed as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryTypes {
    /// What it leads to. It is left out if that is nothing, and unknown if that may not be looked at.
    Followed,
    /// A symlink. Every entry has its details, unless it may not be looked at.
    Own,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub name: OsString,
    pub kind: FileKind,
    pub is_symlink: bool,
    /// `None` with [`EntryTypes::Followed`], which mostly needs no look at the files themselves, and for what may not be
    /// looked at.
    pub details: Option<EntryDetails>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EntryDetails {
    /// Permission bits.
    pub mode: u32,
    pub size: u64,
    pub modified_at_ms: i64,
}

/// The entries of a directory, sorted by the bytes of their names. One that goes away meanwhile may be missing.
pub fn read_directory(path: &Path, types: EntryTypes, max: usize) -> Result<Vec<Entry>, FsError> {
    let directory = resolve::directory(path, Symlinks::Follow)?;
    let mut view = View::of(directory.as_fd()).map_err(FsError::os("look at", path))?;
    let mut entries = Vec::new();
    let outcome = Listing::new().read(directory.as_fd(), |name, listed| {
        if !view.allows(OsStr::from_bytes(name.to_bytes()), Need::Read) {
            return ControlFlow::Continue(());
        }
        let entry = match types {
            EntryTypes::Followed => followed(directory.as_fd(), name, listed),
            EntryTypes::Own => own(directory.as_fd(), name, listed),
        };
        match entry {
            Ok(Some(_)) if entries.len() == max => {
                let path = path.to_owned();
                return ControlFlow::Break(FsError::TooManyEntries { path, max });
            }
            Ok(Some(entry)) => entries.push(entry),
            Ok(None) | Err(Errno::NOENT) => {}
            Err(errno) => {
                let path = path.join(OsStr::from_bytes(name.to_bytes()));
                return ControlFlow::Break(FsError::os("look at", &path)(errno));
            }
        }
        ControlFlow::Continue(())
    });
    match outcome.map_err(FsError::os("read the directory", path))? {
        ControlFlow::Break(error) => return Err(error),
        ControlFlow::Continue(()) => {}
    }
    entries.sort_unstable_by(|a, b| a.name.as_bytes().cmp(b.name.as_bytes()));
    Ok(entries)
}

fn followed(
    directory: BorrowedFd<'_>,
    name: &CStr,
    listed: FileType,
) -> Result<Option<Entry>, Errno> {
    let own = own_type(directory, name, listed)?;
    let is_symlink = own == FileType::Symlink;
    let kind = if is_symlink {
        match followed_type(directory, name) {
            Ok(Some(target)) => target,
            Ok(None) => return Ok(None),
            Err(_) => FileType::Unknown,
        }
    } else {
        own
    };
    let name = OsStr::from_bytes(name.to_bytes()).to_owned();
    Ok(Some(Entry { name, kind: kind.into(), is_symlink, details: None }))
}

fn own(directory: BorrowedFd<'_>, name: &CStr, listed: FileType) -> Result<Option<Entry>, Errno> {
    let (kind, details) = match rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => (FileType::from_raw_mode(stat.st_mode), Some(EntryDetails::from(&stat))),
        // In a directory that may be read and not searched.
        Err(Errno::ACCESS | Errno::PERM) => (listed, None),
        Err(errno) => return Err(errno),
    };
    Ok(Some(Entry {
        name: OsStr::from_bytes(name.to_bytes()).to_owned(),
        kind: kind.into(),
        is_symlink: kind == FileType::Symlink,
        details,
    }))
}

impl From<&Stat> for EntryDetails {
    fn from(stat: &Stat) -> Self {
        let milliseconds = i64::try_from(stat.st_mtime_nsec / 1_000_000).unwrap_or(0);
        Self {
            mode: stat.st_mode & 0o7777,
            size: u64::try_from(stat.st_size).unwrap_or(0),
            modified_at_ms: stat.st_mtime.saturating_mul(1_000).saturating_add(milliseconds),
        }
    }
}

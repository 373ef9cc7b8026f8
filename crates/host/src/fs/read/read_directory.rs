//! Lists the entries of one directory.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::ffi::{CStr, CString, OsStr, OsString};
use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use rustix::fs::{AtFlags, FileType, Stat};
use rustix::io::Errno;

use super::listing::{Listing, followed_type, own_type};
use crate::fs::confinement::{RequiredAccess, View};
use crate::fs::error::FsError;
use crate::fs::path::kind::FileKind;
use crate::fs::path::resolve::{self, Symlinks};

/// How symlinks in a directory are listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryTypes {
    /// As their targets. Those whose target is missing or denied by the policy are left out; those
    /// whose target is inaccessible for another reason have an unknown type.
    Followed,
    /// As symlinks. Entries have details, unless they may not be inspected.
    Own,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub name: OsString,
    pub kind: FileKind,
    pub is_symlink: bool,
    /// `None` with [`EntryTypes::Followed`], which rarely needs to inspect the files themselves,
    /// and for files that may not be inspected.
    pub details: Option<EntryDetails>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EntryDetails {
    pub mode: u32,
    pub size: u64,
    pub modified_at_ms: i64,
}

/// Entries are sorted by the bytes of their names. Those removed during the call may be missing.
pub fn read_directory(path: &Path, types: EntryTypes, max: usize) -> Result<Vec<Entry>, FsError> {
    let directory = Directory::open(path, types)?;
    let mut entries = Vec::new();
    directory.visit(|name, listed| {
        match directory.entry(name, listed)? {
            Some(_) if entries.len() == max => {
                return Err(FsError::TooManyEntries { path: path.to_owned(), max });
            }
            found => entries.extend(found),
        }
        Ok(())
    })?;
    entries.sort_unstable_by(|a, b| a.name.as_bytes().cmp(b.name.as_bytes()));
    Ok(entries)
}

/// A part of a directory: the smallest names, by their bytes, that follow a given name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// May be fewer than the limit even if more pages follow: names that a listing leaves out count
    /// towards the limit.
    pub entries: Vec<Entry>,
    /// The greatest name of the page, if the directory has greater ones.
    pub last: Option<OsString>,
}

/// Returns the page of at most `limit` names after `after`. A name that exists throughout is in
/// exactly one of consecutive pages, whatever other names come and go. Memory is proportional to
/// the page, not to the directory.
pub fn read_directory_page(
    path: &Path,
    types: EntryTypes,
    after: Option<&OsStr>,
    limit: NonZeroUsize,
) -> Result<Page, FsError> {
    let directory = Directory::open(path, types)?;
    let mut names = BinaryHeap::new();
    let mut has_more = false;
    directory.visit(|name, listed| {
        if after.is_some_and(|after| name.to_bytes() <= after.as_bytes()) {
            return Ok(());
        }
        if names.len() == limit.get() {
            has_more = true;
            let greatest: Option<&ListedName> = names.peek();
            if greatest.is_some_and(|greatest| greatest.name.as_c_str() <= name) {
                return Ok(());
            }
            names.pop();
        }
        names.push(ListedName { name: name.to_owned(), listed });
        Ok(())
    })?;
    let names = names.into_sorted_vec();
    let last = names.last().filter(|_| has_more);
    let last = last.map(|last| OsStr::from_bytes(last.name.to_bytes()).to_owned());
    // Only these names are inspected: inspecting all names for each page would be expensive.
    let entries =
        names.iter().filter_map(|name| directory.entry(&name.name, name.listed).transpose());
    Ok(Page { entries: entries.collect::<Result<_, _>>()?, last })
}

/// A name and its type from the directory entry. Ordered by the bytes of the name.
#[derive(Debug)]
struct ListedName {
    name: CString,
    listed: FileType,
}

impl Ord for ListedName {
    fn cmp(&self, other: &Self) -> Ordering {
        self.name.cmp(&other.name)
    }
}

impl PartialOrd for ListedName {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for ListedName {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for ListedName {}

struct Directory<'a> {
    path: &'a Path,
    types: EntryTypes,
    descriptor: OwnedFd,
}

impl<'a> Directory<'a> {
    fn open(path: &'a Path, types: EntryTypes) -> Result<Self, FsError> {
        Ok(Self { path, types, descriptor: resolve::directory(path, Symlinks::Follow)? })
    }

    /// Calls `visit` with each name that may be revealed, until `visit` fails.
    fn visit(
        &self,
        mut visit: impl FnMut(&CStr, FileType) -> Result<(), FsError>,
    ) -> Result<(), FsError> {
        let directory = self.descriptor.as_fd();
        let mut view = View::of(directory).map_err(FsError::os("stat", self.path))?;
        let outcome = Listing::new().read(directory, |name, listed| {
            if !view.allows(OsStr::from_bytes(name.to_bytes()), RequiredAccess::Read) {
                return ControlFlow::Continue(());
            }
            match visit(name, listed) {
                Ok(()) => ControlFlow::Continue(()),
                Err(error) => ControlFlow::Break(error),
            }
        });
        match outcome.map_err(FsError::os("read the directory", self.path))? {
            ControlFlow::Break(error) => Err(error),
            ControlFlow::Continue(()) => Ok(()),
        }
    }

    /// Returns `None` for names that a listing leaves out or that no longer exist.
    fn entry(&self, name: &CStr, listed: FileType) -> Result<Option<Entry>, FsError> {
        let directory = self.descriptor.as_fd();
        let entry = match self.types {
            EntryTypes::Followed => followed(directory, name, listed),
            EntryTypes::Own => own(directory, name, listed),
        };
        match entry {
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => {
                let path = self.path.join(OsStr::from_bytes(name.to_bytes()));
                Err(FsError::os("stat", &path)(errno))
            }
            Ok(entry) => Ok(entry),
        }
    }
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
        // The directory has read but no search permission.
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

//! Copies one regular file over another, which keeps its inode.
//!
//! Before the first old byte is overwritten, space for the new content is reserved or tried
//! ([`room`]), and small files are read completely. An error before that point leaves the old
//! content and permissions.

use std::ops::Range;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::slice::from_ref;

use rustix::fs::{Mode, Stat};

use super::content::{self, BUFFER_BYTES};
use super::{CopyTarget, Source, file};
use crate::fs::error::FsError;
use crate::fs::path::destination::{self, LastLink};
use crate::fs::path::resolve::{Parent, Symlinks};
use crate::fs::read::metadata::size;
use crate::fs::tree::cancel::CancelFlag;
use crate::fs::write::room::{self, Room};
use crate::fs::write::write_file::write_all_at;
use crate::fs::write::write_lock::WriteLock;

pub(super) struct Existing {
    pub(super) file: OwnedFd,
    pub(super) stat: Stat,
    /// Locks the content, because the file may have other names.
    pub(super) _content: WriteLock,
}

/// The data to write.
enum New {
    /// Content of a small file, or of a file that reports size 0.
    Content(Vec<u8>),
    /// The ranges where the source has data.
    Ranges(Vec<Range<u64>>),
}

pub(super) fn copy(
    source: &Source,
    input: BorrowedFd<'_>,
    target: &CopyTarget<'_>,
    existing: &Existing,
    cancel: &CancelFlag,
) -> Result<(), FsError> {
    let to = existing.file.as_fd();
    let old_mode = Mode::from_raw_mode(existing.stat.st_mode & 0o7777);
    let mode = source.mode();
    let set_mode = |mode| {
        rustix::fs::fchmod(to, mode).map_err(FsError::os("set the permissions of", &target.path))
    };
    if old_mode != mode {
        // Neither content may become readable to anyone who was not allowed to read it.
        set_mode(old_mode & mode)?;
    }
    if !content::clone(input, to, size(&source.stat)) {
        match secure(source, input, target, to, cancel) {
            Ok((new, room)) => write(source, input, target, to, (&new, room), cancel)?,
            Err(error) => {
                room::give_back(to, &existing.stat, size(&source.stat));
                if old_mode != mode {
                    let _ = set_mode(old_mode);
                }
                return Err(error);
            }
        }
    }
    if old_mode != mode { set_mode(mode) } else { Ok(()) }
}

/// Determines what to write, and makes sure that there is space for it.
fn secure(
    source: &Source,
    input: BorrowedFd<'_>,
    target: &CopyTarget<'_>,
    to: BorrowedFd<'_>,
    cancel: &CancelFlag,
) -> Result<(New, Room), FsError> {
    let size = size(&source.stat);
    let failed = |failed| file::explain(failed, source, target);
    let ranges = content::data_ranges(input, size).map_err(failed)?;
    let is_small = size <= BUFFER_BYTES as u64 && ranges.first() == Some(&(0..size));
    if size > 0 && !is_small {
        let try_out = |staged_file: BorrowedFd<'_>| {
            content::copy(input, staged_file, size, cancel).map_err(failed)
        };
        let room = room::reserve(&target.path, to, size, &ranges, || beside(target), try_out)?;
        return Ok((New::Ranges(ranges), room));
    }
    let new = content::read(input, size, cancel).map_err(failed)?;
    let len = new.len() as u64;
    let try_out = |staged_file: BorrowedFd<'_>| {
        write_all_at(staged_file, &new, 0).map_err(FsError::os("write", &target.path))
    };
    let room =
        room::reserve(&target.path, to, len, from_ref(&(0..len)), || beside(target), try_out)?;
    Ok((New::Content(new), room))
}

fn write(
    source: &Source,
    input: BorrowedFd<'_>,
    target: &CopyTarget<'_>,
    to: BorrowedFd<'_>,
    new: (&New, Room),
    cancel: &CancelFlag,
) -> Result<(), FsError> {
    let failed = |failed| file::explain(failed, source, target);
    let size = size(&source.stat);
    match new {
        (New::Content(new), _) => write_all_at(to, new, 0)
            .and_then(|()| rustix::fs::ftruncate(to, new.len() as u64))
            .map_err(FsError::os("write", &target.path)),
        (New::Ranges(data), Room::Reserved) => {
            content::replace(input, to, size, data, cancel).map_err(failed)
        }
        (New::Ranges(_), Room::Tried) => {
            rustix::fs::ftruncate(to, 0).map_err(FsError::os("empty", &target.path))?;
            content::copy(input, to, size, cancel).map_err(failed)
        }
    }
}

/// Returns the directory and name of the destination, with symlinks followed if allowed. `None` if
/// they cannot be followed.
fn beside(target: &CopyTarget<'_>) -> Result<Option<Parent>, FsError> {
    match target.symlinks {
        Symlinks::Refuse => Parent::of(target.directory, target.name, &target.path).map(Some),
        Symlinks::Follow => {
            destination::find(&target.path, target.symlinks, LastLink::Followed).or(Ok(None))
        }
    }
}

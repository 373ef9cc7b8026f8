//! Copies the content of one file into another. Preserves holes, and shares blocks where the file
//! system can.

use std::ops::Range;
use std::os::fd::BorrowedFd;

use rustix::fs::SeekFrom;
use rustix::io::Errno;

use crate::fs::tree::cancel::CancelFlag;
use crate::fs::write::room;
use crate::fs::write::write_file::write_all_at;

pub(super) const BUFFER_BYTES: usize = 256 * 1024;
/// At most this many bytes are copied between two checks for cancellation.
const RANGE_BYTES: u64 = 8 << 20;
/// Limit for a file that reports size 0 but has content.
pub(super) const MAX_UNSIZED_BYTES: u64 = 64 << 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Failed {
    Reading(Errno),
    Writing(Errno),
    /// The file reports size 0, but has more than [`MAX_UNSIZED_BYTES`].
    TooLarge,
    Abandoned,
}

/// Copies a file into an empty one, up to `size`, the size of the source when it was opened. The
/// bound keeps the copy of an endlessly growing file finite. For size 0, see [`read`].
pub(super) fn copy(
    from: BorrowedFd<'_>,
    to: BorrowedFd<'_>,
    size: u64,
    cancel: &CancelFlag,
) -> Result<(), Failed> {
    if rustix::fs::ioctl_ficlone(to, from).is_ok() {
        return Ok(());
    }
    if size == 0 {
        return write_all_at(to, &read(from, 0, cancel)?, 0).map_err(Failed::Writing);
    }
    let mut at = 0;
    let mut end = size;
    while at < end {
        let Some((start, until)) = next_data(from, at, end)? else {
            end = end.min(current_size(from)?);
            break;
        };
        at = copy_range(from, to, start..until, cancel)?;
        if at < until {
            // The source was truncated in the meantime.
            end = at;
        }
    }
    rustix::fs::ftruncate(to, end).map_err(Failed::Writing)
}

/// Makes `to` share all blocks of `from` in one step, with size `size`; its old content is
/// discarded. Returns whether that worked.
pub(super) fn clone(from: BorrowedFd<'_>, to: BorrowedFd<'_>, size: u64) -> bool {
    rustix::fs::ioctl_ficlone(to, from).and_then(|()| rustix::fs::ftruncate(to, size)).is_ok()
}

/// Reads everything up to `size`. Files of /proc report size 0 whatever they contain, and some have
/// no end. So a file that reports 0 may have at most [`MAX_UNSIZED_BYTES`].
pub(super) fn read(
    from: BorrowedFd<'_>,
    size: u64,
    cancel: &CancelFlag,
) -> Result<Vec<u8>, Failed> {
    // Some files that report 0 can be read in whole records only, so the limit is not probed with a
    // single byte.
    let end = if size == 0 { MAX_UNSIZED_BYTES + BUFFER_BYTES as u64 } else { size };
    let mut content = Vec::new();
    stream(from, 0..end, cancel, |bytes, _| {
        content.extend_from_slice(bytes);
        Ok(())
    })?;
    if size == 0 && content.len() as u64 > MAX_UNSIZED_BYTES {
        return Err(Failed::TooLarge);
    }
    Ok(content)
}

pub(super) fn data_ranges(from: BorrowedFd<'_>, size: u64) -> Result<Vec<Range<u64>>, Failed> {
    let (mut ranges, mut at) = (Vec::new(), 0);
    while at < size
        && let Some((start, until)) = next_data(from, at, size)?
    {
        ranges.push(start..until);
        at = until;
    }
    Ok(ranges)
}

/// Like [`copy`], over the existing content of a file. Space must be reserved for `data`, the
/// ranges where the source has data.
///
/// On failure, truncates the file: a mix of old and new content could be mistaken for a complete
/// file.
pub(super) fn replace(
    from: BorrowedFd<'_>,
    to: BorrowedFd<'_>,
    size: u64,
    data: &[Range<u64>],
    cancel: &CancelFlag,
) -> Result<(), Failed> {
    let mut at = 0;
    for range in data {
        let copied =
            clear(to, at..range.start).and_then(|()| copy_range(from, to, range.clone(), cancel));
        at = match copied {
            Ok(at) => at,
            Err(failed) => {
                let _ = rustix::fs::ftruncate(to, at);
                return Err(failed);
            }
        };
        if at < range.end {
            // The source was truncated in the meantime.
            return rustix::fs::ftruncate(to, at).map_err(Failed::Writing);
        }
    }
    // The rest is a hole.
    let end = size.min(current_size(from)?).max(at);
    let cut = rustix::fs::ftruncate(to, at).and_then(|()| rustix::fs::ftruncate(to, end));
    cut.map_err(Failed::Writing)
}

/// Makes a hole, or writes zeros if the file system does not support holes.
fn clear(file: BorrowedFd<'_>, range: Range<u64>) -> Result<(), Failed> {
    if range.is_empty() || room::punch(file, range.clone()).is_ok() {
        return Ok(());
    }
    let zeros = vec![0; BUFFER_BYTES];
    let mut at = range.start;
    while at < range.end {
        let len = usize::try_from(range.end - at).map_or(BUFFER_BYTES, |len| len.min(BUFFER_BYTES));
        write_all_at(file, &zeros[..len], at).map_err(Failed::Writing)?;
        at += len as u64;
    }
    Ok(())
}

/// Finds the next range with data. `None` if there is no more data before `end`. If the file system
/// does not tell where data is, everything is data.
fn next_data(from: BorrowedFd<'_>, at: u64, end: u64) -> Result<Option<(u64, u64)>, Failed> {
    let start = match rustix::fs::seek(from, SeekFrom::Data(at)) {
        Ok(start) if start < end => start,
        Ok(_) | Err(Errno::NXIO) => return Ok(None),
        Err(_) => return Ok(Some((at, end))),
    };
    let until = rustix::fs::seek(from, SeekFrom::Hole(start)).map_or(end, |hole| hole.min(end));
    Ok(Some((start, until)))
}

/// Copies a range in the kernel if possible. If the kernel fails or copies nothing, falls back to
/// read and write, which either works or shows whether the source or the destination failed, and
/// why. Returns where the copy ended, which is before the end of the range only at the end of the
/// file.
fn copy_range(
    from: BorrowedFd<'_>,
    to: BorrowedFd<'_>,
    range: Range<u64>,
    cancel: &CancelFlag,
) -> Result<u64, Failed> {
    let mut at = range.start;
    while at < range.end {
        if cancel.is_requested() {
            return Err(Failed::Abandoned);
        }
        let len = usize::try_from((range.end - at).min(RANGE_BYTES)).unwrap_or(BUFFER_BYTES);
        let (mut off_in, mut off_out) = (at, at);
        match rustix::fs::copy_file_range(from, Some(&mut off_in), to, Some(&mut off_out), len) {
            Ok(copied) if copied > 0 => at += copied as u64,
            Err(Errno::INTR) => {}
            Ok(_) | Err(_) => {
                return stream(from, at..range.end, cancel, |bytes, at| {
                    write_all_at(to, bytes, at)
                });
            }
        }
    }
    Ok(at)
}

/// Passes a range to `write` in chunks. Returns where the range or the file ended.
fn stream(
    from: BorrowedFd<'_>,
    range: Range<u64>,
    cancel: &CancelFlag,
    mut write: impl FnMut(&[u8], u64) -> Result<(), Errno>,
) -> Result<u64, Failed> {
    let mut buffer = vec![0; BUFFER_BYTES];
    let mut at = range.start;
    while at < range.end {
        if cancel.is_requested() {
            return Err(Failed::Abandoned);
        }
        let left = usize::try_from(range.end - at).unwrap_or(BUFFER_BYTES);
        match rustix::io::pread(from, &mut buffer[..left.min(BUFFER_BYTES)], at) {
            Ok(0) => break,
            Ok(read) => {
                write(&buffer[..read], at).map_err(Failed::Writing)?;
                at += read as u64;
            }
            Err(Errno::INTR) => {}
            Err(errno) => return Err(Failed::Reading(errno)),
        }
    }
    Ok(at)
}

fn current_size(file: BorrowedFd<'_>) -> Result<u64, Failed> {
    let stat = rustix::fs::fstat(file).map_err(Failed::Reading)?;
    Ok(u64::try_from(stat.st_size).unwrap_or(0))
}

//! The bytes of one file into another, which is empty. Holes stay holes, and where the file system can share the blocks of
//! both it is asked to.

use std::ops::Range;
use std::os::fd::BorrowedFd;

use rustix::fs::SeekFrom;
use rustix::io::Errno;

use crate::fs::stop::Stop;
use crate::fs::write::write_all_at;

const BUFFER_BYTES: usize = 256 * 1024;
/// After so much it is asked whether to go on.
const RANGE_BYTES: u64 = 8 << 20;
/// Of a file that says that it is empty, and is not.
pub(super) const MAX_UNSIZED_BYTES: u64 = 64 << 20;

/// Where, and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Failed {
    Reading(Errno),
    Writing(Errno),
    /// There is more than [`MAX_UNSIZED_BYTES`].
    TooLarge,
    Abandoned,
}

/// Copies what the file has up to `size`, its size when it was opened: one that grows for ever is not followed for ever.
pub(super) fn copy(
    from: BorrowedFd<'_>,
    to: BorrowedFd<'_>,
    size: u64,
    stop: &Stop,
) -> Result<(), Failed> {
    if rustix::fs::ioctl_ficlone(to, from).is_ok() {
        return Ok(());
    }
    if size == 0 {
        // Files of /proc say so whatever they have, and some have no end. They may be read in whole records only, so no
        // byte is read alone.
        let end = MAX_UNSIZED_BYTES + BUFFER_BYTES as u64;
        return match stream(from, to, 0, end, stop)? {
            0..=MAX_UNSIZED_BYTES => Ok(()),
            _ => Err(Failed::TooLarge),
        };
    }
    let mut at = 0;
    let mut end = size;
    while at < end {
        let Some((start, until)) = next_data(from, at, end)? else {
            end = end.min(current_size(from)?);
            break;
        };
        at = copy_range(from, to, start..until, stop)?;
        if at < until {
            // It has been cut short.
            end = at;
        }
    }
    rustix::fs::ftruncate(to, end).map_err(Failed::Writing)
}

/// `None`: only a hole is left, or nothing. A file system that knows no holes has data everywhere.
fn next_data(from: BorrowedFd<'_>, at: u64, end: u64) -> Result<Option<(u64, u64)>, Failed> {
    let start = match rustix::fs::seek(from, SeekFrom::Data(at)) {
        Ok(start) if start < end => start,
        Ok(_) | Err(Errno::NXIO) => return Ok(None),
        Err(_) => return Ok(Some((at, end))),
    };
    let until = rustix::fs::seek(from, SeekFrom::Hole(start)).map_or(end, |hole| hole.min(end));
    Ok(Some((start, until)))
}

/// In the kernel if it can. Whatever it says against that, the plain way works or finds out what is really wrong, and on
/// which side. Returns where it ended, which is before the end of the range only at the end of the file.
fn copy_range(
    from: BorrowedFd<'_>,
    to: BorrowedFd<'_>,
    range: Range<u64>,
    stop: &Stop,
) -> Result<u64, Failed> {
    let mut at = range.start;
    while at < range.end {
        if stop.is_requested() {
            return Err(Failed::Abandoned);
        }
        let len = usize::try_from((range.end - at).min(RANGE_BYTES)).unwrap_or(BUFFER_BYTES);
        let (mut off_in, mut off_out) = (at, at);
        match rustix::fs::copy_file_range(from, Some(&mut off_in), to, Some(&mut off_out), len) {
            Ok(copied) if copied > 0 => at += copied as u64,
            Err(Errno::INTR) => {}
            Ok(_) | Err(_) => return stream(from, to, at, range.end, stop),
        }
    }
    Ok(at)
}

fn stream(
    from: BorrowedFd<'_>,
    to: BorrowedFd<'_>,
    start: u64,
    end: u64,
    stop: &Stop,
) -> Result<u64, Failed> {
    let mut buffer = vec![0; BUFFER_BYTES];
    let mut at = start;
    while at < end {
        if stop.is_requested() {
            return Err(Failed::Abandoned);
        }
        let room = usize::try_from(end - at).map_or(BUFFER_BYTES, |left| left.min(BUFFER_BYTES));
        match rustix::io::pread(from, &mut buffer[..room], at) {
            Ok(0) => break,
            Ok(read) => {
                write_all_at(to, &buffer[..read], at).map_err(Failed::Writing)?;
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

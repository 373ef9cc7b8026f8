//! Reserves disk space for new content of an existing file before its first byte is overwritten: a
//! write that fails for lack of space leaves the old content.

use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::path::Path;

use rustix::fs::{FallocateFlags, FsWord, Mode, Stat};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

use super::staged_file::StagedFile;
use crate::fs::error::FsError;
use crate::fs::path::resolve::Parent;
use crate::fs::read::metadata::size;

/// The kernel reserves the blocks of a page before it copies data into the page. So content within
/// the first page, at the smallest page size, is written as a whole or not at all.
const PAGE: u64 = 4096;

const XFS: FsWord = 0x5846_5342;
/// btrfs, bcachefs and ZFS write changed blocks to another place, so the existing blocks of a file
/// provide no space for new content.
const COPY_ON_WRITE: [FsWord; 3] = [0x9123_683e, 0xca45_1a4e, 0x2fc1_2fc1];

/// How many bytes beyond the end of a file [`give_back`] leaves allocated. Another program may
/// append to the file between the check of its size and the release of the blocks beyond its end.
const LEFT_TO_APPENDS: u64 = 1 << 20;

/// How certain it is that the content fits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::fs) enum Room {
    /// The blocks are allocated to the file.
    Reserved,
    /// The content fitted into another file, or is so small that it is written as a whole or not at
    /// all. Also returned if no other file could be created, although then nothing is known.
    Tried,
}

/// Reserves space for content of `len` bytes with data in these ranges. Changes only the times and
/// the allocated blocks of the file.
///
/// `beside` returns the place of the file, and `write` writes the content to another file. Both are
/// called only on file systems that cannot reserve space.
pub(in crate::fs) fn reserve(
    path: &Path,
    file: BorrowedFd<'_>,
    len: u64,
    data: &[Range<u64>],
    beside: impl FnOnce() -> Result<Option<Parent>, FsError>,
    write: impl FnOnce(BorrowedFd<'_>) -> Result<(), FsError>,
) -> Result<Room, FsError> {
    // Without this check, the kernel would write up to the limit.
    if getrlimit(Resource::Fsize).current.is_some_and(|limit| len > limit) {
        return Err(FsError::os("write", path)(Errno::FBIG));
    }
    if len <= PAGE {
        return Ok(Room::Tried);
    }
    let file_system = rustix::fs::fstatfs(file).map_err(FsError::os("stat", path))?.f_type;
    if COPY_ON_WRITE.contains(&file_system) {
        // These file systems fail a write at once if there is no space for it, so nothing has to be
        // synced.
        return try_beside(path, beside()?, write, |_| Ok(()));
    }
    refuse_more_than_is_free(path, file, data)?;
    let mut flags = FallocateFlags::KEEP_SIZE;
    // On XFS, blocks shared with a copy of the file are also written to another place.
    flags.set(FallocateFlags::UNSHARE_RANGE, file_system == XFS);
    match data.iter().try_for_each(|range| allocate(file, flags, range.clone())) {
        Ok(()) => Ok(Room::Reserved),
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
            // File systems that cannot reserve space include network file systems, which may not
            // report lack of space before data is synced.
            try_beside(path, beside()?, write, |staged_file| rustix::fs::fsync(staged_file))
        }
        Err(errno) => Err(FsError::os("reserve space for", path)(errno)),
    }
}

/// Fails if the allocation exceeds the free space. On some file systems a failed allocation keeps
/// the blocks that it got, and on ext4 only ftruncate(2) would release them. So an allocation that
/// cannot succeed is not started.
fn refuse_more_than_is_free(
    path: &Path,
    file: BorrowedFd<'_>,
    data: &[Range<u64>],
) -> Result<(), FsError> {
    let looking = FsError::os("stat", path);
    let (stat, system) = (rustix::fs::fstat(file), rustix::fs::fstatvfs(file));
    let (stat, system) = stat.and_then(|stat| Ok((stat, system?))).map_err(looking)?;
    let wanted: u64 = data.iter().map(|range| range.end - range.start).sum();
    let has = u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(512);
    let blocks = match rustix::process::geteuid().is_root() {
        true => system.f_bfree,
        false => system.f_bavail,
    };
    // A file system without a size does not report free space.
    let is_known = system.f_blocks > 0;
    match wanted.saturating_sub(has) > blocks.saturating_mul(system.f_frsize) && is_known {
        true => Err(FsError::os("reserve space for", path)(Errno::NOSPC)),
        false => Ok(()),
    }
}

/// Undoes [`reserve`] for a file that is not written after all: releases blocks beyond its end, up
/// to `len`, if the file system can do that without changing the size. Blocks allocated in holes of
/// the file stay.
pub(in crate::fs) fn give_back(file: BorrowedFd<'_>, before: &Stat, len: u64) {
    let Ok(now) = rustix::fs::fstat(file) else { return };
    if now.st_blocks > before.st_blocks {
        release(file, size(&now), len);
    }
}

/// Releases blocks beyond the end. Never uses ftruncate(2): it would cut off data that another
/// program has appended since the file ended at `end`.
fn release(file: BorrowedFd<'_>, end: u64, len: u64) {
    let start = end.saturating_add(LEFT_TO_APPENDS);
    if start < len {
        let _ = punch(file, start..len);
    }
}

pub(in crate::fs) fn punch(file: BorrowedFd<'_>, range: Range<u64>) -> Result<(), Errno> {
    allocate(file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, range)
}

fn allocate(file: BorrowedFd<'_>, flags: FallocateFlags, range: Range<u64>) -> Result<(), Errno> {
    loop {
        match rustix::fs::fallocate(file, flags, range.start, range.end - range.start) {
            Err(Errno::INTR) => {}
            allocated => return allocated,
        }
    }
}

/// Writes the content to a temporary file beside the real one, which shows that there is space, and
/// removes the temporary file. The old content can then be lost only if another program takes that
/// space before the real file is written.
///
/// If no file can be created, for a reason other than lack of space, nothing is tried: the
/// directory may be read-only or virtual, as in `/proc`, while the file itself is writable.
fn try_beside(
    path: &Path,
    place: Option<Parent>,
    write: impl FnOnce(BorrowedFd<'_>) -> Result<(), FsError>,
    settle: impl FnOnce(BorrowedFd<'_>) -> Result<(), Errno>,
) -> Result<Room, FsError> {
    let Some(place) = place else { return Ok(Room::Tried) };
    let staged_file = match StagedFile::create(path, place, Mode::RUSR | Mode::WUSR) {
        Ok(staged_file) => staged_file,
        Err(error) if is_want_of_room(&error) => return Err(error),
        Err(_) => return Ok(Room::Tried),
    };
    write(staged_file.file())?;
    settle(staged_file.file()).map_err(FsError::os("write", path))?;
    Ok(Room::Tried)
}

fn is_want_of_room(error: &FsError) -> bool {
    let full = [io::ErrorKind::StorageFull, io::ErrorKind::QuotaExceeded];
    matches!(error, FsError::Os { source, .. } if full.contains(&source.kind()))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd as _;
    use std::slice::from_ref;

    use exec_server_test_support::skipped;

    use super::*;
    use crate::fs::Symlinks;
    use crate::fs::confinement::RequiredAccess;
    use crate::fs::path::resolve;
    use crate::fs::write::write_file::write_all_at;

    fn place(path: &Path) -> Parent {
        resolve::parent(path, Symlinks::Follow, RequiredAccess::Change).unwrap()
    }

    #[test]
    fn the_trial_file_is_removed_afterwards() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("file");
        let write = |staged_file: BorrowedFd<'_>| {
            write_all_at(staged_file, b"content", 0).map_err(FsError::os("write", &path))
        };
        for outcome in [Ok(()), Err(Errno::DQUOT)] {
            let mut tried = None;
            let done = try_beside(&path, Some(place(&path)), write, |staged_file| {
                tried = Some(rustix::fs::fstat(staged_file).unwrap().st_size);
                outcome
            });
            assert_eq!((tried, done.is_ok()), (Some(7), outcome.is_ok()), "{done:?}");
            assert_eq!(std::fs::read_dir(root.path()).unwrap().count(), 0);
        }
    }

    #[test]
    fn a_directory_that_accepts_no_new_file_is_not_an_error() {
        let path = Path::new("/proc/sys/kernel/hostname");
        let write = |_: BorrowedFd<'_>| panic!("no file can be created there");
        try_beside(path, Some(place(path)), write, |_| Ok(())).unwrap();
    }

    const RESERVED: u64 = 4 << 20;

    /// A file with three bytes and a lot of reserved space after them. `None` if space cannot be
    /// reserved.
    fn reserved(directory: &Path) -> Option<(std::fs::File, Stat)> {
        let Ok(file) = tempfile::tempfile_in(directory) else {
            skipped(format_args!("cannot create a file in {}", directory.display()));
            return None;
        };
        rustix::io::write(&file, b"old").unwrap();
        let before = rustix::fs::fstat(&file).unwrap();
        match allocate(file.as_fd(), FallocateFlags::KEEP_SIZE, 0..RESERVED) {
            Err(Errno::OPNOTSUPP) => {
                skipped(format_args!("{} cannot reserve space", directory.display()));
                return None;
            }
            allocated => allocated.unwrap(),
        }
        Some((file, before))
    }

    #[test]
    fn unused_reserved_space_is_given_back() {
        // /dev/shm is a tmpfs. On ext4 the reserved space would stay.
        let Some((file, before)) = reserved(Path::new("/dev/shm")) else { return };
        let reserved = rustix::fs::fstat(&file).unwrap();
        assert!(reserved.st_blocks > before.st_blocks);
        give_back(file.as_fd(), &before, RESERVED);
        let after = rustix::fs::fstat(&file).unwrap();
        assert_eq!(after.st_size, 3);
        assert!(after.st_blocks < reserved.st_blocks);
    }

    #[test]
    fn data_appended_before_the_release_is_kept() {
        for directory in [std::env::temp_dir(), "/dev/shm".into()] {
            let Some((file, _)) = reserved(&directory) else { continue };
            let appended = vec![b'a'; usize::try_from(LEFT_TO_APPENDS).unwrap()];
            write_all_at(file.as_fd(), &appended, 3).unwrap();
            release(file.as_fd(), 3, RESERVED);
            let mut content = vec![0; appended.len() + 4];
            let read = rustix::io::pread(&file, &mut content, 0).unwrap();
            assert_eq!(read, appended.len() + 3);
            assert!(content[..read] == [b"old", &*appended].concat());
        }
    }

    #[test]
    fn an_allocation_beyond_the_free_space_is_not_started() {
        let file = tempfile::tempfile().unwrap();
        let free = rustix::fs::fstatvfs(&file).unwrap();
        let much = (free.f_bfree * free.f_frsize).next_multiple_of(1 << 30) + (1 << 30);
        let refused = refuse_more_than_is_free(Path::new("f"), file.as_fd(), from_ref(&(0..much)));
        assert!(is_want_of_room(&refused.unwrap_err()));
        refuse_more_than_is_free(Path::new("f"), file.as_fd(), from_ref(&(0..1))).unwrap();
    }
}

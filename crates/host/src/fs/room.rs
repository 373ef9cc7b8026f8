//! Room on the disk for new content of an existing file, secured before its first byte is overwritten: a write that fails
//! for want of room leaves the old content.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::path::Path;

use rustix::fs::{FallocateFlags, FsWord, Mode, Stat};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

use super::draft::Draft;
use super::error::FsError;
use super::metadata::size;
use super::resolve::Parent;
use super::write::write_all_at;

/// The kernel reserves the blocks of a page before it copies anything into it. So content that ends within the first page,
/// of the smallest size that pages have, is written as a whole or not at all.
const PAGE: usize = 4096;

const XFS: FsWord = 0x5846_5342;
/// btrfs, bcachefs and ZFS write changed blocks to another place: the blocks that a file has are no room for new content.
const COPY_ON_WRITE: [FsWord; 3] = [0x9123_683e, 0xca45_1a4e, 0x2fc1_2fc1];

/// Nothing of the file changes but its times, and what is allocated beyond its end.
pub(super) fn reserve(
    path: &Path,
    parent: &Parent,
    file: BorrowedFd<'_>,
    content: &[u8],
) -> Result<(), FsError> {
    let len = content.len() as u64;
    // The kernel would write as far as the limit allows.
    if getrlimit(Resource::Fsize).current.is_some_and(|limit| len > limit) {
        return Err(FsError::os("write", path)(Errno::FBIG));
    }
    if content.len() <= PAGE {
        return Ok(());
    }
    let file_system = rustix::fs::fstatfs(file).map_err(FsError::os("look at", path))?.f_type;
    if COPY_ON_WRITE.contains(&file_system) {
        // These refuse a write as soon as there is no room for it: nothing needs to reach the disk.
        return try_beside(path, parent, content, |_| Ok(()));
    }
    let mut flags = FallocateFlags::KEEP_SIZE;
    // Blocks that a copy of the file shares are written to another place, too.
    flags.set(FallocateFlags::UNSHARE_RANGE, file_system == XFS);
    match allocate(file, flags, len) {
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
            // Among these are network file systems, which may accept what they have no room for until it is synced.
            try_beside(path, parent, content, |draft| rustix::fs::fsync(draft))
        }
        allocated => allocated.map_err(FsError::os("reserve space for", path)),
    }
}

/// Gives back what [`reserve`] has allocated beyond the end of a file that is not written after all. What it has allocated
/// in holes of the file stays.
pub(super) fn give_back(file: BorrowedFd<'_>, before: &Stat) {
    let Ok(now) = rustix::fs::fstat(file) else { return };
    if now.st_blocks > before.st_blocks {
        let _ = rustix::fs::ftruncate(file, size(&now));
    }
}

fn allocate(file: BorrowedFd<'_>, flags: FallocateFlags, len: u64) -> Result<(), Errno> {
    loop {
        match rustix::fs::fallocate(file, flags, 0, len) {
            Err(Errno::INTR) => {}
            allocated => return allocated,
        }
    }
}

/// Writes the content to a temporary file beside the real one, and removes it again: then there is room. The old content may
/// be lost only if another program takes that room at this very moment.
///
/// Where no file can be made, for another reason than want of room, nothing is tried: the directory may be read-only or not be a
/// real one, as in `/proc`, and the file can be written all the same.
fn try_beside(
    path: &Path,
    parent: &Parent,
    content: &[u8],
    settle: impl FnOnce(BorrowedFd<'_>) -> Result<(), Errno>,
) -> Result<(), FsError> {
    let directory = parent.directory.try_clone();
    let directory = directory.map_err(|source| FsError::Os {
        action: "look at the directory of",
        path: path.to_owned(),
        source,
    })?;
    let parent = Parent { directory, name: parent.name.clone() };
    let draft = match Draft::create(path, parent, Mode::RUSR | Mode::WUSR) {
        Ok(draft) => draft,
        Err(error) if is_want_of_room(&error) => return Err(error),
        Err(_) => return Ok(()),
    };
    write_all_at(draft.file(), content, 0)
        .and_then(|()| settle(draft.file().as_fd()))
        .map_err(FsError::os("write", path))
}

fn is_want_of_room(error: &FsError) -> bool {
    let full = [io::ErrorKind::StorageFull, io::ErrorKind::QuotaExceeded];
    matches!(error, FsError::Os { source, .. } if full.contains(&source.kind()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::Symlinks;
    use crate::fs::confinement::Need;
    use crate::fs::resolve;

    fn place(path: &Path) -> Parent {
        resolve::parent(path, Symlinks::Follow, Need::Change).unwrap()
    }

    #[test]
    fn what_was_tried_beside_a_file_is_gone_afterwards() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("file");
        for outcome in [Ok(()), Err(Errno::DQUOT)] {
            let mut tried = None;
            let done = try_beside(&path, &place(&path), b"content", |draft| {
                tried = Some(rustix::fs::fstat(draft).unwrap().st_size);
                outcome
            });
            assert_eq!((tried, done.is_ok()), (Some(7), outcome.is_ok()), "{done:?}");
            assert_eq!(std::fs::read_dir(root.path()).unwrap().count(), 0);
        }
    }

    #[test]
    fn a_directory_in_which_no_file_can_be_made_is_no_reason() {
        let path = Path::new("/proc/sys/kernel/hostname");
        try_beside(path, &place(path), b"x", |_| panic!("no file can be made there")).unwrap();
    }

    #[test]
    fn what_was_reserved_and_not_used_is_given_back() {
        let file = tempfile::tempfile().unwrap();
        rustix::io::write(&file, b"old").unwrap();
        let before = rustix::fs::fstat(&file).unwrap();
        match allocate(file.as_fd(), FallocateFlags::KEEP_SIZE, 1 << 20) {
            Err(Errno::OPNOTSUPP) => {
                return println!("SKIPPED: this file system cannot reserve space");
            }
            allocated => allocated.unwrap(),
        }
        let reserved = rustix::fs::fstat(&file).unwrap();
        assert!(reserved.st_blocks > before.st_blocks);
        give_back(file.as_fd(), &before);
        let after = rustix::fs::fstat(&file).unwrap();
        assert_eq!(after.st_size, 3);
        assert!(after.st_blocks < reserved.st_blocks);
    }
}

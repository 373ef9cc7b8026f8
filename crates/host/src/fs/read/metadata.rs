//! Metadata of a file: kind, size, times, permission bits.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, FileType, Stat, Statx, StatxFlags};
use rustix::io::Errno;

use super::open_file;
use crate::fs::confinement::{RequiredAccess, is_confined};
use crate::fs::error::FsError;
use crate::fs::path::kind::FileKind;
use crate::fs::path::resolve::{self, Symlinks};

/// Times are milliseconds since 1970, rounded down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Metadata {
    pub kind: FileKind,
    /// Whether the name itself is a symlink; the other fields then describe its target.
    pub is_symlink: bool,
    pub size: u64,
    /// 0 if the kernel or the file system does not report it.
    pub created_at_ms: i64,
    pub modified_at_ms: i64,
    /// Permission bits with set-id and sticky, at most `0o7777`.
    pub mode: u32,
}

pub fn metadata(path: &Path, symlinks: Symlinks) -> Result<Metadata, FsError> {
    if symlinks == Symlinks::Refuse {
        return of_descriptor(resolve::node(path, symlinks, RequiredAccess::Read)?.as_fd(), path);
    }
    if is_confined() {
        return open_file::find(path, symlinks).map(|(_, metadata)| metadata);
    }
    let own = look(CWD, path, AtFlags::SYMLINK_NOFOLLOW).map_err(FsError::os("stat", path))?;
    if own.kind != FileKind::Symlink {
        return Ok(own);
    }
    let target = look(CWD, path, AtFlags::empty()).map_err(FsError::os("stat", path))?;
    Ok(Metadata { is_symlink: true, ..target })
}

/// Returns the metadata of an open file, whatever its name leads to by now. `path` is for the
/// error.
pub(in crate::fs) fn of_descriptor(file: BorrowedFd<'_>, path: &Path) -> Result<Metadata, FsError> {
    look(file, Path::new(""), AtFlags::EMPTY_PATH).map_err(FsError::os("stat", path))
}

pub(crate) fn modified_at_ms(stat: &Stat) -> i64 {
    milliseconds(stat.st_mtime, stat.st_mtime_nsec)
}

pub(crate) fn size(stat: &Stat) -> u64 {
    u64::try_from(stat.st_size).unwrap_or(0)
}

fn look(directory: BorrowedFd<'_>, path: &Path, flags: AtFlags) -> Result<Metadata, Errno> {
    let wanted = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
    match rustix::fs::statx(directory, path, flags, wanted) {
        Ok(statx) => Ok(Metadata::from(&statx)),
        // An old kernel, or the seccomp filter of an old container runtime: stat(2) returns all but
        // the birth time.
        Err(Errno::NOSYS | Errno::PERM) => {
            rustix::fs::statat(directory, path, flags).map(|stat| Metadata::from(&stat))
        }
        Err(errno) => Err(errno),
    }
}

impl From<&Statx> for Metadata {
    fn from(statx: &Statx) -> Self {
        let born = statx.stx_mask & StatxFlags::BTIME.bits() != 0;
        let created_at_ms =
            if born { milliseconds(statx.stx_btime.tv_sec, statx.stx_btime.tv_nsec) } else { 0 };
        Self {
            kind: FileType::from_raw_mode(statx.stx_mode.into()).into(),
            is_symlink: false,
            size: statx.stx_size,
            created_at_ms,
            modified_at_ms: milliseconds(statx.stx_mtime.tv_sec, statx.stx_mtime.tv_nsec),
            mode: u32::from(statx.stx_mode) & 0o7777,
        }
    }
}

impl From<&Stat> for Metadata {
    fn from(stat: &Stat) -> Self {
        Self {
            kind: FileType::from_raw_mode(stat.st_mode).into(),
            is_symlink: false,
            size: size(stat),
            created_at_ms: 0,
            modified_at_ms: modified_at_ms(stat),
            mode: stat.st_mode & 0o7777,
        }
    }
}

/// Nanoseconds count forward before 1970 too, so this always rounds down.
fn milliseconds(seconds: i64, nanoseconds: impl Into<u64>) -> i64 {
    let part = i64::try_from(nanoseconds.into() / 1_000_000).unwrap_or(999);
    seconds.saturating_mul(1000).saturating_add(part)
}

#[cfg(test)]
mod tests {
    use std::fs::{File, FileTimes};
    use std::os::unix::fs::symlink;
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;

    #[test]
    fn a_symlink_has_the_metadata_of_its_target() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path().canonicalize().unwrap();
        std::fs::write(root.join("file"), "12345").unwrap();
        symlink("file", root.join("link")).unwrap();
        symlink("nowhere", root.join("dangling")).unwrap();

        let file = metadata(&root.join("file"), Symlinks::Follow).unwrap();
        assert_eq!((file.kind, file.is_symlink, file.size), (FileKind::Regular, false, 5));
        assert!(file.created_at_ms > 0, "{file:?}");
        let link = metadata(&root.join("link"), Symlinks::Follow).unwrap();
        assert_eq!(link, Metadata { is_symlink: true, ..file });
        assert_eq!(metadata(&root.join("file"), Symlinks::Refuse).unwrap(), file);

        let refused = metadata(&root.join("link"), Symlinks::Refuse).unwrap_err();
        assert!(matches!(refused, FsError::Symlink { .. }), "{refused}");
        assert!(metadata(&root.join("dangling"), Symlinks::Follow).unwrap_err().is_not_found());
    }

    #[test]
    fn times_before_1970_are_negative_and_rounded_down() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("old");
        let file = File::create(&path).unwrap();
        let before = UNIX_EPOCH - Duration::from_micros(1_500);
        file.set_times(FileTimes::new().set_modified(before)).unwrap();
        assert_eq!(metadata(&path, Symlinks::Follow).unwrap().modified_at_ms, -2);
    }

    #[test]
    fn without_statx_only_the_birth_time_is_missing() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("file");
        std::fs::write(&path, "123").unwrap();
        let stat = rustix::fs::stat(&path).unwrap();
        let whole = metadata(&path, Symlinks::Follow).unwrap();
        assert_eq!(Metadata::from(&stat), Metadata { created_at_ms: 0, ..whole });
    }
}

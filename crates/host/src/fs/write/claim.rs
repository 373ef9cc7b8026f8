//! Claims a name for writing, with the file behind it: no other writer in this process touches
//! either until the claim is dropped.

use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::condition::Condition;
use super::write_lock::WriteLock;
use crate::fs::error::FsError;
use crate::fs::path::kind::FileKind;
use crate::fs::path::resolve::{self, Identity, Parent, Symlinks};

#[derive(Debug)]
pub(in crate::fs) struct Claim {
    existing: Option<Existing>,
    _place: WriteLock,
    _content: Option<WriteLock>,
}

#[derive(Debug)]
pub(in crate::fs) struct Existing {
    /// Opened with `O_PATH`.
    pub(in crate::fs) node: OwnedFd,
    pub(in crate::fs) stat: Stat,
}

impl Claim {
    /// Waits for other writers. `None` if the file was replaced or removed during the wait.
    pub(in crate::fs) fn take(path: &Path, parent: &Parent) -> Result<Option<Self>, FsError> {
        let place = WriteLock::name(parent, path)?;
        let Some(seen) = look(path, parent)? else {
            return Ok(Some(Self { existing: None, _place: place, _content: None }));
        };
        let content = WriteLock::content(&seen);
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let node = match rustix::fs::openat(&parent.directory, &parent.name, flags, Mode::empty()) {
            Ok(node) => node,
            Err(Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(FsError::os("open", path)(errno)),
        };
        let stat = rustix::fs::fstat(&node).map_err(FsError::os("stat", path))?;
        if Identity::from(&seen) != Identity::from(&stat) {
            return Ok(None);
        }
        let existing = Some(Existing { node, stat });
        Ok(Some(Self { existing, _place: place, _content: Some(content) }))
    }

    /// Returns the regular file to overwrite, or `None` if it must be created. Fails if the
    /// condition does not hold, or if the name belongs to a file of another kind.
    pub(in crate::fs) fn admit(
        &self,
        path: &Path,
        symlinks: Symlinks,
        condition: &Condition,
    ) -> Result<Option<&Existing>, FsError> {
        let Some(existing) = &self.existing else {
            condition.check(path, None)?;
            return Ok(None);
        };
        if condition.create_new {
            return Err(FsError::already_exists(path));
        }
        let is_symlink = FileType::from_raw_mode(existing.stat.st_mode) == FileType::Symlink;
        if is_symlink && symlinks == Symlinks::Refuse {
            return Err(FsError::Symlink { path: path.to_owned() });
        }
        resolve::expect_kind(path, &existing.stat, FileKind::Regular, "a regular file")?;
        condition.check(path, Some(&existing.stat))?;
        Ok(Some(existing))
    }

    /// Whether the name still leads to the same file, with the same size and modification time, as
    /// when the claim was taken.
    pub(in crate::fs) fn still_holds(&self, path: &Path, parent: &Parent) -> Result<bool, FsError> {
        let facts = |stat: &Stat| {
            (stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime, stat.st_mtime_nsec)
        };
        let then = self.existing.as_ref().map(|existing| facts(&existing.stat));
        Ok(look(path, parent)?.as_ref().map(facts) == then)
    }
}

/// Repeats `attempt`, a bounded number of times, while concurrent changes make it return `None`.
pub(in crate::fs) fn persist<T>(
    path: &Path,
    mut attempt: impl FnMut() -> Result<Option<T>, FsError>,
) -> Result<T, FsError> {
    const ATTEMPTS: usize = 32;
    for _ in 0..ATTEMPTS {
        if let Some(done) = attempt()? {
            return Ok(done);
        }
    }
    let is = "keeps being changed or replaced by other programs; try again later".to_owned();
    Err(FsError::Conflict { path: path.to_owned(), is })
}

fn look(path: &Path, parent: &Parent) -> Result<Option<Stat>, FsError> {
    match rustix::fs::statat(&parent.directory, &parent.name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok(Some(stat)),
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(FsError::os("stat", path)(errno)),
    }
}

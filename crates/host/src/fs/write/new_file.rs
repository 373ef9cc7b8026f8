//! A file that is written in blocks under a temporary name. [`NewFile::commit`] renames it to its
//! path; until then the path leads to the old file, if there is one.

use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::Mode;
use rustix::io::Errno;

use super::claim::{self, Claim};
use super::condition::{Arrival, Condition, Written, distinguish};
use super::ownership::{expect_writable, inherit};
use super::staged_file::{NotPublished, StagedFile};
use crate::fs::confinement::{self, RequiredAccess};
use crate::fs::error::FsError;
use crate::fs::path::destination::{self, LastLink};
use crate::fs::path::resolve::{Identity, Parent, Symlinks};
use crate::fs::read::metadata;
use crate::fs::tree::permissions::permission_bits;
use crate::fs::write::write_file::write_all_at;

#[derive(Debug, Clone, Default)]
pub struct NewFileOptions {
    pub symlinks: Symlinks,
    /// Permission bits. Default: those of the replaced file; for a new file, 0o666 less the umask.
    pub mode: Option<u32>,
    /// Checked when the file is created, to fail early, and again by [`NewFile::commit`].
    pub condition: Condition,
    /// Keeps the written data when the [`NewFile`] is dropped; the next one with the same path and
    /// key continues it. A key has at most 64 letters, digits, `-` and `_`. [`NewFile::written`]
    /// returns the size of the data. The caller must write in order, so that the data has no holes.
    pub resume_key: Option<String>,
}

/// A file that is being written. If dropped without a commit, it leaves nothing behind, unless it
/// has a resume key.
#[derive(Debug)]
pub struct NewFile {
    path: PathBuf,
    staged_file: StagedFile,
    symlinks: Symlinks,
    mode: Option<Mode>,
    condition: Condition,
    written: AtomicU64,
    /// The error of the first write that failed. An incomplete file must not be committed.
    failed: OnceLock<Errno>,
}

const MAX_KEY_BYTES: usize = 64;
const PRIVATE: Mode = Mode::RUSR.union(Mode::WUSR);

impl NewFile {
    /// Creates the temporary file in the final directory or, with a resume key, continues it. With
    /// [`Symlinks::Follow`] a symlink stays and its target is replaced.
    pub fn create(path: &Path, options: NewFileOptions) -> Result<Self, FsError> {
        let NewFileOptions { symlinks, mode, condition, resume_key } = options;
        let mode = mode.map(|mode| permission_bits(path, mode)).transpose()?;
        let (parent, replaces) = claim::persist(path, || find(path, symlinks, &condition))?;
        // A user who may not read the result must not read it while it is being written.
        let initial = if replaces || mode.is_some() { PRIVATE } else { Mode::from_raw_mode(0o666) };
        let staged_file = match resume_key {
            None => StagedFile::create(path, parent, initial)?,
            Some(key) => StagedFile::resume(path, parent, expect_key(path, &key)?, initial)?,
        };
        if initial == PRIVATE {
            // A resumed staged file may have wider permissions, from an earlier attempt.
            rustix::fs::fchmod(staged_file.file(), initial)
                .map_err(FsError::os("set the permissions of", path))?;
        }
        let stat = rustix::fs::fstat(staged_file.file()).map_err(FsError::os("stat", path))?;
        Ok(Self {
            path: path.to_owned(),
            staged_file,
            symlinks,
            mode,
            condition,
            written: AtomicU64::new(metadata::size(&stat)),
            failed: OnceLock::new(),
        })
    }

    /// Returns the end of the written data, including that of earlier attempts.
    #[must_use]
    pub fn written(&self) -> u64 {
        self.written.load(Ordering::Acquire)
    }

    /// Blocks may arrive in any order and from several threads. Gaps between them read as zeros.
    pub fn write_block(&self, offset: u64, bytes: &[u8]) -> Result<(), FsError> {
        self.write_all(offset, bytes).map_err(|errno| {
            let first = *self.failed.get_or_init(|| errno);
            FsError::os("write", &self.path)(first)
        })
    }

    /// Renames the file to its path and returns its state. On failure the temporary file is
    /// removed; with a resume key it is kept, and a later [`NewFile`] can commit it.
    ///
    /// Fails unless the path still leads to where the write began. If a directory is moved during
    /// the call, the file moves with it, as it would a moment later.
    pub fn commit(self) -> Result<Written, FsError> {
        self.expect_same_place()?;
        self.commit_where_it_began()
    }

    /// Like [`Self::commit`], without resolving the path again: for a file that was created just
    /// now.
    pub(in crate::fs) fn commit_where_it_began(mut self) -> Result<Written, FsError> {
        if let Some(errno) = self.failed.get() {
            return Err(FsError::os("write", &self.path)(*errno));
        }
        let path = self.path.clone();
        let committed = claim::persist(&path, || self.publish());
        if committed.is_err() {
            self.staged_file.take_back_ownership();
        }
        committed
    }

    pub fn discard(mut self) {
        self.staged_file.remove_when_dropped();
    }

    fn write_all(&self, offset: u64, bytes: &[u8]) -> Result<(), Errno> {
        if let Some(errno) = self.failed.get() {
            return Err(*errno);
        }
        let end = offset.checked_add(bytes.len() as u64).filter(|end| i64::try_from(*end).is_ok());
        let end = end.ok_or(Errno::FBIG)?;
        write_all_at(self.staged_file.file(), bytes, offset)?;
        if !bytes.is_empty() {
            self.written.fetch_max(end, Ordering::AcqRel);
        }
        Ok(())
    }

    fn expect_same_place(&self) -> Result<(), FsError> {
        let path = &self.path;
        expect_change(path, self.staged_file.parent())?;
        let last = LastLink::under(&self.condition);
        let found = claim::persist(path, || destination::find(path, self.symlinks, last));
        let is_same = match &found {
            Ok(now) => {
                is_same(self.staged_file.parent(), now).map_err(FsError::os("stat", path))?
            }
            Err(error) if error.is_not_found() => false,
            Err(_) => return found.map(drop),
        };
        if is_same {
            return Ok(());
        }
        let is = "no longer leads to where the write began".to_owned();
        Err(FsError::Conflict { path: path.clone(), is })
    }

    /// `None` if another program changed the name or its file in the meantime.
    fn publish(&mut self) -> Result<Option<Written>, FsError> {
        let path = &self.path;
        expect_change(path, self.staged_file.parent())?;
        let Some(claim) = Claim::take(path, self.staged_file.parent())? else { return Ok(None) };
        let old = claim.admit(path, self.symlinks, &self.condition)?;
        if let Some(old) = old {
            expect_writable(path, old)?;
        }
        inherit(path, self.staged_file.file(), old, self.mode)?;
        let (file, old) = (self.staged_file.file(), old.map(|old| &old.stat));
        let written = distinguish(path, file, old, Arrival::Unseen, &self.condition)?;
        rustix::fs::fsync(self.staged_file.file()).map_err(FsError::os("write", path))?;
        // Another program may have changed the old file during the sync.
        if !self.condition.is_none() && !claim.still_holds(path, self.staged_file.parent())? {
            return Ok(None);
        }
        self.staged_file.publish(self.condition.create_new).map_err(|why| match why {
            NotPublished::Os(Errno::EXIST) => FsError::already_exists(path),
            NotPublished::Os(errno) => FsError::os("write", path)(errno),
            NotPublished::Replaced => {
                let is =
                    "was not written: another program has replaced or removed its temporary file";
                FsError::Conflict { path: path.clone(), is: is.to_owned() }
            }
        })?;
        Ok(Some(written))
    }
}

fn is_same(begun: &Parent, now: &Parent) -> Result<bool, Errno> {
    let directories =
        (Identity::of(begun.directory.as_fd())?, Identity::of(now.directory.as_fd())?);
    Ok(directories.0 == directories.1 && begun.name == now.name)
}

/// Finds where the file will be, and whether it replaces another.
fn find(
    path: &Path,
    symlinks: Symlinks,
    condition: &Condition,
) -> Result<Option<(Parent, bool)>, FsError> {
    let Some(parent) = destination::find(path, symlinks, LastLink::under(condition))? else {
        return Ok(None);
    };
    expect_change(path, &parent)?;
    let Some(claim) = Claim::take(path, &parent)? else { return Ok(None) };
    let old = claim.admit(path, symlinks, condition)?;
    if let Some(old) = old {
        expect_writable(path, old)?;
    }
    let replaces = old.is_some();
    Ok(Some((parent, replaces)))
}

/// Checks the access to the destination. Repeated at the end, because the directory may have been
/// moved by then.
fn expect_change(path: &Path, parent: &Parent) -> Result<(), FsError> {
    confinement::expect(parent.directory.as_fd(), &parent.name, RequiredAccess::Change, path)
}

fn expect_key<'key>(path: &Path, key: &'key str) -> Result<&'key str, FsError> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    if (1..=MAX_KEY_BYTES).contains(&key.len()) && key.bytes().all(allowed) {
        return Ok(key);
    }
    let why = "cannot have this resume key: a key is 1 to 64 letters, digits, - or _";
    Err(FsError::Unsuitable { path: path.to_owned(), why })
}

//! One file of the write history.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{DirBuilder, File};
use std::io::{self, Read as _, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, openat};

use super::{WriteHistoryError, cover, is_covered};

/// A file that would exceed this size records `/` instead: everything may have been written.
const MAX_BYTES: u64 = 1 << 20;
const OTHERS_MAY_WRITE: u32 = 0o022;

/// A file and its content when it was last read.
#[derive(Debug)]
pub(super) struct HistoryFile {
    path: PathBuf,
    /// `None` if the file does not exist or must be read again.
    version: Option<Version>,
    roots: BTreeSet<PathBuf>,
    damaged_line: Option<usize>,
}

/// Identifies the state of the file. Changes with every appended line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Version {
    device: u64,
    inode: u64,
    len: u64,
    changed: (i64, i64),
}

impl HistoryFile {
    pub(super) fn new(path: PathBuf) -> Self {
        Self { path, version: None, roots: BTreeSet::new(), damaged_line: None }
    }

    pub(super) fn directory(&self) -> Option<&Path> {
        self.path.parent()
    }

    pub(super) fn roots(&self) -> &BTreeSet<PathBuf> {
        &self.roots
    }

    pub(super) fn check_lines(&self) -> Result<(), WriteHistoryError> {
        let damaged = |line| WriteHistoryError::Damaged { file: self.path.clone(), line };
        self.damaged_line.map_or(Ok(()), |line| Err(damaged(line)))
    }

    /// Whether a server of this user could write the file.
    pub(super) fn is_possible(&self) -> bool {
        let Some(directory) = self.directory() else { return false };
        if directory.symlink_metadata().is_ok() {
            return !matches!(self.open_directory(), Ok(None));
        }
        let existing = directory.ancestors().skip(1).find(|above| above.symlink_metadata().is_ok());
        let allowed = |path| rustix::fs::access(path, rustix::fs::Access::WRITE_OK).is_ok();
        existing.is_some_and(|above| above.is_dir() && allowed(above))
    }

    /// Reads the file if it has changed. Returns whether there is new content.
    pub(super) fn read(&mut self) -> Result<bool, WriteHistoryError> {
        let flags = OFlags::RDONLY;
        let opened = match self.open_directory()?.map(|directory| self.open(&directory, flags)) {
            None | Some(Err(rustix::io::Errno::NOENT)) => {
                *self = Self::new(std::mem::take(&mut self.path));
                return Ok(false);
            }
            Some(opened) => opened.map_err(|errno| self.failed(errno.into()))?,
        };
        let version = self.check(&opened)?;
        if self.version == Some(version) {
            return Ok(false);
        }
        let mut content = Vec::new();
        let read = opened.take(2 * MAX_BYTES).read_to_end(&mut content);
        read.map_err(|source| self.failed(source))?;
        self.parse(&content);
        if version.len > 2 * MAX_BYTES {
            self.roots.insert(PathBuf::from("/"));
        }
        self.version = Some(version);
        Ok(true)
    }

    /// Ignores an unfinished last line: its writer has not granted anything yet, and the beginning
    /// of a path may name another directory, even `/`.
    fn parse(&mut self, content: &[u8]) {
        self.roots.clear();
        self.damaged_line = None;
        for (index, line) in content.split_inclusive(|byte| *byte == b'\n').enumerate() {
            let complete = line.strip_suffix(b"\n");
            match complete.unwrap_or(line) {
                [] => {}
                path @ [b'/', ..] if !path.contains(&0) => {
                    let root = complete.map(|path| PathBuf::from(OsStr::from_bytes(path)));
                    self.roots.extend(root);
                }
                _ => self.damaged_line = self.damaged_line.or(Some(index + 1)),
            }
        }
    }

    /// Appends the paths that the file, as last read, does not cover. Returns `false` if no server
    /// of this user could write the file.
    pub(super) fn add(&mut self, wanted: &BTreeSet<PathBuf>) -> Result<bool, WriteHistoryError> {
        if wanted.iter().all(|root| is_covered(&self.roots, root)) {
            return Ok(true);
        }
        let Some(mut opened) = self.open_to_append()? else { return Ok(false) };
        let version = self.check(&opened)?;
        // Reset even if the write fails, since a part may have been written.
        self.version = None;
        // Ends a line that another server could not finish, for example on a full disk.
        let mut lines = b"\n".to_vec();
        for root in wanted.iter().filter_map(|root| cover(&mut self.roots, root)) {
            lines.extend_from_slice(root.as_os_str().as_bytes());
            lines.push(b'\n');
        }
        let added = u64::try_from(lines.len()).unwrap_or(u64::MAX);
        if version.len.saturating_add(added) > MAX_BYTES {
            lines = b"\n/\n".to_vec();
        }
        let written = opened.write_all(&lines).and_then(|()| opened.sync_data());
        written.map_err(|source| self.failed(source))?;
        Ok(true)
    }

    fn open_to_append(&self) -> Result<Option<File>, WriteHistoryError> {
        match self.directory().map(make_directory) {
            Some(Ok(())) => {}
            Some(Err(source)) if !is_closed(&source) => return Err(self.failed(source)),
            _ => return Ok(None),
        }
        let Some(directory) = self.open_directory()? else { return Ok(None) };
        let opened = self.open(&directory, OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE);
        match opened.map_err(io::Error::from) {
            Ok(opened) => Ok(Some(opened)),
            Err(source) if !is_closed(&source) => Err(self.failed(source)),
            // The file was readable, so other servers may rely on it. They would miss entries
            // recorded only in the other history files.
            Err(source) if self.version.is_some() => {
                Err(WriteHistoryError::ReadOnly { file: self.path.clone(), source })
            }
            Err(_) => Ok(None),
        }
    }

    fn open(&self, directory: &File, flags: OFlags) -> rustix::io::Result<File> {
        let flags = flags | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let name = self.path.file_name().unwrap_or_default();
        openat(directory, name, flags, Mode::RUSR | Mode::WUSR).map(File::from)
    }

    /// Returns `None` if the directory is missing or belongs to another user: then no server of
    /// this user has written there.
    fn open_directory(&self) -> Result<Option<File>, WriteHistoryError> {
        let Some(path) = self.directory() else { return Ok(None) };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let directory = match openat(CWD, path, flags, Mode::empty()).map_err(io::Error::from) {
            Ok(directory) => File::from(directory),
            Err(error) => {
                return match error.kind() {
                    io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => Ok(None),
                    _ => Err(self.failed(error)),
                };
            }
        };
        let metadata = directory.metadata().map_err(|source| self.failed(source))?;
        if metadata.uid() != rustix::process::geteuid().as_raw() {
            return Ok(None);
        }
        if metadata.mode() & OTHERS_MAY_WRITE != 0 {
            return Err(WriteHistoryError::Untrusted { file: self.path.clone() });
        }
        Ok(Some(directory))
    }

    fn check(&self, opened: &File) -> Result<Version, WriteHistoryError> {
        let metadata = opened.metadata().map_err(|source| self.failed(source))?;
        let is_ours = metadata.uid() == rustix::process::geteuid().as_raw();
        if !metadata.is_file() || !is_ours || metadata.mode() & OTHERS_MAY_WRITE != 0 {
            return Err(WriteHistoryError::Untrusted { file: self.path.clone() });
        }
        Ok(Version {
            device: metadata.dev(),
            inode: metadata.ino(),
            len: metadata.len(),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        })
    }

    fn failed(&self, source: io::Error) -> WriteHistoryError {
        WriteHistoryError::Io { file: self.path.clone(), source }
    }
}

pub(super) fn make_directory(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Whether the error is permanent, unlike a full disk.
fn is_closed(error: &io::Error) -> bool {
    use io::ErrorKind as Kind;
    matches!(
        error.kind(),
        Kind::PermissionDenied
            | Kind::ReadOnlyFilesystem
            | Kind::NotFound
            | Kind::NotADirectory
            | Kind::AlreadyExists
    )
}

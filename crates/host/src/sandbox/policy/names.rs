//! The file system queries for resolving a policy and planning its enforcement.

use std::ffi::OsString;
use std::fs::{self, FileType};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use rustix::io::Errno;

const STICKY: u32 = 0o1000;

/// Queries about the current names. No result is cached. A query about a `path` or `file` does not
/// follow a symlink at its end; a `directory` must be a real path.
pub trait Names {
    fn kind(&self, path: &Path) -> io::Result<NameKind>;

    fn read_link(&self, path: &Path) -> io::Result<PathBuf>;

    /// Returns at most `max` names of a directory, in any order. A name that is removed during the
    /// listing is omitted or [`NameKind::Missing`].
    fn list(&self, directory: &Path, max: usize) -> io::Result<Vec<(OsString, NameKind)>>;

    /// Reads at most the first `max` bytes of a regular file.
    fn read_start(&self, file: &Path, max: usize) -> io::Result<Vec<u8>>;

    fn hold(&self, path: &Path) -> io::Result<Hold>;

    /// Whether processes of this user can create names in the directory, or can obtain that right.
    fn is_changeable(&self, directory: &Path) -> io::Result<bool>;
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NameKind {
    Missing,
    Directory,
    Symlink,
    /// A regular file, a device, a pipe or a socket.
    File,
}

/// Who can replace a name. In a directory with the sticky bit, such as `/tmp`, every user can
/// create names, but few can remove names of others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Hold {
    /// This user owns the name, or the directory has no sticky bit, or nothing is there.
    Ours,
    /// Another user owns the name, but this user can replace it: as root, or as owner of the
    /// directory.
    Foreign { owner: u32 },
    /// Another user owns the name, and this user cannot replace it.
    OutOfReach,
}

/// The names of this machine, with the rights of this process.
#[derive(Debug, Clone, Copy, Default)]
pub struct HostNames;

impl Names for HostNames {
    fn kind(&self, path: &Path) -> io::Result<NameKind> {
        match fs::symlink_metadata(path) {
            Ok(metadata) => Ok(metadata.file_type().into()),
            Err(error) => match error.kind() {
                io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => Ok(NameKind::Missing),
                _ => Err(error),
            },
        }
    }

    fn read_link(&self, path: &Path) -> io::Result<PathBuf> {
        fs::read_link(path)
    }

    fn list(&self, directory: &Path, max: usize) -> io::Result<Vec<(OsString, NameKind)>> {
        fs::read_dir(directory)?
            .take(max)
            .map(|entry| {
                let entry = entry?;
                let kind = match entry.file_type() {
                    // Some file systems need a separate stat call for the type, and by then the
                    // name may be gone.
                    Err(error) if error.kind() == io::ErrorKind::NotFound => NameKind::Missing,
                    file_type => file_type?.into(),
                };
                Ok((entry.file_name(), kind))
            })
            .collect()
    }

    fn read_start(&self, file: &Path, max: usize) -> io::Result<Vec<u8>> {
        // The content of the workspace is untrusted: a pipe must not block the server, and a
        // symlink must not lead elsewhere.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = fs::File::from(rustix::fs::openat(CWD, file, flags, Mode::empty())?);
        if !file.metadata()?.is_file() {
            return Err(io::Error::other("not a regular file"));
        }
        let mut start = Vec::new();
        let max = u64::try_from(max).unwrap_or(u64::MAX);
        file.take(max).read_to_end(&mut start)?;
        Ok(start)
    }

    fn hold(&self, path: &Path) -> io::Result<Hold> {
        let Some(directory) = path.parent() else { return Ok(Hold::Ours) };
        let (directory, name) = match (fs::symlink_metadata(directory), fs::symlink_metadata(path))
        {
            (Ok(directory), Ok(name)) => (directory, name),
            (Err(error), _) | (_, Err(error)) => {
                return match error.kind() {
                    io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => Ok(Hold::Ours),
                    _ => Err(error),
                };
            }
        };
        let us = rustix::process::geteuid();
        let (owner, is_ours) = (name.uid(), |uid: u32| uid == us.as_raw());
        Ok(if directory.mode() & STICKY == 0 || is_ours(owner) {
            Hold::Ours
        } else if us.is_root() || is_ours(directory.uid()) {
            Hold::Foreign { owner }
        } else {
            Hold::OutOfReach
        })
    }

    fn is_changeable(&self, directory: &Path) -> io::Result<bool> {
        let us = rustix::process::geteuid();
        if us.is_root() || fs::symlink_metadata(directory)?.uid() == us.as_raw() {
            return Ok(true);
        }
        let (wanted, flags) = (rustix::fs::Access::WRITE_OK, AtFlags::EACCESS);
        let allowed = rustix::fs::accessat(CWD, directory, wanted, flags);
        // A directory that is mounted read-only now may have been writable before.
        Ok(allowed != Err(Errno::ACCESS))
    }
}

impl From<FileType> for NameKind {
    fn from(file_type: FileType) -> Self {
        if file_type.is_dir() {
            Self::Directory
        } else if file_type.is_symlink() {
            Self::Symlink
        } else {
            Self::File
        }
    }
}

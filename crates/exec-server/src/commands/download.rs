//! A local file that receives a download. A regular file appears under its path only once it is
//! complete; until then, an existing file at that path remains.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

#[derive(Debug)]
pub(super) enum Download {
    Draft {
        draft: NamedTempFile,
        path: PathBuf,
    },
    /// A device, FIFO or dangling symlink is written directly, because it must not be replaced.
    Stream(File),
}

impl Download {
    /// May block: a FIFO waits for its reader.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        match fs::metadata(path) {
            Ok(found) if found.is_file() => {
                // A file that is not writable must not be replaced either.
                OpenOptions::new().write(true).open(path)?;
                let path = path.canonicalize()?;
                let draft = draft_beside(&path)?;
                draft.as_file().set_permissions(found.permissions())?;
                Ok(Self::Draft { draft, path })
            }
            Ok(_) => OpenOptions::new().write(true).open(path).map(Self::Stream),
            Err(_) if path.is_symlink() => File::create(path).map(Self::Stream),
            Err(_) => Ok(Self::Draft { draft: draft_beside(path)?, path: path.to_owned() }),
        }
    }

    pub(super) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Draft { draft, .. } => draft.write_all(bytes),
            Self::Stream(file) => file.write_all(bytes),
        }
    }

    /// Moves a complete draft to its path. Dropping the draft instead keeps an existing file.
    pub(super) fn finish(self) -> io::Result<()> {
        match self {
            Self::Draft { draft, path } => {
                draft.persist(path).map(drop).map_err(|error| error.error)
            }
            Self::Stream(_) => Ok(()),
        }
    }
}

/// Creates the temporary file, with the permissions of any new file.
fn draft_beside(path: &Path) -> io::Result<NamedTempFile> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    tempfile::Builder::new()
        .prefix(".exec-server-")
        .suffix(".tmp")
        .permissions(fs::Permissions::from_mode(0o666))
        .tempfile_in(directory.unwrap_or(Path::new(".")))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn names(directory: &Path) -> usize {
        fs::read_dir(directory).unwrap().count()
    }

    #[test]
    fn a_file_is_replaced_once_the_new_one_is_complete() {
        let directory = tempfile::tempdir().unwrap();
        let (path, link) = (directory.path().join("file"), directory.path().join("link"));
        fs::write(&path, "before").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        symlink("file", &link).unwrap();
        let mut abandoned = Download::open(&path).unwrap();
        abandoned.write(b"half").unwrap();
        drop(abandoned);
        assert_eq!((fs::read(&path).unwrap(), names(directory.path())), (b"before".to_vec(), 2));

        let mut whole = Download::open(&link).unwrap();
        whole.write(b"after").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"before");
        whole.finish().unwrap();
        assert_eq!((fs::read(&path).unwrap(), names(directory.path())), (b"after".to_vec(), 2));
        assert!(link.is_symlink());
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o640);
    }

    #[test]
    fn special_files_are_written_in_place() {
        let directory = tempfile::tempdir().unwrap();
        assert!(Download::open(directory.path()).is_err());
        let Download::Stream(_) = Download::open(Path::new("/dev/null")).unwrap() else { panic!() };
        let dangling = directory.path().join("dangling");
        symlink("target", &dangling).unwrap();
        let mut through = Download::open(&dangling).unwrap();
        through.write(b"x").unwrap();
        through.finish().unwrap();
        assert_eq!(fs::read(directory.path().join("target")).unwrap(), b"x");
        assert!(dangling.is_symlink());
    }
}

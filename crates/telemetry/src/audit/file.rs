//! A file to which records are appended.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;

use rustix::fs::OFlags;

#[derive(Debug)]
pub(super) struct AuditFile {
    file: File,
    /// The last record was written only in part, so the next one starts with a newline.
    is_torn: bool,
}

impl AuditFile {
    /// Opens or creates the file; a new one is readable only by its owner. A FIFO or a terminal
    /// could block the server, so only regular files are accepted.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits().cast_signed();
        let mut options = OpenOptions::new();
        options.append(true).create(true).mode(0o600).custom_flags(flags);
        let file = match options.read(true).open(path) {
            // A file that may be written but not read is accepted, too.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                options.read(false).open(path)?
            }
            opened => opened?,
        };
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
        }
        let is_torn = ends_within_a_line(&file, metadata.len());
        Ok(Self { file, is_torn })
    }

    /// Appends a record with a single `write`, so that several servers can share the file.
    pub(super) fn append(&mut self, mut record: Vec<u8>) -> io::Result<()> {
        if self.is_torn {
            record.insert(0, b'\n');
        }
        record.push(b'\n');
        let mut rest = &record[..];
        while !rest.is_empty() {
            match self.file.write(rest) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => {
                    rest = &rest[count..];
                    self.is_torn = !rest.is_empty();
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// Returns whether the last record of a file is incomplete, because the disk was full or the server
/// was killed.
fn ends_within_a_line(file: &File, len: u64) -> bool {
    let mut last = [0];
    let end = len.checked_sub(1).map(|end| file.read_at(&mut last, end));
    matches!(end, Some(Ok(1))) && last != *b"\n"
}

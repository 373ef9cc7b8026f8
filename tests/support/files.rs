//! Files that tests and the processes they start agree on.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::Choices;

/// Closed until opened: `read x < path` waits in the meantime.
pub(crate) struct Gate {
    directory: TempDir,
}

impl Gate {
    pub(crate) fn new() -> Self {
        let gate = Self { directory: tempfile::tempdir().unwrap() };
        let fifo = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, gate.file(), fifo, 0o600.into(), 0).unwrap();
        gate
    }

    pub(crate) fn path(&self) -> String {
        self.file().to_str().unwrap().to_owned()
    }

    /// Waits until someone reads, and lets them go.
    pub(crate) fn open(&self) {
        drop(fs::OpenOptions::new().write(true).open(self.file()).unwrap());
    }

    fn file(&self) -> PathBuf {
        self.directory.path().join("gate")
    }
}

/// A file of pseudo-random bytes, the same for the same length.
pub(crate) fn random_file(directory: &Path, len: usize) -> PathBuf {
    let path = directory.join("random");
    let mut file = std::io::BufWriter::new(fs::File::create(&path).unwrap());
    let mut choices = Choices::new(len as u64);
    for _ in 0..len / 8 {
        file.write_all(&choices.next().to_le_bytes()).unwrap();
    }
    file.write_all(&vec![b'.'; len % 8]).unwrap();
    file.flush().unwrap();
    path
}

//! Files with known contents.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use super::Choices;

/// Creates the file `random` of pseudo-random bytes. Files of one length have the same contents.
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

//! The files of a measurement, in a temporary directory that is removed at its end.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::Path;

use anyhow::{Context as _, ensure};
use tempfile::TempDir;

#[derive(Debug)]
pub(super) struct Fixture {
    directory: TempDir,
    path: String,
}

/// A tree of identical directories.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tree {
    pub(super) directories: usize,
    pub(super) files_each: usize,
}

impl Tree {
    /// Returns the number of directories and files below the root.
    pub(super) fn entries(self) -> usize {
        self.directories * (1 + self.files_each)
    }
}

impl Fixture {
    pub(super) fn new() -> anyhow::Result<Self> {
        let directory = tempfile::Builder::new()
            .prefix("exec-server-bench-")
            .tempdir()
            .context("cannot create a temporary directory")?;
        let path = directory.path().to_str().unwrap_or_default().to_owned();
        // Requests are written without escapes.
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/-._".contains(&byte);
        ensure!(
            path.starts_with('/') && path.bytes().all(is_plain),
            "the path of the temporary directory {:?} has characters other than ASCII letters, \
             digits, /, -, . and _; change TMPDIR",
            directory.path()
        );
        Ok(Self { directory, path })
    }

    pub(super) fn path(&self) -> &str {
        &self.path
    }

    pub(super) fn path_of(&self, name: &str) -> String {
        format!("{}/{name}", self.path)
    }

    /// Returns the path of the file.
    pub(super) fn file(&self, name: &str, content: &[u8]) -> anyhow::Result<String> {
        let path = self.path_of(name);
        fs::write(&path, content).with_context(|| format!("cannot write {path}"))?;
        Ok(path)
    }

    /// Repeats `content` `times` times. Returns the path of the file.
    pub(super) fn long_file(
        &self,
        name: &str,
        content: &[u8],
        times: u64,
    ) -> anyhow::Result<String> {
        let path = self.path_of(name);
        let mut file = File::create(&path).with_context(|| format!("cannot create {path}"))?;
        for _ in 0..times {
            file.write_all(content).with_context(|| format!("cannot write {path}"))?;
        }
        Ok(path)
    }

    pub(super) fn tree(&self, tree: Tree, content: &[u8]) -> anyhow::Result<()> {
        for directory in 0..tree.directories {
            let directory = self.directory.path().join(format!("directory-{directory}"));
            fill(&directory, tree.files_each, content)
                .with_context(|| format!("cannot create files in {}", directory.display()))?;
        }
        Ok(())
    }
}

/// Returns bytes without a pattern, like those of binaries and images.
pub(super) fn noise(len: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    (0..len).map(|_| next()).collect()
}

fn fill(directory: &Path, files: usize, content: &[u8]) -> std::io::Result<()> {
    fs::create_dir(directory)?;
    for file in 0..files {
        fs::write(directory.join(format!("file-{file}.txt")), content)?;
    }
    Ok(())
}

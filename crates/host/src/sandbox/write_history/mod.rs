//! The directories in which sandboxes of this user were ever allowed to write, by this server or
//! any other.
//!
//! Files that a process left there outlive its sandbox and its server, and must not decide what a
//! later policy grants. So the list is kept in files that only grow, one path per line. There are
//! several files, since servers of one user may be started with different environment variables and
//! still must share the list: each server reads all files that it knows and appends to each of
//! them. Concurrent servers append without a lock: any process that can read a file could lock it
//! and block them. A condition that makes the list incomplete is an error, after which the caller
//! must assume [`WrittenRoots::Unknown`].

mod file;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use self::file::{HistoryFile, make_directory};
use super::policy::{Access, DEVICES, HostNames, Policy, WrittenRoots, real_path};

/// The maximum number of entries directly below one directory. After that, the directory itself is
/// recorded instead of further entries.
const MAX_SIBLINGS: usize = 256;
/// Directories in which symlinks are never trusted, so they need no entry.
const NEVER_TRUSTED: [&str; 2] = ["/tmp", "/var/tmp"];

#[derive(Debug)]
pub struct WriteHistory {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// All directories read from the history files or recorded so far, even if a history file has
    /// since been removed.
    roots: Arc<BTreeSet<PathBuf>>,
    files: Vec<HistoryFile>,
    /// Whether the entries of each file have been added to the others. Entries that appear in a
    /// file later are not.
    is_shared: bool,
}

/// Why the list is incomplete, or would become so.
#[derive(Debug, thiserror::Error)]
pub enum WriteHistoryError {
    #[error("cannot use {}: {source}", file.display())]
    Io { file: PathBuf, source: io::Error },
    #[error("cannot add to {}: {source}; let this user write to it, or remove it", file.display())]
    ReadOnly { file: PathBuf, source: io::Error },
    #[error(
        "{} is not a regular file of this user, or other users can write to it or its directory; remove it, and let only this user write to its directory",
        file.display()
    )]
    Untrusted { file: PathBuf },
    #[error("{} is damaged in line {line}; remove that line", file.display())]
    Damaged { file: PathBuf, line: usize },
    #[error(
        "cannot use any of the directories {directories:?}; set XDG_STATE_HOME to a directory that this user can write to"
    )]
    NoPlace { directories: Vec<PathBuf> },
}

impl WriteHistory {
    /// Creates a history kept in `files`. Without files it covers only this server.
    #[must_use]
    pub fn new(files: Vec<PathBuf>) -> Self {
        let files = files.into_iter().map(HistoryFile::new).collect();
        let state = State { roots: Arc::default(), files, is_shared: false };
        Self { state: Mutex::new(state) }
    }

    /// Returns the current list, including the entries of other servers. Blocks.
    pub fn roots(&self) -> Result<WrittenRoots, WriteHistoryError> {
        let mut state = self.lock();
        if !state.files.is_empty() && !state.files.iter().any(HistoryFile::is_possible) {
            return Err(state.no_place());
        }
        state.read()?;
        state.files.iter().try_for_each(HistoryFile::check_lines)?;
        Ok(WrittenRoots::Known(Arc::clone(&state.roots)))
    }

    /// Records the directories that a policy makes writable, or nothing if it does not restrict
    /// files. Must be called before any process can write there. Blocks.
    pub fn add(&self, policy: &Policy) -> Result<(), WriteHistoryError> {
        if !policy.restricts_files() {
            return Ok(());
        }
        let mut state = self.lock();
        let mut new = BTreeSet::new();
        for grant in policy.grants().into_iter().filter(|grant| grant.access == Access::Write) {
            state.make_directories_in(&grant.path);
            let is_device = DEVICES.iter().any(|(device, _)| grant.path == Path::new(device));
            let is_never_trusted = NEVER_TRUSTED.iter().any(|path| grant.path.starts_with(path));
            if !is_device && !is_never_trusted {
                new.insert(one_line(&grant.path).to_owned());
            }
        }
        if new.is_empty() { Ok(()) } else { state.add(new) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no code panics while it holds the history")
    }
}

impl State {
    fn read(&mut self) -> Result<(), WriteHistoryError> {
        for file in &mut self.files {
            if file.read()? {
                Arc::make_mut(&mut self.roots).extend(file.roots().iter().cloned());
            }
        }
        Ok(())
    }

    /// Reads the files first: another program may have changed them.
    fn add(&mut self, new: BTreeSet<PathBuf>) -> Result<(), WriteHistoryError> {
        self.read()?;
        let mut wanted = new;
        if !self.is_shared {
            wanted.extend(self.roots.iter().cloned());
        }
        let mut is_kept = self.files.is_empty();
        for file in &mut self.files {
            is_kept |= file.add(&wanted)?;
        }
        if !is_kept {
            return Err(self.no_place());
        }
        self.is_shared = true;
        if !wanted.iter().all(|root| is_covered(&self.roots, root)) {
            let roots = Arc::make_mut(&mut self.roots);
            wanted.iter().for_each(|root| drop(cover(roots, root)));
        }
        Ok(())
    }

    /// Creates the directories of history files that are below a writable root. A sandbox can
    /// protect an existing directory at no cost. For a missing directory it needs a placeholder,
    /// which might take the place of a directory far above.
    fn make_directories_in(&self, root: &Path) {
        for directory in self.files.iter().filter_map(HistoryFile::directory) {
            if real_path(&HostNames, directory).is_some_and(|real| real.starts_with(root)) {
                let _ = make_directory(directory);
            }
        }
    }

    fn no_place(&self) -> WriteHistoryError {
        let directories = self.files.iter().filter_map(HistoryFile::directory);
        WriteHistoryError::NoPlace { directories: directories.map(Path::to_owned).collect() }
    }
}

fn is_covered(roots: &BTreeSet<PathBuf>, path: &Path) -> bool {
    path.ancestors().any(|above| roots.contains(above))
}

/// Returns the path, or the nearest one above it that fits on one line.
fn one_line(path: &Path) -> &Path {
    let is_one_line = |path: &&Path| !path.as_os_str().as_bytes().contains(&b'\n');
    path.ancestors().find(is_one_line).unwrap_or(Path::new("/"))
}

/// Adds the path unless a known path covers it. Returns the added path, which may be a directory
/// above the given one.
fn cover(roots: &mut BTreeSet<PathBuf>, path: &Path) -> Option<PathBuf> {
    if is_covered(roots, path) {
        return None;
    }
    let added = general(roots, path).to_owned();
    roots.insert(added.clone());
    Some(added)
}

/// Returns the path, or a directory above it that already has too many entries.
fn general<'a>(roots: &BTreeSet<PathBuf>, path: &'a Path) -> &'a Path {
    let Some(parent) = path.parent() else { return path };
    let below = roots.range(parent.to_owned()..).take_while(|root| root.starts_with(parent));
    let siblings = below.filter(|root| root.parent() == Some(parent)).count();
    if siblings < MAX_SIBLINGS { path } else { general(roots, parent) }
}

//! The directories that sandboxes of this user were ever granted for writing, by this server or an
//! earlier one.
//!
//! What a process left there outlives its sandbox and its server, and must not decide what a later
//! policy grants. So the list is kept in a file that only grows: one path on each line. Servers
//! that run at the same time append to it without a lock, which a process that can read the file
//! could hold. Whatever makes the list incomplete is an error, or makes it
//! [`WrittenRoots::Unknown`].

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{DirBuilder, File};
use std::io::{self, Read as _, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use rustix::fs::{CWD, Mode, OFlags, openat};

use super::policy::{Access, DEVICES, Policy, WrittenRoots};

/// Of one directory. When there are more, that directory stands for all of them.
const MAX_SIBLINGS: usize = 256;
/// A file that would get longer says that everything may have been written.
const MAX_BYTES: u64 = 1 << 20;
/// Symlinks in these are never trusted.
const NEVER_TRUSTED: [&str; 2] = ["/tmp", "/var/tmp"];
const OTHERS_MAY_WRITE: u32 = 0o022;

/// What this server knows, and where it is written down.
#[derive(Debug)]
pub struct WriteHistory {
    /// All are read. The first in a directory that can be used is written.
    files: Vec<PathBuf>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    roots: Arc<BTreeSet<PathBuf>>,
    /// For each file, what it was when it was read.
    read: Vec<Option<Version>>,
}

/// Changes with every line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Version {
    device: u64,
    inode: u64,
    len: u64,
}

/// Why the list is not, or would not be, complete.
#[derive(Debug, thiserror::Error)]
pub enum WriteHistoryError {
    #[error("cannot use {}: {source}", file.display())]
    Io { file: PathBuf, source: io::Error },
    #[error(
        "{} can be written by other users, or is not a regular file of this user; remove it",
        file.display()
    )]
    Untrusted { file: PathBuf },
    #[error("{} is damaged in line {line}; remove that line", file.display())]
    Damaged { file: PathBuf, line: usize },
    #[error("no directory can be used for it, out of {directories:?}")]
    NoPlace { directories: Vec<PathBuf> },
}

impl WriteHistory {
    /// Without a file it is the history of this server alone.
    #[must_use]
    pub fn new(files: Vec<PathBuf>) -> Self {
        let state = State { read: vec![None; files.len()], ..State::default() };
        Self { files, state: Mutex::new(state) }
    }

    /// As of now, also what other servers have added. Blocks.
    pub fn roots(&self) -> Result<WrittenRoots, WriteHistoryError> {
        if !self.files.is_empty() && !self.files.iter().any(|file| is_possible(file)) {
            return Err(self.no_place());
        }
        let mut state = self.lock();
        self.read(&mut state)?;
        Ok(WrittenRoots::Known(Arc::clone(&state.roots)))
    }

    /// Writes down what a policy lets be written, which must come before anything does so. Blocks.
    pub fn add(&self, policy: &Policy) -> Result<(), WriteHistoryError> {
        if !policy.restricts_files() {
            return Ok(());
        }
        let mut state = self.lock();
        let mut new = BTreeSet::new();
        for grant in policy.grants().into_iter().filter(|grant| grant.access == Access::Write) {
            self.make_directories_in(&grant.path);
            let is_device = DEVICES.iter().any(|(device, _)| grant.path == Path::new(device));
            let is_never_trusted = NEVER_TRUSTED.iter().any(|path| grant.path.starts_with(path));
            if !is_device && !is_never_trusted && !is_covered(&state.roots, &grant.path) {
                new.insert(general(&state.roots, one_line(&grant.path)).to_owned());
            }
        }
        if !new.is_empty() {
            self.append(&new)?;
            Arc::make_mut(&mut state.roots).extend(new);
        }
        Ok(())
    }

    /// A sandbox protects what exists at no cost. What is missing it has to hold by a placeholder,
    /// which might stand in the place of a directory far above.
    fn make_directories_in(&self, root: &Path) {
        let directories = self.files.iter().filter_map(|file| file.parent());
        for directory in directories.filter(|directory| directory.starts_with(root)) {
            let _ = make_directory(directory);
        }
    }

    fn read(&self, state: &mut State) -> Result<(), WriteHistoryError> {
        for (file, read) in self.files.iter().zip(&mut state.read) {
            let failed = |source| WriteHistoryError::Io { file: file.clone(), source };
            let Some(directory) = open_directory(file)? else { continue };
            let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
            let name = file.file_name().unwrap_or_default();
            let opened = match openat(&directory, name, flags, Mode::empty()) {
                Err(rustix::io::Errno::NOENT) => continue,
                opened => File::from(opened.map_err(|errno| failed(errno.into()))?),
            };
            let version = check_file(&opened, file)?;
            if *read == Some(version) {
                continue;
            }
            let mut content = Vec::new();
            opened.take(2 * MAX_BYTES).read_to_end(&mut content).map_err(failed)?;
            let roots = Arc::make_mut(&mut state.roots);
            if version.len > 2 * MAX_BYTES {
                roots.insert(PathBuf::from("/"));
            }
            for (index, line) in content.split(|byte| *byte == b'\n').enumerate() {
                match line {
                    [] => {}
                    [b'/', ..] if !line.contains(&0) => {
                        roots.insert(PathBuf::from(OsStr::from_bytes(line)));
                    }
                    _ => {
                        let file = file.clone();
                        return Err(WriteHistoryError::Damaged { file, line: index + 1 });
                    }
                }
            }
            *read = Some(version);
        }
        Ok(())
    }

    fn append(&self, roots: &BTreeSet<PathBuf>) -> Result<(), WriteHistoryError> {
        if self.files.is_empty() {
            return Ok(());
        }
        for file in &self.files {
            let Some(Ok(())) = file.parent().map(make_directory) else { continue };
            let Ok(Some(directory)) = open_directory(file) else { continue };
            let failed = |source| WriteHistoryError::Io { file: file.clone(), source };
            let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE;
            let flags = flags | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
            let name = file.file_name().unwrap_or_default();
            let opened = openat(&directory, name, flags, Mode::RUSR | Mode::WUSR);
            let mut opened = match opened {
                Err(rustix::io::Errno::ROFS | rustix::io::Errno::ACCESS) => continue,
                opened => File::from(opened.map_err(|errno| failed(errno.into()))?),
            };
            let version = check_file(&opened, file)?;
            // A line that another server could not finish, for want of space, ends here.
            let mut lines = b"\n".to_vec();
            for root in roots {
                lines.extend_from_slice(root.as_os_str().as_bytes());
                lines.push(b'\n');
            }
            let added = u64::try_from(lines.len()).unwrap_or(u64::MAX);
            if version.len.saturating_add(added) > MAX_BYTES {
                lines = b"\n/\n".to_vec();
            }
            return opened.write_all(&lines).and_then(|()| opened.sync_data()).map_err(failed);
        }
        Err(self.no_place())
    }

    fn no_place(&self) -> WriteHistoryError {
        let directories = self.files.iter().filter_map(|file| file.parent());
        WriteHistoryError::NoPlace { directories: directories.map(Path::to_owned).collect() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no code panics while it holds the history")
    }
}

fn make_directory(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

fn is_covered(roots: &BTreeSet<PathBuf>, path: &Path) -> bool {
    path.ancestors().any(|above| roots.contains(above))
}

/// The path, or one above it that can be written on one line.
fn one_line(path: &Path) -> &Path {
    let is_one_line = |path: &&Path| !path.as_os_str().as_bytes().contains(&b'\n');
    path.ancestors().find(is_one_line).unwrap_or(Path::new("/"))
}

/// The path, or one above it that stands for many.
fn general<'a>(roots: &BTreeSet<PathBuf>, path: &'a Path) -> &'a Path {
    let Some(parent) = path.parent() else { return path };
    let below = roots.range(parent.to_owned()..).take_while(|root| root.starts_with(parent));
    let siblings = below.filter(|root| root.parent() == Some(parent)).count();
    if siblings < MAX_SIBLINGS { path } else { general(roots, parent) }
}

/// Whether a server of this user can keep the file.
fn is_possible(file: &Path) -> bool {
    let Some(directory) = file.parent() else { return false };
    if directory.symlink_metadata().is_ok() {
        return !matches!(open_directory(file), Ok(None));
    }
    let existing = directory.ancestors().skip(1).find(|above| above.symlink_metadata().is_ok());
    let allowed = |path| rustix::fs::access(path, rustix::fs::Access::WRITE_OK).is_ok();
    existing.is_some_and(allowed)
}

/// The directory of a file, unless it is missing or another user's: then no server of this user
/// has written there.
fn open_directory(file: &Path) -> Result<Option<File>, WriteHistoryError> {
    let failed = |source| WriteHistoryError::Io { file: file.to_owned(), source };
    let Some(path) = file.parent() else { return Ok(None) };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let directory = match openat(CWD, path, flags, Mode::empty()) {
        Ok(directory) => File::from(directory),
        Err(errno) => {
            let source = io::Error::from(errno);
            return match source.kind() {
                io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => Ok(None),
                _ => Err(failed(source)),
            };
        }
    };
    let metadata = directory.metadata().map_err(failed)?;
    if metadata.uid() != rustix::process::geteuid().as_raw() {
        return Ok(None);
    }
    if metadata.mode() & OTHERS_MAY_WRITE != 0 {
        return Err(WriteHistoryError::Untrusted { file: file.to_owned() });
    }
    Ok(Some(directory))
}

fn check_file(opened: &File, file: &Path) -> Result<Version, WriteHistoryError> {
    let failed = |source| WriteHistoryError::Io { file: file.to_owned(), source };
    let metadata = opened.metadata().map_err(failed)?;
    let is_ours = metadata.uid() == rustix::process::geteuid().as_raw();
    if !metadata.is_file() || !is_ours || metadata.mode() & OTHERS_MAY_WRITE != 0 {
        return Err(WriteHistoryError::Untrusted { file: file.to_owned() });
    }
    Ok(Version { device: metadata.dev(), inode: metadata.ino(), len: metadata.len() })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use crate::sandbox::policy::fake::FakeNames;
    use crate::sandbox::policy::{
        DeclaredFiles, DeclaredPolicy, Entry, EntryPath, Network, Surroundings,
    };

    fn policy(writable: &[&str]) -> Policy {
        let entry = |path: &&str| Entry {
            path: EntryPath::Path(PathBuf::from(*path)),
            access: Access::Write,
            skip_missing: false,
        };
        let entries = writable.iter().map(entry).collect();
        let files = DeclaredFiles::Restricted { entries, glob_scan_max_depth: None };
        let declared = DeclaredPolicy { files, network: Network::Restricted };
        let names = FakeNames::default().file("/dev/null");
        Policy::resolve(&declared, &Surroundings::default(), &names).unwrap()
    }

    fn place() -> (tempfile::TempDir, PathBuf) {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("state/exec-server/roots");
        (home, file)
    }

    #[track_caller]
    fn roots(history: &WriteHistory) -> Vec<String> {
        match history.roots().unwrap() {
            WrittenRoots::Known(roots) => {
                roots.iter().map(|root| root.to_str().unwrap().to_owned()).collect()
            }
            WrittenRoots::Unknown => panic!("unknown"),
        }
    }

    #[test]
    fn a_later_server_and_one_at_the_same_time_know_it() {
        let (_home, file) = place();
        let [one, other] = [(); 2].map(|()| WriteHistory::new(vec![file.clone()]));
        assert_eq!(roots(&other), [""; 0]);
        one.add(&policy(&["/src/a"])).unwrap();
        other.add(&policy(&["/src/b", "/tmp/x", "/var/tmp"])).unwrap();
        one.add(&policy(&["/src/a/below"])).unwrap();
        for history in [&one, &other, &WriteHistory::new(vec![file.clone()])] {
            assert_eq!(roots(history), ["/src/a", "/src/b"]);
        }
        let content = fs::read_to_string(&file).unwrap();
        assert_eq!(content, "\n/src/a\n\n/src/b\n");
        let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o777;
        assert_eq!((mode(&file), mode(file.parent().unwrap())), (0o600, 0o700));
    }

    #[test]
    fn without_a_file_it_lasts_as_long_as_the_server() {
        let history = WriteHistory::new(vec![]);
        history.add(&policy(&["/src/a"])).unwrap();
        history.add(&Policy::unrestricted(Network::Restricted)).unwrap();
        assert_eq!(roots(&history), ["/src/a"]);
    }

    #[test]
    fn what_a_sandbox_could_make_is_made_before_it_starts() {
        let (home, file) = place();
        let (_other_home, other) = place();
        let history = WriteHistory::new(vec![other.clone(), file.clone()]);
        history.add(&policy(&["/elsewhere"])).unwrap();
        assert!(other.exists() && !file.parent().unwrap().exists());
        history.add(&policy(&[home.path().to_str().unwrap()])).unwrap();
        assert!(file.parent().unwrap().is_dir() && !file.exists());
    }

    #[test]
    fn many_directories_are_one() {
        let (_home, file) = place();
        let history = WriteHistory::new(vec![file.clone()]);
        for number in 0..2 * MAX_SIBLINGS {
            history.add(&policy(&[&format!("/work/{number}")])).unwrap();
        }
        let known = roots(&WriteHistory::new(vec![file]));
        assert_eq!(known.len(), MAX_SIBLINGS + 1);
        assert_eq!(known[0], "/work");
    }

    #[test]
    fn a_path_that_is_more_than_a_line_is_noted_by_a_shorter_one() {
        let (_home, file) = place();
        let history = WriteHistory::new(vec![file.clone()]);
        history.add(&policy(&["/src/a\n/b/c"])).unwrap();
        assert_eq!(roots(&WriteHistory::new(vec![file])), ["/src"]);
    }

    #[test]
    fn a_full_file_stands_for_everything() {
        let (_home, file) = place();
        let history = WriteHistory::new(vec![file.clone()]);
        history.add(&policy(&["/src/a"])).unwrap();
        let line = format!("/{}\n", "x".repeat(1 << 10));
        fs::write(&file, line.repeat(1 << 10)).unwrap();
        history.add(&policy(&["/src/b"])).unwrap();
        assert_eq!(roots(&WriteHistory::new(vec![file]))[0], "/");
    }

    #[test]
    fn a_file_that_cannot_be_believed_is_an_error() {
        let (_home, file) = place();
        let history = WriteHistory::new(vec![file.clone()]);
        history.add(&policy(&["/src/a"])).unwrap();
        let fails = || WriteHistory::new(vec![file.clone()]).roots().unwrap_err();

        fs::write(&file, b"/src/a\n\0\0\0\n").unwrap();
        assert!(matches!(fails(), WriteHistoryError::Damaged { line: 2, .. }), "{}", fails());
        // A line that was not finished is a root that was not granted.
        fs::write(&file, "/src/a\n/src/unfin").unwrap();
        history.add(&policy(&["/other"])).unwrap();
        let known = roots(&WriteHistory::new(vec![file.clone()]));
        assert_eq!(known, ["/other", "/src/a", "/src/unfin"]);

        fs::set_permissions(&file, fs::Permissions::from_mode(0o666)).unwrap();
        assert!(matches!(fails(), WriteHistoryError::Untrusted { .. }), "{}", fails());
        fs::remove_file(&file).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", &file).unwrap();
        assert!(matches!(fails(), WriteHistoryError::Io { .. }), "{}", fails());
        fs::remove_file(&file).unwrap();
        fs::create_dir(&file).unwrap();
        assert!(matches!(fails(), WriteHistoryError::Untrusted { .. }), "{}", fails());
        assert!(history.add(&policy(&["/more"])).is_err());
    }

    #[test]
    fn where_no_file_can_be_kept_nothing_is_known() {
        let (home, file) = place();
        std::os::unix::fs::symlink("/etc", home.path().join("foreign")).unwrap();
        let unusable = home.path().join("foreign/roots");
        let alone = WriteHistory::new(vec![unusable.clone()]);
        for error in [alone.roots().unwrap_err(), alone.add(&policy(&["/a"])).unwrap_err()] {
            assert!(matches!(error, WriteHistoryError::NoPlace { .. }), "{error}");
        }
        // Another place serves as well, and what was noted there is known wherever else a server
        // writes.
        let either = WriteHistory::new(vec![unusable, file.clone()]);
        either.add(&policy(&["/a"])).unwrap();
        let (_other_home, other) = place();
        assert_eq!(roots(&WriteHistory::new(vec![other, file])), ["/a"]);
    }
}

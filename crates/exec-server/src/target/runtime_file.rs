//! The discovery file, by which a user's commands find the user's server: a small file in the
//! runtime directory. A listening server writes it, and removes it before it ends. Knows only files
//! and locks, not the use of the URL.
//!
//! A server [owns](exec_server_host::owned_file) the file while it runs. So a running server's file
//! can be distinguished from one left by a killed server without comparing pids, and a sandboxed
//! process, which can only read the file, cannot make a stale file look current.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use exec_server_host::owned_file::{has_owner, try_own};
use exec_server_transport::ListenUrl;
use rustix::fs::{Access, AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

const FILE: &str = "server.json";
const VARIABLE: &str = "XDG_RUNTIME_DIR";

/// The content of the file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RunningServer {
    pub(crate) url: String,
    pub(crate) pid: u32,
    pub(crate) version: String,
}

/// Dropping it removes the file.
#[derive(Debug)]
pub(crate) struct RuntimeFile {
    directory: OwnedFd,
    /// Open, and therefore owned.
    file: File,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum RuntimeFileError {
    #[error("cannot use {}: {source}", .path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error("{} is not a directory", .path.display())]
    NotADirectory { path: PathBuf },
    #[error("{} belongs to another user", .path.display())]
    Foreign { path: PathBuf },
    #[error("{} is open to other users (mode {mode:o}); set its mode to 700", .path.display())]
    Open { path: PathBuf, mode: u32 },
    #[error("{}: other processes keep the file locked", .path.display())]
    Contended { path: PathBuf },
}

impl RuntimeFile {
    /// Returns `None` if another server of the user was first.
    pub(crate) fn publish(url: &str) -> Result<Option<Self>, RuntimeFileError> {
        Self::publish_in(&runtime_directory(), url)
    }

    fn publish_in(path: &Path, url: &str) -> Result<Option<Self>, RuntimeFileError> {
        make_directory(path)?;
        let directory = open_private_directory(path)?;
        let Some(mut file) = own(&directory, path)? else {
            return Ok(None);
        };
        let running = RunningServer {
            url: url.to_owned(),
            pid: std::process::id(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
        };
        let text = serde_json::to_string(&running).expect("a struct of texts is JSON") + "\n";
        file.set_len(0)
            .and_then(|()| file.write_all(text.as_bytes()))
            .map_err(|source| RuntimeFileError::Io { path: path.join(FILE), source })?;
        Ok(Some(Self { directory, file }))
    }
}

/// Returns every directory whose discovery file this user's commands trust. Creates missing ones,
/// because another program that created one could redirect the user to its own server. Errors
/// surface when a server publishes its URL.
pub(crate) fn believed_directories() -> Vec<PathBuf> {
    let directories = runtime_directories();
    for directory in &directories {
        let _ = make_directory(directory);
    }
    directories
}

/// Returns the directories of [`believed_directories`] without creating any.
pub(crate) fn runtime_directories() -> Vec<PathBuf> {
    directories_for(std::env::var_os(VARIABLE), own_uid())
}

fn make_directory(path: &Path) -> Result<(), RuntimeFileError> {
    match rustix::fs::mkdir(path, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => Ok(()),
        Err(error) => Err(io_error(path, error)),
    }
}

impl Drop for RuntimeFile {
    fn drop(&mut self) {
        // Removes the file while this server still owns it: afterwards the name may belong to the
        // file of another server.
        if is_current(&self.directory, &self.file) {
            let _ = rustix::fs::unlinkat(&self.directory, FILE, AtFlags::empty());
        }
    }
}

/// Returns the running server of this user, if one has published its URL. An unsafe directory is
/// ignored.
pub(crate) fn running_server() -> Option<RunningServer> {
    running_server_in(&runtime_directory())
}

fn running_server_in(path: &Path) -> Option<RunningServer> {
    let directory = open_private_directory(path).ok()?;
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let mut file: File = rustix::fs::openat(&directory, FILE, flags, Mode::empty()).ok()?.into();
    let mut text = String::new();
    if !has_owner(&file).unwrap_or(false) || file.read_to_string(&mut text).is_err() {
        return None;
    }
    let running: RunningServer = serde_json::from_str(&text).ok()?;
    is_of_this_machine(&running.url).then_some(running)
}

/// Accepts only the URLs that servers publish, so that a manipulated file cannot redirect commands
/// to another machine.
fn is_of_this_machine(url: &str) -> bool {
    match url.parse() {
        Ok(ListenUrl::WebSocket(address)) => address.ip().is_loopback(),
        Ok(ListenUrl::Unix(_)) => true,
        _ => false,
    }
}

/// Takes ownership of the file; `None` if another server owns it.
fn own(directory: &OwnedFd, path: &Path) -> Result<Option<File>, RuntimeFileError> {
    const ATTEMPTS: usize = 1000;
    let failed = |source| RuntimeFileError::Io { path: path.join(FILE), source };
    for _ in 0..ATTEMPTS {
        let flags =
            OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = rustix::fs::openat(directory, FILE, flags, Mode::RUSR | Mode::WUSR)
            .map_err(|errno| failed(errno.into()))?;
        if try_own(&file).map_err(failed)? {
            if is_current(directory, &file) {
                return Ok(Some(file.into()));
            }
            // Its previous owner removed the file between `openat` and `try_own`.
        } else if has_owner(&file).map_err(failed)? {
            return Ok(None);
        } else if is_current(directory, &file) {
            // A process that can only read the file holds a lock, and could block the server
            // forever, so the file is replaced. If two servers replace it at the same time, one of
            // them may not be found.
            let _ = rustix::fs::unlinkat(directory, FILE, AtFlags::empty());
        }
        std::thread::yield_now();
    }
    Err(RuntimeFileError::Contended { path: path.join(FILE) })
}

fn is_current(directory: &OwnedFd, file: impl AsFd) -> bool {
    let named = rustix::fs::statat(directory, FILE, AtFlags::SYMLINK_NOFOLLOW);
    match (named, rustix::fs::fstat(file)) {
        (Ok(named), Ok(ours)) => (named.st_dev, named.st_ino) == (ours.st_dev, ours.st_ino),
        _ => false,
    }
}

/// Opens a directory that no other user can write: not a symlink, owned by this user, and closed to
/// others.
fn open_private_directory(path: &Path) -> Result<OwnedFd, RuntimeFileError> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let path_buf = || path.to_owned();
    let directory = match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(directory) => directory,
        Err(Errno::NOTDIR | Errno::LOOP) => {
            return Err(RuntimeFileError::NotADirectory { path: path_buf() });
        }
        Err(error) => return Err(io_error(path, error)),
    };
    let stat = rustix::fs::fstat(&directory).map_err(|error| io_error(path, error))?;
    if stat.st_uid != own_uid() {
        return Err(RuntimeFileError::Foreign { path: path_buf() });
    }
    let mode = Mode::from_raw_mode(stat.st_mode);
    if mode.intersects(Mode::RWXG | Mode::RWXO) {
        let mode = mode.as_raw_mode() & 0o777;
        return Err(RuntimeFileError::Open { path: path_buf(), mode });
    }
    Ok(directory)
}

fn runtime_directory() -> PathBuf {
    runtime_directories().swap_remove(0)
}

/// Returns the directories that commands of this user search, with `XDG_RUNTIME_DIR` and without.
/// `su` and `sudo` may leave the variable of another user behind; directories of other users are
/// ignored.
fn directories_for(xdg: Option<OsString>, uid: u32) -> Vec<PathBuf> {
    let belongs_to_user = |path: &PathBuf| {
        rustix::fs::stat(path).is_ok_and(|stat| {
            FileType::from_raw_mode(stat.st_mode) == FileType::Directory && stat.st_uid == uid
        })
    };
    let variable = xdg.map(PathBuf::from).filter(|path| path.is_absolute()).filter(belongs_to_user);
    // Any user may create a name in /tmp first. Without the variable, only root has a safer place.
    let of_root = (uid == 0).then(|| PathBuf::from("/run")).filter(belongs_to_user);
    let of_root = of_root.filter(|run| rustix::fs::access(run, Access::WRITE_OK).is_ok());
    let otherwise = of_root.map_or_else(
        || PathBuf::from(format!("/tmp/exec-server-{uid}")),
        |run| run.join("exec-server"),
    );
    variable.map(|directory| directory.join("exec-server")).into_iter().chain([otherwise]).collect()
}

pub(crate) fn own_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

fn io_error(path: &Path, error: Errno) -> RuntimeFileError {
    RuntimeFileError::Io { path: path.to_owned(), source: error.into() }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use rustix::fs::FlockOperation;

    use super::*;

    fn directory() -> (tempfile::TempDir, PathBuf) {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("exec-server");
        (parent, path)
    }

    #[test]
    fn a_server_is_found_until_it_ends() {
        let (_parent, path) = directory();
        assert_eq!(running_server_in(&path), None);
        let file = RuntimeFile::publish_in(&path, "ws://127.0.0.1:1").unwrap().unwrap();
        let found = running_server_in(&path).unwrap();
        assert_eq!((found.url.as_str(), found.pid), ("ws://127.0.0.1:1", std::process::id()));
        let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&path), mode(&path.join(FILE))), (0o700, 0o600));
        drop(file);
        assert_eq!(running_server_in(&path), None);
        assert!(!path.join(FILE).exists());
    }

    #[test]
    fn urls_of_other_machines_are_ignored() {
        for url in ["ws://203.0.113.7:80", "ws://evil.example:80", "wss://127.0.0.1:1", "stdio"] {
            let (_parent, path) = directory();
            let _file = RuntimeFile::publish_in(&path, url).unwrap().unwrap();
            assert_eq!(running_server_in(&path), None, "{url}");
        }
    }

    #[test]
    fn the_second_server_leaves_the_file_of_the_first_alone() {
        let (_parent, path) = directory();
        let first = RuntimeFile::publish_in(&path, "ws://127.0.0.1:1").unwrap().unwrap();
        assert!(RuntimeFile::publish_in(&path, "ws://127.0.0.1:2").unwrap().is_none());
        assert_eq!(running_server_in(&path).unwrap().url, "ws://127.0.0.1:1");
        drop(first);
        assert!(RuntimeFile::publish_in(&path, "ws://127.0.0.1:3").unwrap().is_some());
    }

    #[test]
    fn the_file_of_a_killed_server_is_ignored_and_replaced() {
        let (_parent, path) = directory();
        std::fs::create_dir(&path).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o700)).unwrap();
        let stale = r#"{"url":"ws://127.0.0.1:1","pid":1,"version":"0.0.1, and longer than ours"}"#;
        std::fs::write(path.join(FILE), stale).unwrap();
        assert_eq!(running_server_in(&path), None);
        let _file = RuntimeFile::publish_in(&path, "ws://127.0.0.1:2").unwrap().unwrap();
        assert_eq!(running_server_in(&path).unwrap().url, "ws://127.0.0.1:2");
    }

    #[test]
    fn a_directory_that_others_could_change_is_not_used() {
        let (parent, path) = directory();
        let refused = || RuntimeFile::publish_in(&path, "ws://127.0.0.1:1").unwrap_err();
        std::fs::create_dir(&path).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o770)).unwrap();
        assert!(matches!(refused(), RuntimeFileError::Open { mode: 0o770, .. }));
        std::fs::remove_dir(&path).unwrap();

        symlink(parent.path(), &path).unwrap();
        assert!(matches!(refused(), RuntimeFileError::NotADirectory { .. }));
        std::fs::remove_file(&path).unwrap();

        std::fs::write(&path, "").unwrap();
        assert!(matches!(refused(), RuntimeFileError::NotADirectory { .. }));
    }

    /// A sandboxed process can read the file.
    #[test]
    fn a_reader_of_the_file_cannot_own_it_or_block_a_server() {
        let (_parent, path) = directory();
        make_directory(&path).unwrap();
        std::fs::write(path.join(FILE), r#"{"url":"ws://127.0.0.1:1","pid":1,"version":"0"}"#)
            .unwrap();
        let reading = File::open(path.join(FILE)).unwrap();
        rustix::fs::flock(&reading, FlockOperation::LockExclusive).unwrap();
        assert_eq!(running_server_in(&path), None);
        // A POSIX lock: closing any descriptor of the file in this process releases it. Until then
        // it blocks the server's lock.
        rustix::fs::fcntl_lock(&reading, FlockOperation::NonBlockingLockShared).unwrap();
        let _file = RuntimeFile::publish_in(&path, "ws://127.0.0.1:2").unwrap().unwrap();
        assert_eq!(running_server_in(&path).unwrap().url, "ws://127.0.0.1:2");
    }

    #[test]
    fn a_server_removes_only_its_own_file() {
        let (_parent, path) = directory();
        let first = RuntimeFile::publish_in(&path, "ws://127.0.0.1:1").unwrap().unwrap();
        std::fs::remove_file(path.join(FILE)).unwrap();
        let _second = RuntimeFile::publish_in(&path, "ws://127.0.0.1:2").unwrap().unwrap();
        drop(first);
        assert_eq!(running_server_in(&path).unwrap().url, "ws://127.0.0.1:2");
    }

    #[test]
    fn the_runtime_directory_of_another_user_is_ignored() {
        let uid = own_uid();
        let ours = tempfile::tempdir().unwrap();
        let path = ours.path().to_owned();
        let other = 4_000_000;
        let fallback = PathBuf::from(format!("/tmp/exec-server-{other}"));
        let directories = directories_for(Some(path.clone().into()), uid);
        assert_eq!((&directories[0], directories.len()), (&path.join("exec-server"), 2));
        assert_eq!(directories_for(Some(path.into()), other), [&*fallback]);
        assert_eq!(directories_for(Some("relative".into()), other), [&*fallback]);
        assert_eq!(directories_for(None, other), [fallback]);
        assert_eq!(directories_for(None, uid), directories[1..]);
    }
}

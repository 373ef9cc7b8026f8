//! How commands of a user find the server of that user: a small file in the user's runtime directory, written by a
//! server that listens and removed at its end. Knows files and locks; what is done with the URL is not its business.
//!
//! A server owns the file for as long as it holds an exclusive `flock` on it. So a file that a killed server left
//! behind is told from a live one without asking whether some pid is still the same process.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use exec_server_transport::ListenUrl;
use rustix::fs::{AtFlags, FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

const FILE: &str = "server.json";

/// What the file says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RunningServer {
    pub(crate) url: String,
    pub(crate) pid: u32,
    pub(crate) version: String,
}

/// The file of this server; dropping it removes it.
#[derive(Debug)]
pub(crate) struct RuntimeFile {
    directory: OwnedFd,
    /// Holds the lock.
    _file: File,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum RuntimeFileError {
    #[error("cannot use {}: {source}", .path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error("{} is not a directory", .path.display())]
    NotADirectory { path: PathBuf },
    #[error("{} belongs to another user", .path.display())]
    Foreign { path: PathBuf },
    #[error("{} is open to other users (mode {mode:o}); make it 700", .path.display())]
    Open { path: PathBuf, mode: u32 },
    #[error("{}: the lock is never free", .path.display())]
    Contended { path: PathBuf },
}

impl RuntimeFile {
    /// Says where this server listens. `None` if another server of the user was first.
    pub(crate) fn publish(url: &str) -> Result<Option<Self>, RuntimeFileError> {
        Self::publish_in(&runtime_directory(), url)
    }

    fn publish_in(path: &Path, url: &str) -> Result<Option<Self>, RuntimeFileError> {
        make_directory(path)?;
        let directory = open_private_directory(path)?;
        let Some(mut file) = lock(&directory, path)? else {
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
        Ok(Some(Self { directory, _file: file }))
    }
}

/// Where servers of this user say that they run, if that can be made; publishing tells why not.
pub(crate) fn make_runtime_directory() {
    let _ = make_directory(&runtime_directory());
}

fn make_directory(path: &Path) -> Result<(), RuntimeFileError> {
    match rustix::fs::mkdir(path, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => Ok(()),
        Err(error) => Err(io_error(path, error)),
    }
}

impl Drop for RuntimeFile {
    fn drop(&mut self) {
        // Before the lock goes: afterwards the name may be another server's.
        let _ = rustix::fs::unlinkat(&self.directory, FILE, AtFlags::empty());
    }
}

/// The server of this user that is running, if one said so. An unsafe directory is as good as none.
pub(crate) fn running_server() -> Option<RunningServer> {
    running_server_in(&runtime_directory())
}

fn running_server_in(path: &Path) -> Option<RunningServer> {
    let directory = open_private_directory(path).ok()?;
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let mut file: File = rustix::fs::openat(&directory, FILE, flags, Mode::empty()).ok()?.into();
    // Whoever gets the lock finds a file that nobody owns.
    let is_owned =
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared) == Err(Errno::WOULDBLOCK);
    let mut text = String::new();
    if !is_owned || file.read_to_string(&mut text).is_err() {
        return None;
    }
    let running: RunningServer = serde_json::from_str(&text).ok()?;
    is_of_this_machine(&running.url).then_some(running)
}

/// Servers say nothing else. Whoever got at the file otherwise cannot send us away with it.
fn is_of_this_machine(url: &str) -> bool {
    match url.parse() {
        Ok(ListenUrl::WebSocket(address)) => address.ip().is_loopback(),
        Ok(ListenUrl::Unix(_)) => true,
        _ => false,
    }
}

/// The file with its lock, or `None` if another server holds it.
fn lock(directory: &OwnedFd, path: &Path) -> Result<Option<File>, RuntimeFileError> {
    const ATTEMPTS: usize = 1000;
    let failed = |error| io_error(&path.join(FILE), error);
    for _ in 0..ATTEMPTS {
        let flags =
            OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file =
            rustix::fs::openat(directory, FILE, flags, Mode::RUSR | Mode::WUSR).map_err(failed)?;
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) if is_current(directory, &file) => return Ok(Some(file.into())),
            // The owner removed it between our opening and our locking.
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => {
                // Someone who only looks shares the lock; a server does not.
                let shared = rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared);
                if shared == Err(Errno::WOULDBLOCK) {
                    return Ok(None);
                }
            }
            Err(error) => return Err(failed(error)),
        }
        std::thread::yield_now();
    }
    Err(RuntimeFileError::Contended { path: path.join(FILE) })
}

fn is_current(directory: &OwnedFd, file: &OwnedFd) -> bool {
    let named = rustix::fs::statat(directory, FILE, AtFlags::SYMLINK_NOFOLLOW);
    match (named, rustix::fs::fstat(file)) {
        (Ok(named), Ok(ours)) => (named.st_dev, named.st_ino) == (ours.st_dev, ours.st_ino),
        _ => false,
    }
}

/// A directory in which nobody else can put anything: no symlink, ours, closed to others.
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
    if stat.st_uid != rustix::process::geteuid().as_raw() {
        return Err(RuntimeFileError::Foreign { path: path_buf() });
    }
    let mode = Mode::from_raw_mode(stat.st_mode);
    if mode.intersects(Mode::RWXG | Mode::RWXO) {
        let mode = mode.as_raw_mode() & 0o777;
        return Err(RuntimeFileError::Open { path: path_buf(), mode });
    }
    Ok(directory)
}

pub(crate) fn runtime_directory() -> PathBuf {
    directory_for(std::env::var_os("XDG_RUNTIME_DIR"), rustix::process::geteuid().as_raw())
}

/// `su` and `sudo` may leave the variable of another user behind: a directory that is not ours does not count.
fn directory_for(xdg: Option<OsString>, uid: u32) -> PathBuf {
    let is_ours = |path: &PathBuf| {
        rustix::fs::stat(path).is_ok_and(|stat| {
            FileType::from_raw_mode(stat.st_mode) == FileType::Directory && stat.st_uid == uid
        })
    };
    match xdg.map(PathBuf::from).filter(|path| path.is_absolute()).filter(is_ours) {
        Some(directory) => directory.join("exec-server"),
        None => PathBuf::from(format!("/tmp/exec-server-{uid}")),
    }
}

fn io_error(path: &Path, error: Errno) -> RuntimeFileError {
    RuntimeFileError::Io { path: path.to_owned(), source: error.into() }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

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
    fn nobody_is_sent_to_another_machine() {
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
    fn what_a_killed_server_left_is_ignored_and_replaced() {
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

    #[test]
    fn the_runtime_directory_of_another_user_is_not_ours() {
        let uid = rustix::process::geteuid().as_raw();
        let ours = tempfile::tempdir().unwrap();
        let path = ours.path().to_owned();
        let fallback = |uid| PathBuf::from(format!("/tmp/exec-server-{uid}"));
        assert_eq!(directory_for(Some(path.clone().into()), uid), path.join("exec-server"));
        assert_eq!(directory_for(Some(path.into()), uid + 1), fallback(uid + 1));
        assert_eq!(directory_for(Some("relative".into()), uid), fallback(uid));
        assert_eq!(directory_for(None, uid), fallback(uid));
    }
}

//! The file of a Unix socket: appears with its final permissions, never replaces the socket of a
//! live server, and is removed at the end.

use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt as _};
use std::os::unix::net::UnixStream as BlockingUnixStream;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, RenameFlags, fchmod, renameat_with};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with,
};
use tokio::net::UnixListener;

use super::BindError;

const BACKLOG: i32 = 1024;

/// Removes the file when dropped, if it is still the one created here.
#[derive(Debug)]
pub(super) struct SocketFile {
    path: PathBuf,
    identity: (u64, u64),
}

impl SocketFile {
    fn new(path: &Path) -> io::Result<Self> {
        Ok(Self { path: path.to_owned(), identity: identity(path)? })
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if identity(&self.path).is_ok_and(|found| found == self.identity) {
            // A directory that became read-only leaves a stale file, which the next start replaces.
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let metadata = fs::symlink_metadata(path)?;
    Ok((metadata.dev(), metadata.ino()))
}

/// Listens at `path`. A dead socket there is replaced.
pub(super) fn listen_at(
    path: &Path,
    open_to_other_users: bool,
) -> Result<(UnixListener, SocketFile), BindError> {
    let failed = |source| BindError::Unix { path: path.to_owned(), source };
    // The socket already listens when it appears under its name, so a socket that refuses
    // connections there is dead.
    let staging = staging_path(path);
    let listener = bind_privately(&staging).map_err(failed)?;
    if open_to_other_users {
        fs::set_permissions(&staging, fs::Permissions::from_mode(0o666)).map_err(failed)?;
    }
    let mut staged = SocketFile::new(&staging).map_err(failed)?;
    install(&staging, path)?;
    staged.path = path.to_owned();
    Ok((listener, staged))
}

fn bind_privately(path: &Path) -> io::Result<UnixListener> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    // Linux gives the file that `bind` creates the mode of the socket, so the file is never open to
    // other users. A `chmod` after `bind` would leave it open for a moment, and a umask would apply
    // to all threads.
    fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    bind(&socket, &SocketAddrUnix::new(path)?)?;
    listen(&socket, BACKLOG)?;
    UnixListener::from_std(socket.into())
}

fn install(staging: &Path, path: &Path) -> Result<(), BindError> {
    let failed = |source| BindError::Unix { path: path.to_owned(), source };
    match rename_new(staging, path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        installed => return installed.map_err(failed),
    }
    let found = fs::symlink_metadata(path).map_err(failed)?;
    if !found.file_type().is_socket() {
        return Err(BindError::NotASocket { path: path.to_owned() });
    }
    if is_live(path) {
        return Err(BindError::PathInUse { path: path.to_owned() });
    }
    // Between the check and the removal, another server might take the name. So the dead socket is
    // first renamed to a unique name, and checked again there.
    let aside = staging_path(path);
    fs::rename(path, &aside).map_err(failed)?;
    if is_live(&aside) {
        if let Err(error) = rename_new(&aside, path) {
            tracing::error!(
                %error,
                path = %path.display(),
                now_at = %aside.display(),
                "cannot rename the socket of another server back to its path; rename it by hand"
            );
        }
        return Err(BindError::PathInUse { path: path.to_owned() });
    }
    fs::remove_file(&aside).map_err(failed)?;
    rename_new(staging, path).map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => BindError::PathInUse { path: path.to_owned() },
        _ => failed(error),
    })
}

fn rename_new(from: &Path, to: &Path) -> io::Result<()> {
    Ok(renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE)?)
}

/// Whether a server listens there. When in doubt, returns true.
fn is_live(path: &Path) -> bool {
    match BlockingUnixStream::connect(path) {
        Ok(_) => true,
        Err(error) => error.kind() != io::ErrorKind::ConnectionRefused,
    }
}

/// Returns a short, unique name next to `path`.
fn staging_path(path: &Path) -> PathBuf {
    path.with_file_name(format!(".xs-{:08x}", rand::random::<u32>()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names_in(directory: &Path) -> Vec<std::ffi::OsString> {
        fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name()).collect()
    }

    #[tokio::test]
    async fn the_socket_is_private_and_removed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x.sock");
        let (_listener, file) = listen_at(&path, false).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(is_live(&path));
        assert_eq!(names_in(directory.path()), ["x.sock"]);
        drop(file);
        assert!(names_in(directory.path()).is_empty());
    }

    #[tokio::test]
    async fn the_mode_is_set_before_the_name_exists() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("staged");
        let _listener = bind_privately(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let (_listener, _file) = listen_at(&directory.path().join("open"), true).unwrap();
        let mode = fs::metadata(directory.path().join("open")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o666);
    }

    #[tokio::test]
    async fn a_dead_socket_is_replaced_and_a_live_one_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x.sock");
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        let (_listener, _file) = listen_at(&path, false).unwrap();

        let error = listen_at(&path, false).unwrap_err();
        assert!(matches!(error, BindError::PathInUse { .. }), "{error}");
        assert!(is_live(&path));
        assert_eq!(names_in(directory.path()), ["x.sock"]);
    }

    #[tokio::test]
    async fn other_files_are_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x.sock");
        fs::write(&path, "precious").unwrap();
        assert!(matches!(listen_at(&path, false).unwrap_err(), BindError::NotASocket { .. }));
        assert_eq!(fs::read(&path).unwrap(), b"precious");
        assert_eq!(names_in(directory.path()), ["x.sock"]);

        fs::remove_file(&path).unwrap();
        let (_listener, file) = listen_at(&path, false).unwrap();
        fs::remove_file(&path).unwrap();
        fs::write(&path, "another program's").unwrap();
        drop(file);
        assert!(path.exists());
    }
}

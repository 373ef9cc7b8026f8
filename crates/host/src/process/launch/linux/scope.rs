//! Starts a spawner in a scope of the user's service manager, which delegates the scope's cgroup to
//! the spawner.
//!
//! An ordinary user in a login session has no cgroup in which to create others, but `systemd
//! --user` provides one: `systemd-run --scope` moves itself into a new scope and then execs the
//! given program.
//!
//! ```text
//! server ──fork──▶ systemd-run ──exec──▶ spawner, with variables ──exec──▶ spawner
//!    ▲                                                                       │ takes the cgroup
//!    └──────────────── the cgroup's path, or why it is unusable ────────────┘
//! ```
//!
//! The spawner and its keepers must be inside the scope: a process may enter a cgroup only if it
//! may write to the one that contains both its old and its new cgroup. Support is determined by
//! trying, and after any failure limits are enforced without cgroups.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{RecvFlags, SendFlags};

use super::spawner::{SPAWNER_ARG, SPAWNER_NAME};
use crate::process::limits::cgroup::Delegated;

/// `systemd-run` is not looked up in `PATH`, and neither is bubblewrap.
const PLACES: [&str; 3] =
    ["/usr/bin/systemd-run", "/bin/systemd-run", "/run/current-system/sw/bin/systemd-run"];
const RUNTIME_DIRECTORY: &str = "XDG_RUNTIME_DIR";
/// The variables through which `systemd-run` finds the manager.
const VARIABLES: [&str; 2] = [RUNTIME_DIRECTORY, "DBUS_SESSION_BUS_ADDRESS"];
/// The sockets of a manager. Which of them `systemd-run` uses depends on its version.
const SOCKETS: [&str; 2] = ["systemd/private", "bus"];

/// Makes the spawner exec itself again, without [`VARIABLES`].
pub(super) const ENTERED_ARG: &str = "__entered-scope";
/// Makes the spawner take over its current cgroup.
pub(super) const IN_SCOPE_ARG: &str = "__in-scope";

/// `systemd-run` itself waits a little longer for a service manager that does not respond.
const TIMEOUT: Duration = Duration::from_secs(20);
const MAX_REPORT_BYTES: usize = 8192;
const MAX_ERROR_BYTES: u64 = 512;
/// The first byte of a report.
const TAKEN: u8 = 1;
const REFUSED: u8 = 0;

#[derive(Debug, thiserror::Error)]
pub(super) enum NoScope {
    #[error("{RUNTIME_DIRECTORY} is not set to an absolute path")]
    NoRuntimeDirectory,
    #[error("{RUNTIME_DIRECTORY} ({}) belongs to another user", path.display())]
    Foreign { path: PathBuf },
    #[error("found no socket of this user's service manager in {}", path.display())]
    NoManager { path: PathBuf },
    #[error("systemd-run is not installed (looked for {})", PLACES.join(", "))]
    NotInstalled,
    #[error("systemd-run failed to create a scope: {0}")]
    Failed(String),
    #[error("the scope of systemd-run is unusable: {0}")]
    Useless(String),
    #[error("systemd-run did not create a usable scope within {} s", TIMEOUT.as_secs())]
    TimedOut,
    #[error("cannot open {} to run it in a scope: {source}", path.display())]
    Executable { path: PathBuf, source: io::Error },
    #[error("cannot use systemd-run: {0}")]
    Io(#[from] io::Error),
}

/// The means to run `systemd-run` on this machine. Creating it only inspects files.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ScopeMaker {
    program: &'static str,
    variables: Vec<(&'static str, OsString)>,
}

impl ScopeMaker {
    pub(super) fn find() -> Result<Self, NoScope> {
        let variables = VARIABLES.map(|name| (name, std::env::var_os(name)));
        let program = PLACES.into_iter().find(|place| Path::new(place).exists());
        Self::of(variables, program, rustix::process::geteuid().as_raw())
    }

    fn of(
        variables: [(&'static str, Option<OsString>); 2],
        program: Option<&'static str>,
        user: u32,
    ) -> Result<Self, NoScope> {
        let variables: Vec<_> =
            variables.into_iter().filter_map(|(name, value)| Some((name, value?))).collect();
        let directory = variables.iter().find(|(name, _)| *name == RUNTIME_DIRECTORY);
        let path = directory.map(|(_, value)| PathBuf::from(value));
        let path = path.filter(|path| path.is_absolute()).ok_or(NoScope::NoRuntimeDirectory)?;
        if fs::metadata(&path).is_ok_and(|metadata| metadata.uid() != user) {
            return Err(NoScope::Foreign { path });
        }
        if !SOCKETS.iter().any(|socket| path.join(socket).exists()) {
            return Err(NoScope::NoManager { path });
        }
        Ok(Self { program: program.ok_or(NoScope::NotInstalled)?, variables })
    }

    /// `theirs` is the spawner's end of its socket to the server.
    pub(super) fn start(
        &self,
        executable: &Path,
        descriptor_limit: Option<u64>,
        theirs: OwnedFd,
    ) -> Result<Child, NoScope> {
        let opened = File::open(executable)
            .map_err(|source| NoScope::Executable { path: executable.to_owned(), source })?;
        #[expect(clippy::disallowed_methods, reason = "this is where the host starts programs")]
        let mut command = Command::new(self.program);
        command
            .args(["--user", "--scope", "--quiet", "--collect", "--property=Delegate=yes"])
            // By default the manager limits all programs to a total of a few thousand tasks.
            .arg("--property=TasksMax=infinity")
            // The spawner and the keepers end with the server, not on TERM.
            .arg("--property=TimeoutStopSec=5s")
            .arg("--description=Limited processes of exec-server")
            // The executable is passed as a descriptor: its path may be `/proc/self/exe`, which in
            // `systemd-run` names another program.
            .args(["--", "/proc/self/fd/1", SPAWNER_ARG, ENTERED_ARG])
            .args(descriptor_limit.map(|limit| limit.to_string()))
            .env_clear()
            .envs(self.variables.iter().cloned())
            .current_dir("/")
            .stdin(Stdio::from(theirs))
            .stdout(opened)
            .stderr(Stdio::piped());
        Ok(command.spawn()?)
    }
}

/// Waits until the spawner has taken its cgroup, and returns the cgroup's path. Terminates the
/// spawner on failure.
pub(super) fn wait_for_cgroup(process: &mut Child, socket: &OwnedFd) -> Result<PathBuf, NoScope> {
    let outcome = receive_report(socket).and_then(|report| match report.split_first() {
        Some((&TAKEN, path)) => Ok(PathBuf::from(OsString::from_vec(path.to_vec()))),
        Some((_, reason)) => Err(NoScope::Useless(String::from_utf8_lossy(reason).into_owned())),
        None => Err(NoScope::Failed(String::new())),
    });
    if outcome.is_ok() {
        // The spawner writes nothing more to stderr.
        drop(process.stderr.take());
        return outcome;
    }
    let _ = process.kill();
    let _ = process.wait();
    // The process has ended, so this read cannot block.
    match (outcome, process.stderr.take()) {
        (Err(NoScope::Failed(_)), Some(stderr)) => Err(NoScope::Failed(first_line(stderr))),
        (outcome, _) => outcome,
    }
}

/// Receives the spawner's report. It is empty if the spawner, or `systemd-run` before it, has
/// exited.
fn receive_report(socket: &OwnedFd) -> Result<Vec<u8>, NoScope> {
    let timeout = Timespec { tv_sec: TIMEOUT.as_secs().cast_signed(), tv_nsec: 0 };
    let mut polled = [PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::IN)];
    let ready = rustix::io::retry_on_intr(|| poll(&mut polled, Some(&timeout)));
    if ready.map_err(io::Error::from)? == 0 {
        return Err(NoScope::TimedOut);
    }
    let mut report = vec![0; MAX_REPORT_BYTES];
    let received = rustix::net::recv(socket, &mut report[..], RecvFlags::DONTWAIT);
    let (len, _) = received.map_err(io::Error::from)?;
    report.truncate(len);
    Ok(report)
}

fn first_line(stderr: impl io::Read) -> String {
    let mut text = Vec::new();
    let _ = stderr.take(MAX_ERROR_BYTES).read_to_end(&mut text);
    let text = String::from_utf8_lossy(&text);
    match text.lines().map(str::trim).find(|line| !line.is_empty()) {
        // Control characters would reach the operator's terminal.
        Some(line) => line.replace(char::is_control, ""),
        None => "it exited without a message".to_owned(),
    }
}

/// Becomes the spawner, without [`VARIABLES`]. Runs in the process of `systemd-run` after its exec.
pub(super) fn start_again() -> ExitCode {
    #[expect(clippy::disallowed_methods, reason = "this is where the host starts programs")]
    let mut command = Command::new("/proc/self/exe");
    command
        .arg0(SPAWNER_NAME)
        .args([SPAWNER_ARG, IN_SCOPE_ARG])
        .args(std::env::args_os().skip(3))
        .env_clear();
    // Returns only on failure; the server then sees the socket close.
    let _ = command.exec();
    ExitCode::FAILURE
}

/// Takes over the cgroup of the scope and reports to the server. Runs in the spawner, before it has
/// children.
pub(super) fn take_cgroup(server: &OwnedFd) {
    let mut report = Vec::new();
    match Delegated::take() {
        Ok(delegated) => {
            report.push(TAKEN);
            report.extend_from_slice(delegated.path().as_os_str().as_bytes());
        }
        Err(error) => {
            report.push(REFUSED);
            report.extend_from_slice(error.to_string().as_bytes());
        }
    }
    report.truncate(MAX_REPORT_BYTES);
    let _ = rustix::net::send(server, &report, SendFlags::NOSIGNAL);
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    use super::*;

    const PROGRAM: Option<&str> = Some("/usr/bin/systemd-run");

    fn own_user() -> u32 {
        rustix::process::geteuid().as_raw()
    }

    fn found(directory: Option<&Path>, user: u32) -> Result<ScopeMaker, NoScope> {
        let directory = directory.map(|path| path.as_os_str().to_owned());
        ScopeMaker::of([(VARIABLES[0], directory), (VARIABLES[1], None)], PROGRAM, user)
    }

    #[test]
    fn the_manager_is_looked_for_in_the_users_runtime_directory() {
        assert!(matches!(found(None, 1), Err(NoScope::NoRuntimeDirectory)));
        assert!(matches!(found(Some(Path::new("run")), 1), Err(NoScope::NoRuntimeDirectory)));
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        assert!(matches!(found(Some(path), own_user()), Err(NoScope::NoManager { .. })));
        let _bus = UnixListener::bind(path.join("bus")).unwrap();
        let maker = found(Some(path), own_user()).unwrap();
        assert_eq!(maker.variables, [(RUNTIME_DIRECTORY, path.as_os_str().to_owned())]);
        let other = found(Some(path), own_user() + 1);
        assert!(matches!(other, Err(NoScope::Foreign { .. })), "{other:?}");
        let missing = ScopeMaker::of(
            [(VARIABLES[0], Some(path.into())), (VARIABLES[1], None)],
            None,
            own_user(),
        );
        assert!(matches!(missing, Err(NoScope::NotInstalled)));
    }

    fn answered(script: &str) -> Result<PathBuf, NoScope> {
        let kind = SocketType::SEQPACKET;
        let flags = SocketFlags::CLOEXEC;
        let (ours, theirs) = socketpair(AddressFamily::UNIX, kind, flags, None).unwrap();
        #[expect(clippy::disallowed_methods, reason = "stands for systemd-run")]
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]).stdin(Stdio::from(theirs)).stderr(Stdio::piped());
        let mut process = command.spawn().unwrap();
        // The command holds the other end of the socket.
        drop(command);
        wait_for_cgroup(&mut process, &ours)
    }

    #[test]
    fn the_spawners_report_decides_whether_its_scope_is_usable() {
        let path = answered("printf '\\001/sys/fs/cgroup/x' >&0").unwrap();
        assert_eq!(path, Path::new("/sys/fs/cgroup/x"));
        let useless = answered("printf '\\000no controllers' >&0").unwrap_err();
        assert_eq!(useless.to_string(), "the scope of systemd-run is unusable: no controllers");
        let failed = answered("echo; echo 'Failed to \x1bconnect' >&2; exit 1").unwrap_err();
        assert_eq!(failed.to_string(), "systemd-run failed to create a scope: Failed to connect");
        let silent = answered("exit 0").unwrap_err();
        assert!(silent.to_string().ends_with("without a message"), "{silent}");
    }
}

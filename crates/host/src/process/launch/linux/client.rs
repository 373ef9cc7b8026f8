//! The server's side of the spawner: starts it, replaces it, and sends it launches.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::pin::{Pin, pin};
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, Shutdown, SocketFlags, SocketType, socketpair};
use rustix::process::{Resource, getrlimit};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::super::command::Command;
use super::super::error::LaunchError;
use super::super::stdio::{ChildEnds, nonblocking};
use super::super::tree::Tree;
use super::descendants;
use super::link::KeeperLink;
use super::passing;
use super::scope::{self, NoScope, ScopeMaker};
use super::spawner::{SPAWNER_ARG, SPAWNER_NAME};
use super::wire::{
    self, Order, REPORT_LEN, Report, START, START_WITH_GATE, START_WITHOUT_NETWORK, Stage,
};
use crate::process::limits::cgroup::{Delegated, NoCgroup};
use crate::process::limits::{LimitsSupport, LimitsTier};
use crate::sandbox::NetworkNamespace;

/// The spawner of a server, and a second one for trees with limits if the server has no cgroup of
/// its own.
#[derive(Debug)]
pub(in super::super) struct Spawner {
    executable: PathBuf,
    /// The limit for programs; the server's own limit may have been raised since.
    descriptor_limit: Option<u64>,
    own_cgroup: Result<Delegated, NoCgroup>,
    /// The spawner in the server's cgroup.
    ordinary: CurrentSpawner,
    /// The spawner in a scope. Started when a limit first needs it or `limits` is first called.
    scoped: OnceLock<Result<CurrentSpawner, NoScope>>,
    limits: OnceLock<LimitsSupport>,
}

/// Replaced when a launch finds it dead.
type CurrentSpawner = Mutex<Arc<SpawnerProcess>>;

impl Spawner {
    pub(in super::super) fn executable(&self) -> &Path {
        &self.executable
    }

    pub(in super::super) fn start(executable: PathBuf) -> io::Result<Self> {
        require_kernel_support()?;
        let descriptor_limit = getrlimit(Resource::Nofile).current;
        // Before the spawner starts, because it must be in the same cgroup as the server.
        let own_cgroup = Delegated::take();
        let path = own_cgroup.as_ref().ok().map(|cgroup| cgroup.path().to_owned());
        let process = SpawnerProcess::start(&executable, descriptor_limit, path)?;
        let ordinary = Mutex::new(Arc::new(process));
        let (scoped, limits) = (OnceLock::new(), OnceLock::new());
        Ok(Self { executable, descriptor_limit, own_cgroup, ordinary, scoped, limits })
    }

    /// Returns `None` until the support is determined.
    pub(in super::super) fn known_limits(&self) -> Option<&LimitsSupport> {
        self.limits.get()
    }

    /// Determines the support once. This may query the user's service manager and wait for it.
    pub(in super::super) fn limits(&self) -> &LimitsSupport {
        self.limits.get_or_init(|| {
            let Err(no_cgroup) = &self.own_cgroup else {
                return LimitsSupport { tier: LimitsTier::Cgroup, obstacle: None };
            };
            match self.scoped() {
                Ok(_) => LimitsSupport { tier: LimitsTier::Systemd, obstacle: None },
                Err(no_scope) => {
                    let obstacle = Some(format!("{no_cgroup}, and {no_scope}").into());
                    LimitsSupport { tier: LimitsTier::Sampling, obstacle }
                }
            }
        })
    }

    fn scoped(&self) -> Result<&CurrentSpawner, &NoScope> {
        let start = || {
            let process = SpawnerProcess::start_in_scope(&self.executable, self.descriptor_limit)?;
            Ok(Mutex::new(Arc::new(process)))
        };
        self.scoped.get_or_init(start).as_ref()
    }

    /// Selects the spawner that enforces the program's limits in the tier that `limits` reports.
    fn spawner_for(&self, command: &Command) -> &CurrentSpawner {
        match &self.own_cgroup {
            Err(_) if command.limits.bound_tree() => self.scoped().unwrap_or(&self.ordinary),
            _ => &self.ordinary,
        }
    }

    pub(in super::super) async fn launch(
        &self,
        command: &Command,
        ends: ChildEnds,
        unwanted: impl Future<Output = ()>,
    ) -> Result<LaunchedTree, LaunchError> {
        let mut unwanted = pin!(unwanted);
        let gate_len = command.gate_sockets().map_or(0, |sockets| sockets.list().len());
        let spawner = self.spawner_for(command);
        let process = Arc::clone(&spawner.lock().unwrap_or_else(PoisonError::into_inner));
        let kind = match command.sandbox.as_ref().map(|plan| &plan.network_namespace) {
            None | Some(NetworkNamespace::Inherited) => START,
            Some(NetworkNamespace::Empty) => START_WITHOUT_NETWORK,
            Some(NetworkNamespace::Gated(_)) => START_WITH_GATE,
        };
        let start_by = |process: &SpawnerProcess| {
            let request = wire::encode_request(command, process.cgroup.as_deref())?;
            Ok::<_, LaunchError>(StartMessage { kind, request, gate_len })
        };
        let replacement;
        let mut used = &process;
        let mut outcome = process.launch(&start_by(&process)?, &ends, unwanted.as_mut()).await;
        if let Err(Unstarted::SpawnerGone(_)) = outcome {
            replacement =
                self.replace(spawner, &process).map_err(|error| self.unavailable(error))?;
            used = &replacement;
            outcome = used.launch(&start_by(used)?, &ends, unwanted).await;
        }
        let KeptProgram { pid, link, gate } = outcome.map_err(|unstarted| match unstarted {
            Unstarted::SpawnerGone(error) => self.unavailable(error),
            Unstarted::Setup(error) => LaunchError::from_setup(error),
            Unstarted::Unwanted => LaunchError::Terminated { program: command.program().into() },
            Unstarted::KeeperLost => LaunchError::KeeperLost { program: command.program().into() },
            Unstarted::Refused { stage, error } => match stage {
                Stage::Fork | Stage::Setup => LaunchError::from_setup(error),
                Stage::WorkingDirectory => LaunchError::from_chdir(command, error),
                Stage::Exec => LaunchError::from_exec(command, error),
                Stage::Limits => {
                    let cgroup = used.cgroup.clone().filter(|_| command.limits.bound_tree());
                    LaunchError::Limits { cgroup, source: error }
                }
                Stage::Sandbox(step) => LaunchError::from_sandbox(command, step, error),
            },
        })?;
        Ok(LaunchedTree { pid, tree: Tree::kept(pid, link), gate })
    }

    /// Starts a new spawner unless another launch has already replaced `dead`.
    fn replace(
        &self,
        spawner: &CurrentSpawner,
        dead: &Arc<SpawnerProcess>,
    ) -> io::Result<Arc<SpawnerProcess>> {
        let mut current = spawner.lock().unwrap_or_else(PoisonError::into_inner);
        if Arc::ptr_eq(&current, dead) {
            tracing::warn!(pid = dead.process.id(), "the spawner died; starting another");
            let (executable, limit) = (&self.executable, self.descriptor_limit);
            let fresh = match dead.is_in_scope {
                // No fallback to the ordinary spawner: limits would be weaker than reported.
                true => SpawnerProcess::start_in_scope(executable, limit).map_err(io::Error::other),
                false => SpawnerProcess::start(executable, limit, dead.cgroup.clone()),
            };
            *current = Arc::new(fresh?);
        }
        Ok(Arc::clone(&current))
    }

    fn unavailable(&self, source: io::Error) -> LaunchError {
        LaunchError::SpawnerUnavailable { executable: self.executable.clone(), source }
    }
}

/// The parts of a start: `kind` goes to the spawner, `request` to the keeper.
struct StartMessage {
    kind: [u8; 1],
    request: Vec<u8>,
    /// The number of gate sockets expected in return.
    gate_len: usize,
}

struct KeptProgram {
    pid: u32,
    link: KeeperLink,
    gate: Vec<OwnedFd>,
}

pub(in super::super) struct LaunchedTree {
    pub(in super::super) pid: u32,
    pub(in super::super) tree: Tree,
    pub(in super::super) gate: Vec<OwnedFd>,
}

/// Why an attempt to start a program failed.
enum Unstarted {
    /// The request was never read, so a retry cannot start the program twice.
    SpawnerGone(io::Error),
    /// The start was cancelled before the program ran.
    Unwanted,
    KeeperLost,
    Refused {
        stage: Stage,
        error: io::Error,
    },
    Setup(io::Error),
}

#[derive(Debug)]
struct SpawnerProcess {
    socket: OwnedFd,
    process: Child,
    /// The parent of the cgroups of its limited trees.
    cgroup: Option<PathBuf>,
    is_in_scope: bool,
}

impl SpawnerProcess {
    fn start(
        executable: &Path,
        descriptor_limit: Option<u64>,
        cgroup: Option<PathBuf>,
    ) -> io::Result<Self> {
        let (socket, theirs) = spawner_socket()?;
        #[expect(clippy::disallowed_methods, reason = "this is where the host starts programs")]
        let mut command = std::process::Command::new(executable);
        command
            .arg0(SPAWNER_NAME)
            .arg(SPAWNER_ARG)
            .args(descriptor_limit.map(|limit| limit.to_string()))
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let process = command.spawn()?;
        Ok(Self { socket, process, cgroup, is_in_scope: false })
    }

    fn start_in_scope(executable: &Path, descriptor_limit: Option<u64>) -> Result<Self, NoScope> {
        let maker = ScopeMaker::find()?;
        let (socket, theirs) = spawner_socket()?;
        let mut process = maker.start(executable, descriptor_limit, theirs)?;
        let cgroup = Some(scope::wait_for_cgroup(&mut process, &socket)?);
        Ok(Self { socket, process, cgroup, is_in_scope: true })
    }

    async fn launch(
        &self,
        start: &StartMessage,
        ends: &ChildEnds,
        unwanted: Pin<&mut impl Future<Output = ()>>,
    ) -> Result<KeptProgram, Unstarted> {
        let kind = SocketType::STREAM;
        let (ours, theirs) = socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)
            .map_err(|errno| Unstarted::Setup(errno.into()))?;
        let socket = nonblocking(ours, Interest::READABLE).map_err(Unstarted::Setup)?;

        // As much of the request as fits is sent before the descriptors are passed, so that the
        // keeper's first read finds it.
        let sent = passing::send(&socket, &start.request, &[]).unwrap_or(0);
        self.pass(start.kind, theirs, ends).await?;
        send_rest(&socket, start.request.get(sent..).unwrap_or_default()).await;
        receive_outcome(socket, start.gate_len, unwanted).await
    }

    async fn pass(
        &self,
        start: [u8; 1],
        keeper_end: OwnedFd,
        ends: &ChildEnds,
    ) -> Result<(), Unstarted> {
        let [stdin, stdout, stderr] = ends.descriptors();
        let descriptors = [keeper_end.as_fd(), stdin, stdout, stderr];
        let passed = send_when_possible(&self.socket, &start, &descriptors);
        match passed.await {
            Ok(_) => Ok(()),
            Err(error) => match Errno::from_io_error(&error) {
                Some(Errno::PIPE | Errno::CONNRESET) => Err(Unstarted::SpawnerGone(error)),
                _ => Err(Unstarted::Setup(error)),
            },
        }
    }
}

/// Returns the server's end and the spawner's.
fn spawner_socket() -> io::Result<(OwnedFd, OwnedFd)> {
    let kind = SocketType::SEQPACKET;
    let (socket, theirs) = socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)?;
    rustix::io::ioctl_fionbio(&socket, true)?;
    Ok((socket, theirs))
}

impl Drop for SpawnerProcess {
    fn drop(&mut self) {
        // The spawner exits when it sees this, within about a second even if it has orphans to
        // kill.
        let _ = rustix::net::shutdown(&self.socket, Shutdown::Both);
        let _ = self.process.wait();
    }
}

/// Sends the bytes that did not fit at first. If the keeper is gone, reading its report shows that.
async fn send_rest(socket: &AsyncFd<OwnedFd>, mut rest: &[u8]) {
    while !rest.is_empty() {
        let Ok(sent) = send_when_possible(socket, rest, &[]).await else {
            return;
        };
        rest = rest.get(sent..).unwrap_or_default();
    }
}

/// Sends, and waits for room if necessary. Only a full socket is registered with the reactor, as a
/// duplicate descriptor: a socket that is always registered for writing wakes the reactor for each
/// message that its peer takes.
async fn send_when_possible(
    socket: impl AsFd,
    bytes: &[u8],
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<usize> {
    match passing::send(&socket, bytes, descriptors) {
        Err(Errno::AGAIN) => {}
        sent => return Ok(sent?),
    }
    let watched = nonblocking(socket.as_fd().try_clone_to_owned()?, Interest::WRITABLE)?;
    let send = |socket: &OwnedFd| Ok(passing::send(socket, bytes, descriptors)?);
    watched.async_io(Interest::WRITABLE, send).await
}

async fn receive_outcome(
    socket: AsyncFd<OwnedFd>,
    gate_len: usize,
    unwanted: Pin<&mut impl Future<Output = ()>>,
) -> Result<KeptProgram, Unstarted> {
    let mut descriptors = Vec::new();
    let (received, is_unwanted) = receive_report(&socket, &mut descriptors, unwanted).await;
    let report = match received {
        Ok(report) => report,
        // A Unix socket closed with unread bytes resets its peer: the request was not read.
        Err(error) if Errno::from_io_error(&error) == Some(Errno::CONNRESET) => {
            return Err(if is_unwanted {
                Unstarted::Unwanted
            } else {
                Unstarted::SpawnerGone(error)
            });
        }
        Err(_) => return Err(Unstarted::KeeperLost),
    };
    match report {
        Some(Report::Started { pid }) => {
            let mut descriptors = descriptors.into_iter();
            let Some(leader) = descriptors.next() else {
                return Err(Unstarted::Setup(Errno::MFILE.into()));
            };
            let gate: Vec<_> = descriptors.by_ref().take(gate_len).collect();
            if gate.len() < gate_len {
                return Err(Unstarted::Setup(Errno::MFILE.into()));
            }
            let link = KeeperLink::new(socket, leader, descriptors.next());
            Ok(KeptProgram { pid, link, gate })
        }
        Some(Report::Failed { errno: libc::ECANCELED, .. }) if is_unwanted => {
            Err(Unstarted::Unwanted)
        }
        Some(Report::Failed { stage, errno }) => {
            Err(Unstarted::Refused { stage, error: io::Error::from_raw_os_error(errno) })
        }
        _ => Err(Unstarted::KeeperLost),
    }
}

/// Returns the first report, or `None` if the message is not a report, and whether `unwanted`
/// resolved before it arrived.
async fn receive_report(
    socket: &AsyncFd<OwnedFd>,
    descriptors: &mut Vec<OwnedFd>,
    unwanted: Pin<&mut impl Future<Output = ()>>,
) -> (io::Result<Option<Report>>, bool) {
    let mut receiving = pin!(socket.async_io(Interest::READABLE, |socket| {
        let mut bytes = [0; REPORT_LEN];
        let len = passing::receive(socket, &mut bytes, descriptors, RecvFlags::empty())?;
        // A report is one message on a fresh socket, so it is never split.
        Ok(if len == REPORT_LEN { Report::decode(&bytes) } else { None })
    }));
    tokio::select! {
        biased;
        received = &mut receiving => (received, false),
        () = unwanted => {
            // The order is read during the sandbox setup, or else by the keeper of the running
            // program.
            let _ = passing::send(socket, &Order::KillAll.encode(), &[]);
            (receiving.await, true)
        }
    }
}

/// `close_range` is the newest call that the spawner and the keepers need.
fn require_kernel_support() -> io::Result<()> {
    // SAFETY: no descriptor has such a number, so nothing is closed.
    let result =
        unsafe { libc::syscall(libc::SYS_close_range, libc::c_uint::MAX, libc::c_uint::MAX, 0) };
    let lacking = if result == -1 {
        format!("the system call close_range (Linux 5.9): {}", io::Error::last_os_error())
    } else if !descendants::is_available() {
        "a mounted /proc: cannot read /proc/self/stat".to_owned()
    } else {
        return Ok(());
    };
    Err(io::Error::new(io::ErrorKind::Unsupported, format!("keepers need {lacking}")))
}

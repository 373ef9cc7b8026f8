//! The spawner: a small, single-threaded process that forks keepers for the server.
//!
//! It stays small so that its forks stay cheap. It knows nothing of the programs: it passes each
//! keeper its descriptors and network namespace, and cleans up the trees of killed keepers.

use std::collections::HashSet;
use std::io;
use std::os::fd::{AsFd, FromRawFd, OwnedFd, RawFd};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use rustix::process::{DumpableBehavior, Pid, Resource, Rlimit, Signal};

use super::bubblewrapped;
use super::descendants;
use super::keeper;
use super::passing::{self, START_DESCRIPTORS};
use super::reaping::{self, Pause};
use super::scope;
use super::signals::{self, ChildDeaths};
use super::wire::{Report, START, START_WITH_GATE, START_WITHOUT_NETWORK, Stage};
use crate::process::limits::oom_score;
use crate::sandbox::setup::network_namespace::{NetworkNamespaceFds, NetworkNamespaces};

/// This first argument makes an executable run as the spawner.
pub const SPAWNER_ARG: &str = "__spawner";
/// The spawner's name in `ps`.
pub(super) const SPAWNER_NAME: &str = "exec-server: spawner";

/// How long the spawner keeps killing orphans after the server has closed its end of the socket.
/// Processes that survive this cannot be killed, and the server may be waiting for the spawner to
/// exit.
const LAST_EFFORT: Duration = Duration::from_secs(1);

/// Runs the spawner until the server closes its end of the socket. The spawner's end is stdin.
/// Call it at the very start of `main`, before any thread exists, if the first argument is
/// [`SPAWNER_ARG`].
///
/// Further arguments select the process that bubblewrap runs inside a sandbox, or a spawner in a
/// systemd scope.
pub fn run_spawner() -> ExitCode {
    let mut arguments = std::env::args_os().skip(2).peekable();
    let first = arguments.peek().cloned().unwrap_or_default();
    if first == bubblewrapped::INSIDE_ARG {
        return bubblewrapped::run_inside();
    }
    if first == scope::ENTERED_ARG {
        return scope::start_again();
    }
    let is_in_scope = first == scope::IN_SCOPE_ARG;
    let limit = arguments.nth(usize::from(is_in_scope));
    let limit = limit.and_then(|limit| limit.to_str()?.parse().ok());
    match Spawner::prepare(limit) {
        Ok(spawner) => {
            if is_in_scope {
                scope::take_cgroup(&spawner.server);
            }
            spawner.run();
            ExitCode::SUCCESS
        }
        Err(_) => ExitCode::FAILURE,
    }
}

struct Spawner {
    server: OwnedFd,
    deaths: ChildDeaths,
    /// Invariant: every other child of the spawner is an orphan of a killed keeper.
    keepers: HashSet<Pid>,
    /// The pause before the next attempt to kill orphans. Set while there may be any.
    orphans: Option<Pause>,
    networks: NetworkNamespaces,
    /// Whether to prepare namespaces for managed networks. Set by each start that needs one.
    prepares: bool,
}

impl Spawner {
    fn prepare(descriptor_limit: Option<u64>) -> io::Result<Self> {
        signals::block_all();
        signals::reset_dispositions();
        let server = isolate_descriptors()?;
        let _ = rustix::process::setsid();
        rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
        // Otherwise a program of the same user could read or control the spawner through /proc.
        rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
        if let Some(limit) = descriptor_limit {
            let maximum = rustix::process::getrlimit(Resource::Nofile).maximum;
            let limit = Rlimit { current: Some(limit), maximum };
            rustix::process::setrlimit(Resource::Nofile, limit)?;
        }
        oom_score::prepare();
        let deaths = ChildDeaths::watch()?;
        Ok(Self {
            server,
            deaths,
            keepers: HashSet::new(),
            orphans: None,
            networks: NetworkNamespaces::default(),
            prepares: false,
        })
    }

    fn run(mut self) {
        let mut give_up = None;
        while give_up.is_none_or(|at| self.orphans.is_some() && Instant::now() < at) {
            let server = give_up.is_none().then(|| self.server.as_fd());
            if self.prepares && server.is_some_and(|server| !reaping::has_message(server)) {
                // SAFETY: this process has one thread.
                self.prepares = unsafe { self.networks.prepare() };
                continue;
            }
            let woken =
                reaping::wait_for(&self.deaths, server, self.orphans.as_mut().map(Pause::take));
            if woken.by_death {
                self.deaths.clear();
                self.reap();
            }
            if self.orphans.is_some() {
                self.kill_orphans();
            }
            if woken.by_message && self.serve() == Server::Gone {
                self.wake_keepers();
                give_up = Some(Instant::now() + LAST_EFFORT);
            }
        }
    }

    fn reap(&mut self) {
        while let Ok(Some(dead)) = reaping::reap() {
            // A keeper that exits normally has no children left.
            if self.keepers.remove(&dead.pid) && dead.status != 0 {
                self.orphans = Some(Pause::first());
            }
        }
    }

    fn kill_orphans(&mut self) {
        if descendants::kill_children(|child| !self.keepers.contains(&child)) == 0 {
            self.orphans = None;
        }
    }

    /// Continues keepers that a program has stopped, so that they see that the server is gone.
    fn wake_keepers(&self) {
        for keeper in &self.keepers {
            let _ = rustix::process::kill_process(*keeper, Signal::CONT);
        }
    }

    fn serve(&mut self) -> Server {
        let mut descriptors = Vec::with_capacity(START_DESCRIPTORS);
        let mut message = START;
        let flags = RecvFlags::DONTWAIT;
        match passing::receive(&self.server, &mut message, &mut descriptors, flags) {
            Ok(0) => return Server::Gone,
            Err(Errno::AGAIN | Errno::INTR) => return Server::Present,
            Err(_) => return Server::Gone,
            Ok(_) => {}
        }
        // With `None`, a keeper that needs a namespace creates one.
        let network = match message {
            // SAFETY: this process has one thread.
            START_WITHOUT_NETWORK => unsafe { self.networks.empty() },
            START_WITH_GATE => self.networks.take_managed(),
            _ => None,
        };
        if let Ok([socket, stdin, stdout, stderr]) =
            <[OwnedFd; START_DESCRIPTORS]>::try_from(descriptors)
        {
            self.fork_keeper(socket, [stdin, stdout, stderr], network.as_ref());
        }
        self.prepares |= message == START_WITH_GATE;
        Server::Present
    }

    fn fork_keeper(
        &mut self,
        socket: OwnedFd,
        stdio: [OwnedFd; 3],
        network: Option<&NetworkNamespaceFds>,
    ) {
        // SAFETY: this process has one thread, so the child may run ordinary code.
        match unsafe { libc::fork() } {
            -1 => {
                let errno = io::Error::last_os_error().raw_os_error().unwrap_or(libc::EAGAIN);
                let report = Report::Failed { stage: Stage::Fork, errno }.encode();
                let _ = rustix::net::send(&socket, &report, SendFlags::NOSIGNAL);
            }
            0 => {
                // Invariant: only the spawner has this socket open, so that the server notices when
                // the spawner dies.
                // SAFETY: the child never leaves this arm, so nothing uses the descriptor again.
                unsafe { libc::close(SERVER_FD) };
                // A keeper may live long, and would keep unused namespaces alive.
                drop(std::mem::take(&mut self.networks));
                keeper::keep(socket, stdio, &self.deaths, network);
                // SAFETY: ends the process; nothing in it needs cleanup.
                unsafe { libc::_exit(0) }
            }
            pid => self.keepers.extend(Pid::from_raw(pid)),
        }
    }
}

#[derive(PartialEq, Eq)]
enum Server {
    Present,
    Gone,
}

const SERVER_FD: RawFd = 3;

/// Keeps the server's socket as descriptor 3 and /dev/null as 0, 1 and 2, and closes all others.
///
/// Invariant: 0 to 2 stay open, here and in keepers, so no received descriptor has one of these
/// numbers.
fn isolate_descriptors() -> io::Result<OwnedFd> {
    // SAFETY: the process has just started; no other code owns any descriptor yet.
    unsafe {
        if libc::dup3(0, SERVER_FD, libc::O_CLOEXEC) == -1
            || libc::syscall(libc::SYS_close_range, SERVER_FD + 1, libc::c_uint::MAX, 0) == -1
        {
            return Err(io::Error::last_os_error());
        }
        let null = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC);
        if null == -1 {
            return Err(io::Error::last_os_error());
        }
        for number in 0..SERVER_FD {
            libc::dup2(null, number);
        }
        libc::close(null);
        Ok(OwnedFd::from_raw_fd(SERVER_FD))
    }
}

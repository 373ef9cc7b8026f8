//! The process that enters the namespaces of a sandbox, so that the keeper stays outside.
//!
//! ```text
//! keeper ──vfork──▶ stage: new namespaces, mounts ──clone──▶ init
//!    │                └───────────────────────────vfork───▶ program
//!    └─ parent of all three; the stage ends when the program runs
//! ```
//!
//! Outside, the keeper sees the processes of the tree under their host pids, is out of their reach,
//! and can remove placeholders. The stage shares the keeper's memory and descriptors
//! (`CLONE_VM | CLONE_VFORK | CLONE_FILES`) while the keeper is suspended. So it is ordinary code
//! that happens to run in other namespaces, and the keeper finds its results in memory.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, getppid, set_parent_process_death_signal};

use super::child::{self, Failure, Parent, Start};
use super::wire::{Request, Stage};
use crate::child_stack::ChildStack;
use crate::sandbox::NetworkNamespace::{Empty, Gated, Inherited};
use crate::sandbox::Plan;
use crate::sandbox::report::step::SandboxStep;
use crate::sandbox::setup::init::Init;
use crate::sandbox::setup::lockdown::Lockdown;
use crate::sandbox::setup::network_namespace::NetworkNamespaceFds;
use crate::sandbox::setup::placeholder::Placeholders;
use crate::sandbox::setup::start_cancellation::StartCancellation;
use crate::sandbox::setup::terminals::OwnTerminals;
use crate::sandbox::setup::{gate_sockets, local_routes, mounts, namespaces};

/// Enough to open files and build rulesets in a debug build.
const STACK_LEN: usize = 512 << 10;

/// A program in its namespaces and their init. Both are children of the caller.
pub(super) struct Entered {
    pub(super) pid: Pid,
    pub(super) pidfd: OwnedFd,
    pub(super) init: Init,
    pub(super) gate: Vec<OwnedFd>,
}

pub(super) struct Task<'a> {
    pub(super) request: &'a Request<'a>,
    pub(super) stdio: &'a [OwnedFd; 3],
    pub(super) plan: &'a Plan,
    pub(super) placeholders: &'a Placeholders,
    /// The network namespace of the plan, if the spawner provided it.
    pub(super) network: Option<&'a NetworkNamespaceFds>,
    /// The cgroup of the program. The stage and init stay in the keeper's.
    pub(super) cgroup: Option<BorrowedFd<'a>>,
    pub(super) cancellation: StartCancellation<'a>,
}

/// A failure may leave children behind.
pub(super) fn start(task: Task<'_>) -> Result<Entered, Failure> {
    let mut errand = Errand { task, keeper: rustix::process::getpid(), outcome: None };
    let stack = ChildStack::new(STACK_LEN)
        .map_err(|errno| Failure { stage: Stage::Fork, errno: errno.raw_os_error() })?;
    // SAFETY: the stack is big enough. It outlives the child's use of it, as does `errand`: with
    // CLONE_VFORK this call returns only once the child is gone. Until then nothing else uses this
    // memory except `Init`, which keeps to its own part.
    let pid = unsafe {
        libc::clone(
            run,
            stack.top(),
            libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_FILES | libc::SIGCHLD,
            (&raw mut errand).cast(),
        )
    };
    let Some(pid) = Pid::from_raw(pid).filter(|_| pid > 0) else {
        let errno = io::Error::last_os_error().raw_os_error().unwrap_or(libc::EAGAIN);
        return Err(Failure { stage: Stage::Fork, errno });
    };
    let _ = rustix::process::waitpid(Some(pid), WaitOptions::empty());
    // If there is no outcome, the stage was killed.
    errand.outcome.unwrap_or(Err(SandboxStep::Namespaces.failed(Errno::INTR).into()))
}

struct Errand<'a> {
    task: Task<'a>,
    keeper: Pid,
    outcome: Option<Result<Entered, Failure>>,
}

extern "C" fn run(errand: *mut libc::c_void) -> libc::c_int {
    // SAFETY: `start` passes its errand and is suspended while this runs.
    let errand = unsafe { &mut *errand.cast::<Errand<'_>>() };
    errand.outcome = Some(errand.task.perform(errand.keeper));
    0
}

impl Task<'_> {
    /// Sets up the sandbox and starts the program. Each step needs the one before: mounts must not
    /// leave the namespace, `/proc` belongs to the first process of the PID namespace, and
    /// Landlock's rules apply to the final mounts.
    fn perform(&self, keeper: Pid) -> Result<Entered, Failure> {
        let gate = self.enter_namespaces()?;
        self.end_with(keeper).map_err(|errno| SandboxStep::Namespaces.failed(errno))?;
        mounts::isolate()?;
        let init = Init::start(self.plan.fresh_proc)?;
        mounts::arrange(&self.plan.mounts, self.placeholders, self.cancellation)?;
        // A requested terminal has its name in the shared `/dev/pts`, which a private one would
        // cover.
        let own_terminals = if self.plan.own_terminals && !self.request.terminal {
            OwnTerminals::mount()
        } else {
            None
        };
        let mut terminals: Vec<BorrowedFd<'_>> =
            own_terminals.iter().flat_map(OwnTerminals::places).collect();
        terminals.extend(self.request.terminal.then(|| self.stdio[0].as_fd()));
        let lockdown = Lockdown::prepare(self.plan, &terminals)?;
        let (pid, pidfd) = child::start(&Start {
            strings: &self.request.strings,
            terminal: self.request.terminal,
            stdio: self.stdio,
            inherited: &[],
            lockdown: Some(&lockdown),
            ignores_signals: false,
            parent: Parent::ParentOfCaller,
            limits: self.request.limits.as_ref(),
            cgroup: self.cgroup,
        })?;
        Ok(Entered { pid, pidfd, init, gate })
    }

    /// Returns the sockets of the gate, which only this process may bind: the program has no
    /// capabilities.
    fn enter_namespaces(&self) -> Result<Vec<OwnedFd>, Failure> {
        let sockets = match (&self.plan.network_namespace, self.network) {
            (Inherited, _) => {
                namespaces::enter(false)?;
                return Ok(Vec::new());
            }
            (Empty, None) => {
                namespaces::enter(true)?;
                return Ok(Vec::new());
            }
            (Empty, Some(network)) => {
                namespaces::enter_with(network)?;
                return Ok(Vec::new());
            }
            (Gated(sockets), Some(network)) => {
                namespaces::enter_with(network)?;
                sockets
            }
            (Gated(sockets), None) => {
                namespaces::enter(true)?;
                local_routes::route_everything_to_loopback()?;
                sockets
            }
        };
        Ok(gate_sockets::bind_all(sockets)?)
    }

    /// Makes this process die with its keeper: a killed keeper can no longer kill it, and the
    /// spawner may be gone too. Call it after all changes of credentials: each would undo it.
    fn end_with(&self, keeper: Pid) -> Result<(), Errno> {
        set_parent_process_death_signal(Some(Signal::KILL))?;
        if getppid() != Some(keeper) {
            return Err(Errno::CANCELED);
        }
        self.cancellation.check()
    }
}

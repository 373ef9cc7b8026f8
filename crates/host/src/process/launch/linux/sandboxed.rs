//! Starts a program according to its plan, and holds the parts of the sandbox that must last as
//! long as its tree.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::process::{Pid, WaitOptions};

use super::bubblewrapped::{self, Wrapped};
use super::child::{self, Failure, Parent, Start};
use super::descendants;
use super::stage;
use super::wire::Request;
use crate::sandbox::report::step::SandboxStep;
use crate::sandbox::setup::init::Init;
use crate::sandbox::setup::lockdown::Lockdown;
use crate::sandbox::setup::missing_roots;
use crate::sandbox::setup::network_namespace::NetworkNamespaceFds;
use crate::sandbox::setup::placeholder::Placeholders;
use crate::sandbox::setup::start_cancellation::StartCancellation;
use crate::sandbox::{Plan, Tier};

#[derive(Debug)]
pub(super) struct Started {
    pub(super) pid: Pid,
    pub(super) pidfd: OwnedFd,
    pub(super) confines: Confines,
    /// The sockets of the program's gate, in the order of the plan.
    pub(super) gate: Vec<OwnedFd>,
}

/// The parts of a sandbox that must last as long as any process of the tree.
#[derive(Debug, Default)]
pub(super) struct Confines {
    init: Option<Init>,
    /// Processes created by bubblewrap.
    wrapping: Vec<Pid>,
    placeholders: Placeholders,
}

impl Confines {
    /// Returns the processes that do not count as descendants of the program: those of the sandbox
    /// and, under bubblewrap, the program itself.
    pub(super) fn overhead(&self) -> impl Iterator<Item = Pid> {
        self.init.as_ref().map(Init::pid).into_iter().chain(self.wrapping.iter().copied())
    }

    /// Returns the processes created by bubblewrap, including the program.
    pub(super) fn wrapping(&self) -> impl Iterator<Item = Pid> {
        self.wrapping.iter().copied()
    }

    /// Returns the process of the tree that shares the keeper's memory.
    pub(super) fn init(&self) -> Option<Pid> {
        self.init.as_ref().map(Init::pid)
    }

    pub(super) fn program_is_gone(&self) {
        if let Some(init) = &self.init {
            init.program_is_gone();
        }
    }

    /// Removes the remains of the sandbox. Called when no process of the tree is alive.
    pub(super) fn tear_down(&mut self) {
        self.init = None;
        drop(std::mem::take(&mut self.placeholders));
    }
}

/// Starts the program, in its sandbox if the request has one. If the sandbox fails, the program is
/// not started.
pub(super) fn start(
    request: &Request<'_>,
    stdio: &[OwnedFd; 3],
    network: Option<&NetworkNamespaceFds>,
    cgroup: Option<BorrowedFd<'_>>,
    cancellation: StartCancellation<'_>,
) -> Result<Started, Failure> {
    let Some(plan) = request.sandbox else {
        return start_here(request, stdio, None, cgroup);
    };
    let mut plan = Plan::decode(plan).ok_or(SandboxStep::Plan.failed(Errno::PROTO))?;
    missing_roots::make(&mut plan.mounts);
    match &plan.tier {
        Tier::Direct => {
            let terminal = request.terminal.then(|| stdio[0].as_fd());
            let lockdown = Lockdown::prepare(&plan, terminal.as_slice())?;
            start_here(request, stdio, Some(&lockdown), cgroup)
        }
        Tier::Namespaces => {
            let placeholders = Placeholders::hold(&plan.mounts, cancellation)?;
            let task = stage::Task {
                request,
                stdio,
                plan: &plan,
                placeholders: &placeholders,
                network,
                cgroup,
                cancellation,
            };
            let entered = stage::start(task);
            let stage::Entered { pid, pidfd, init, gate } =
                entered.inspect_err(|_| end_children())?;
            let confines = Confines { init: Some(init), placeholders, ..Confines::default() };
            Ok(Started { pid, pidfd, confines, gate })
        }
        Tier::Bubblewrap(program) => {
            let placeholders = Placeholders::hold(&plan.mounts, cancellation)?;
            let outside =
                bubblewrapped::Outside { placeholders: &placeholders, cgroup, cancellation };
            let wrapped = bubblewrapped::start(request, stdio, program, &plan, outside);
            let Wrapped { pid, pidfd, wrapping, gate } = wrapped.inspect_err(|_| end_children())?;
            let confines = Confines { wrapping, placeholders, ..Confines::default() };
            Ok(Started { pid, pidfd, confines, gate })
        }
        Tier::Seatbelt(_) => Err(SandboxStep::Plan.failed(Errno::OPNOTSUPP).into()),
    }
}

fn start_here(
    request: &Request<'_>,
    stdio: &[OwnedFd; 3],
    lockdown: Option<&Lockdown>,
    cgroup: Option<BorrowedFd<'_>>,
) -> Result<Started, Failure> {
    let (pid, pidfd) = child::start(&Start {
        strings: &request.strings,
        terminal: request.terminal,
        stdio,
        inherited: &[],
        lockdown,
        ignores_signals: false,
        parent: Parent::Caller,
        limits: request.limits.as_ref(),
        cgroup,
    })?;
    Ok(Started { pid, pidfd, confines: Confines::default(), gate: Vec::new() })
}

/// Kills and reaps the children left by a failed start before its placeholders are removed: as long
/// as a child lives, mounts may cover them.
fn end_children() {
    while descendants::kill_children(|_| true) > 0 {
        if rustix::process::wait(WaitOptions::empty()).is_err() {
            return;
        }
    }
}

//! State shared by a process's handle and its supervisor: orders, queued while the tree starts, and
//! the outcome.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tokio::sync::watch;

use super::denial::Denial;
use super::handle::Terminate;
use super::launch::{EndedBy, PtyMaster, PtySize, Signal, TreeControl};
use super::log::{Log, LogLimits};
use super::stdin::StdinQueue;
use crate::network::gate::GateSummary;
use crate::sandbox::Network;

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) log: Log,
    pub(super) stdin: StdinQueue,
    phase: Mutex<Phase>,
    /// When to kill the tree. Set by a graceful termination, and by a kill during the start.
    pub(super) kill_at: watch::Sender<Option<tokio::time::Instant>>,
    /// Why the server ended the process of its own accord. Set before it does so; the first reason
    /// wins.
    pub(super) ended_by: OnceLock<EndedBy>,
    /// True once the start has succeeded or failed.
    pub(super) decided: watch::Sender<bool>,
    /// True once the tree has ended; see [`super::Process::is_gone`].
    pub(super) gone: watch::Sender<bool>,
    /// Set before the program runs, if it has a sandbox.
    pub(super) network: Arc<OnceLock<Network>>,
    /// Set before the exit is recorded, if the process seems to have failed because of a denial.
    pub(super) denial: OnceLock<Denial>,
    /// Set before the exit is recorded, if the process has a gate and its exit was observed.
    pub(super) network_use: OnceLock<GateSummary>,
}

/// The phase of a process, which decides where its orders go.
#[derive(Debug)]
pub(super) enum Phase {
    /// Orders wait until the tree runs.
    Starting {
        orders: Vec<Order>,
    },
    Running {
        tree: TreeControl,
        pty: Option<Arc<PtyMaster>>,
    },
    Over,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum Order {
    Signal(Signal),
    Resize(PtySize),
    Kill,
}

const FAR_FUTURE: Duration = Duration::from_secs(365 * 24 * 60 * 60);
/// Further orders during a start are dropped, except a kill.
const MAX_EARLY_ORDERS: usize = 1024;

impl Shared {
    pub(super) fn new(limits: LogLimits, has_stdin: bool) -> Self {
        Self {
            log: Log::new(limits),
            stdin: StdinQueue::new(has_stdin),
            phase: Mutex::new(Phase::Starting { orders: Vec::new() }),
            kill_at: watch::Sender::new(None),
            ended_by: OnceLock::new(),
            decided: watch::Sender::new(false),
            gone: watch::Sender::new(false),
            network: Arc::default(),
            denial: OnceLock::new(),
            network_use: OnceLock::new(),
        }
    }

    pub(super) fn phase(&self) -> MutexGuard<'_, Phase> {
        self.phase.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn order(&self, order: Order) {
        match &mut *self.phase() {
            // A kill replaces all earlier orders and is never dropped. It also aborts the start if
            // still possible.
            Phase::Starting { orders } if matches!(order, Order::Kill) => {
                *orders = vec![order];
                self.kill_at.send_replace(Some(tokio::time::Instant::now()));
            }
            Phase::Starting { orders } if orders.len() < MAX_EARLY_ORDERS => orders.push(order),
            Phase::Starting { .. } | Phase::Over => {}
            Phase::Running { tree, pty } => carry_out(order, tree, pty.as_deref()),
        }
    }

    /// Ends the whole tree. Returns whether the process itself was still running.
    pub(super) fn terminate(&self, how: Terminate) -> bool {
        let running = !self.exited();
        match how {
            Terminate::Graceful(grace) if running => {
                self.order(Order::Signal(Signal::Terminate));
                let now = tokio::time::Instant::now();
                let deadline = now.checked_add(grace).unwrap_or(now + FAR_FUTURE);
                self.kill_at.send_modify(|kill_at| {
                    *kill_at = Some(kill_at.map_or(deadline, |earlier| earlier.min(deadline)));
                });
            }
            Terminate::Force | Terminate::Graceful(_) => self.order(Order::Kill),
        }
        running
    }

    pub(super) fn terminate_because(&self, reason: EndedBy, how: Terminate) -> bool {
        if !self.exited() {
            let _ = self.ended_by.set(reason);
        }
        self.terminate(how)
    }

    pub(super) fn exited(&self) -> bool {
        self.log.progress().exit.is_some()
    }

    pub(super) fn run(&self, tree: TreeControl, pty: Option<Arc<PtyMaster>>) {
        let mut phase = self.phase();
        if let Phase::Starting { orders } = &*phase {
            for &order in orders {
                carry_out(order, &tree, pty.as_deref());
            }
        }
        *phase = Phase::Running { tree, pty };
        drop(phase);
        self.decided.send_replace(true);
    }

    pub(super) fn over(&self) {
        *self.phase() = Phase::Over;
        self.decided.send_replace(true);
        self.stdin.close();
        self.gone.send_replace(true);
    }
}

fn carry_out(order: Order, tree: &TreeControl, pty: Option<&PtyMaster>) {
    match (order, pty) {
        (Order::Kill, _) => tree.kill_all(),
        (Order::Signal(signal @ (Signal::Interrupt | Signal::Quit)), Some(pty)) => {
            if !pty.foreground_is(tree.leader()) {
                tree.signal(signal);
            }
            if let Err(error) = pty.signal_foreground(signal) {
                let pid = tree.leader();
                tracing::debug!(%error, pid, ?signal, "cannot signal the foreground process group of a terminal");
            }
        }
        (Order::Signal(signal), _) => tree.signal(signal),
        (Order::Resize(size), Some(pty)) => {
            if let Err(error) = pty.resize(size) {
                tracing::debug!(%error, pid = tree.leader(), ?size, "cannot resize a terminal");
            }
        }
        (Order::Resize(_), None) => {}
    }
}

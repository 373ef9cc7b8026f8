//! A handle to a process, from its start to the death of its last descendant.

use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use tokio::sync::oneshot;

use super::denial::Denial;
use super::gate::Confinement;
use super::launch::{Command, EndedBy, Io, LaunchError, Launcher, PtySize, Signal};
use super::location::ProcessLocation;
use super::log::{Log, LogLimits};
use super::orders::{Order, Phase, Shared};
use super::stdin::{OfferError, StdinClosed, Ticket};
use super::supervisor::supervise;
use crate::network::gate::GateSummary;
use crate::sandbox::SandboxError;

/// Resolves when the program has started or failed to start.
pub type StartOutcome = oneshot::Receiver<Result<(), LaunchError>>;

/// Determines how to confine a program before it starts.
pub type ConfinementFuture =
    Pin<Box<dyn Future<Output = Result<Confinement, Arc<SandboxError>>> + Send + 'static>>;

/// A handle to a process. Dropping it kills the whole tree.
#[derive(Debug)]
pub struct Process {
    shared: Arc<Shared>,
    tty: bool,
    started_at: SystemTime,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Terminate {
    Force,
    /// TERM to the process group, and after this time KILL to the whole tree. If the process itself
    /// has exited, KILL to the whole tree at once.
    Graceful(Duration),
}

impl Process {
    /// Starts a program once its confinement is known. The handle works at once: input and orders
    /// wait for the program to run, except that a kill aborts the start. If any process of the tree
    /// still lives `timeout` after the program started, the process group gets TERM, and the whole
    /// tree gets KILL [`TIMEOUT_GRACE`] later. If the program itself has exited before the timeout,
    /// the tree gets KILL at once.
    #[must_use]
    pub fn start(
        launcher: Launcher,
        command: Command,
        confining: Option<ConfinementFuture>,
        limits: LogLimits,
        timeout: Option<Duration>,
    ) -> (Self, StartOutcome) {
        let (tty, has_stdin) = match command.io {
            Io::Pty(_) => (true, true),
            Io::Pipes { stdin } => (false, stdin),
        };
        let shared = Arc::new(Shared::new(limits, has_stdin));
        let (outcome, started) = oneshot::channel();
        // No need to keep the task's handle: dropping `Process` ends the tree, and with it the
        // task.
        let task = supervise(Arc::clone(&shared), launcher, command, confining, timeout, outcome);
        tokio::spawn(task);
        (Self { shared, tty, started_at: SystemTime::now() }, started)
    }

    #[must_use]
    pub fn log(&self) -> &Log {
        &self.shared.log
    }

    #[must_use]
    pub fn tty(&self) -> bool {
        self.tty
    }

    #[must_use]
    pub fn started_at(&self) -> SystemTime {
        self.started_at
    }

    /// Queues input in call order. Respond to the client only after [`Self::accepted`].
    pub fn offer_input(&self, bytes: Bytes, write_id: Option<&str>) -> Result<Ticket, OfferError> {
        self.shared.stdin.offer(bytes, write_id)
    }

    /// Whether the queue has accepted the input; `None` if not decided yet.
    #[must_use]
    pub fn accepted_now(&self, ticket: Ticket) -> Option<Result<(), StdinClosed>> {
        self.shared.stdin.accepted_now(ticket)
    }

    pub async fn accepted(&self, ticket: Ticket) -> Result<(), StdinClosed> {
        self.shared.stdin.accepted(ticket).await
    }

    /// Ends the input: a pipe is closed after the queued bytes; a terminal receives the end-of-file
    /// character.
    pub fn close_input(&self) -> Result<(), OfferError> {
        const END_OF_TRANSMISSION: Bytes = Bytes::from_static(b"\x04");
        if self.tty {
            self.shared.stdin.offer(END_OF_TRANSMISSION, None).map(|_| ())
        } else if self.shared.stdin.finish() {
            Ok(())
        } else {
            Err(OfferError::Closed)
        }
    }

    /// Signals the process group. On a terminal, INT and QUIT also reach the foreground group, as
    /// the keys would. Does nothing once the process has exited.
    pub fn signal(&self, signal: Signal) {
        if !self.exited() {
            self.shared.order(Order::Signal(signal));
        }
    }

    pub fn resize(&self, size: PtySize) {
        self.shared.order(Order::Resize(size));
    }

    /// Ends the whole tree. Returns whether the process itself was still running.
    pub fn terminate(&self, how: Terminate) -> bool {
        self.shared.terminate(how)
    }

    /// Ends the whole tree because the server shuts down. The exit record states the reason.
    pub fn shut_down(&self, how: Terminate) {
        self.shared.terminate_because(EndedBy::Shutdown, how);
    }

    #[must_use]
    pub fn exited(&self) -> bool {
        self.shared.exited()
    }

    /// Whether the tree has ended: no process is left, or the start failed. After the death of a
    /// keeper, true while the spawner still kills the rest.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        *self.shared.gone.borrow()
    }

    pub async fn gone(&self) {
        let mut gone = self.shared.gone.subscribe();
        // The sender lives in `shared`, so this cannot fail during the wait.
        let _ = gone.wait_for(|gone| *gone).await;
    }

    /// The sandbox denial that seems to have made the process fail.
    #[must_use]
    pub fn denial(&self) -> Option<&Denial> {
        self.shared.denial.get()
    }

    /// Traffic and refusals of the gate up to the exit; `None` before the exit, without a managed
    /// network, and if the exit was not observed.
    #[must_use]
    pub fn network_use(&self) -> Option<&GateSummary> {
        self.shared.network_use.get()
    }

    #[must_use]
    pub fn location(&self) -> ProcessLocation {
        ProcessLocation::of(&self.shared)
    }

    /// The number of living descendants; 0 if they cannot be counted.
    pub async fn descendants(&self) -> usize {
        let tree = match &*self.shared.phase() {
            Phase::Running { tree, .. } => tree.clone(),
            Phase::Starting { .. } | Phase::Over => return 0,
        };
        // A count is not worth a long wait for an unresponsive keeper.
        tokio::time::timeout(COUNT_TIMEOUT, tree.descendants()).await.unwrap_or(0)
    }
}

/// The time between TERM and KILL once the timeout of a process has passed.
pub const TIMEOUT_GRACE: Duration = Duration::from_secs(2);
const COUNT_TIMEOUT: Duration = Duration::from_secs(1);

impl Drop for Process {
    fn drop(&mut self) {
        self.shared.order(Order::Kill);
    }
}

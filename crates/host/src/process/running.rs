//! A process from its start to the death of its last descendant: one task owns it, others hold a handle.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use tokio::sync::{oneshot, watch};

use super::denial::{self, Denial, Ending};
use super::launch::{
    ChildStdio, Command, ExitRecord, Io, LaunchError, Launched, Launcher, PtyMaster, PtySize,
    Signal, Tree, TreeControl, TreeEvent,
};
use super::log::{Log, LogLimits, Stream};
use super::output::{Output, Source};
use super::stdin::{OfferError, Sink, StdinClosed, StdinQueue, Ticket};
use super::whereabouts::Whereabouts;
use crate::sandbox::{Network, Plan, SandboxError};

/// Whether the program could be started.
pub type StartOutcome = oneshot::Receiver<Result<(), LaunchError>>;

/// Finds out how to sandbox a program, before it is started.
pub type SandboxPlan =
    Pin<Box<dyn Future<Output = Result<Arc<Plan>, Arc<SandboxError>>> + Send + 'static>>;

/// A handle to a process. Dropping the last one kills the whole tree.
#[derive(Debug)]
pub struct Process {
    shared: Arc<Shared>,
    tty: bool,
    started_at: SystemTime,
}

#[derive(Debug)]
pub(super) struct Shared {
    log: Log,
    stdin: StdinQueue,
    control: Mutex<Control>,
    /// When a graceful end turns into a kill.
    kill_at: watch::Sender<Option<tokio::time::Instant>>,
    /// Whether the start has come to an end, good or bad.
    pub(super) decided: watch::Sender<bool>,
    /// Whether the last descendant is dead.
    pub(super) gone: watch::Sender<bool>,
    /// Of the sandbox, if there is one; set before the program runs.
    pub(super) network: Arc<OnceLock<Network>>,
    /// Set before the exit is recorded.
    denial: OnceLock<Denial>,
}

/// How the tree can be reached.
#[derive(Debug)]
pub(super) enum Control {
    /// Orders wait for the tree, in the order they came.
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

/// How to end a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Terminate {
    Force,
    /// TERM to the process group, and after this time KILL to every descendant.
    Graceful(Duration),
}

/// A start takes milliseconds; whoever sends more orders meanwhile does not mean them.
const MAX_EARLY_ORDERS: usize = 1024;

impl Process {
    /// Starts a program, once it is known how to sandbox it. The handle works at once: input and orders wait for the program
    /// to run.
    #[must_use]
    pub fn start(
        launcher: Launcher,
        command: Command,
        plan: Option<SandboxPlan>,
        limits: LogLimits,
    ) -> (Self, StartOutcome) {
        let (tty, has_stdin) = match command.io {
            Io::Pty(_) => (true, true),
            Io::Pipes { stdin } => (false, stdin),
        };
        let shared = Arc::new(Shared {
            log: Log::new(limits),
            stdin: StdinQueue::new(has_stdin),
            control: Mutex::new(Control::Starting { orders: Vec::new() }),
            kill_at: watch::Sender::new(None),
            decided: watch::Sender::new(false),
            gone: watch::Sender::new(false),
            network: Arc::default(),
            denial: OnceLock::new(),
        });
        let (outcome, started) = oneshot::channel();
        // Not kept: the task ends by itself when the tree is gone, which dropping the handle causes.
        let task = own(Arc::clone(&shared), launcher, command, plan, outcome);
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

    /// Queues input. It has effect in the order of the calls; the answer to the client belongs after
    /// [`Self::accepted`].
    pub fn offer_input(&self, bytes: Bytes, write_id: Option<&str>) -> Result<Ticket, OfferError> {
        self.shared.stdin.offer(bytes, write_id)
    }

    /// Whether queued input is within the bound of the queue; `None`: not yet.
    #[must_use]
    pub fn accepted_now(&self, ticket: Ticket) -> Option<Result<(), StdinClosed>> {
        self.shared.stdin.accepted_now(ticket)
    }

    /// Waits until queued input is within the bound of the queue.
    pub async fn accepted(&self, ticket: Ticket) -> Result<(), StdinClosed> {
        self.shared.stdin.accepted(ticket).await
    }

    /// Ends the input: the pipe is closed after what is queued; a terminal gets an end-of-file key.
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

    /// Signals the process group; on a terminal, INT and QUIT also reach its foreground group, as the
    /// keys would. Nothing happens once the process has exited.
    pub fn signal(&self, signal: Signal) {
        if !self.exited() {
            self.shared.order(Order::Signal(signal));
        }
    }

    pub fn resize(&self, size: PtySize) {
        self.shared.order(Order::Resize(size));
    }

    /// Ends the whole tree. Says whether the process itself was still running.
    pub fn terminate(&self, how: Terminate) -> bool {
        let running = !self.exited();
        match how {
            Terminate::Graceful(patience) if running => {
                self.shared.order(Order::Signal(Signal::Terminate));
                let now = tokio::time::Instant::now();
                let deadline = now.checked_add(patience).unwrap_or(now + FAR_FUTURE);
                self.shared.kill_at.send_modify(|kill_at| {
                    *kill_at = Some(kill_at.map_or(deadline, |earlier| earlier.min(deadline)));
                });
            }
            Terminate::Force | Terminate::Graceful(_) => self.shared.order(Order::Kill),
        }
        running
    }

    #[must_use]
    pub fn exited(&self) -> bool {
        self.shared.log.progress().exit.is_some()
    }

    /// Whether no descendant is left.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        *self.shared.gone.borrow()
    }

    /// Waits until no descendant is left.
    pub async fn gone(&self) {
        let mut gone = self.shared.gone.subscribe();
        // The sender lives in `shared`, so this cannot fail while we wait.
        let _ = gone.wait_for(|gone| *gone).await;
    }

    /// What the sandbox seems to have denied to a process that failed.
    #[must_use]
    pub fn denial(&self) -> Option<&Denial> {
        self.shared.denial.get()
    }

    #[must_use]
    pub fn whereabouts(&self) -> Whereabouts {
        Whereabouts::of(&self.shared)
    }

    /// Living processes below this one.
    pub async fn descendants(&self) -> usize {
        let tree = match &*self.shared.control() {
            Control::Running { tree, .. } => tree.clone(),
            Control::Starting { .. } | Control::Over => return 0,
        };
        // A keeper that does not answer is not worth the wait.
        tokio::time::timeout(COUNT_PATIENCE, tree.descendants()).await.unwrap_or(0)
    }
}

const COUNT_PATIENCE: Duration = Duration::from_secs(1);
const FAR_FUTURE: Duration = Duration::from_secs(365 * 24 * 60 * 60);

impl Drop for Process {
    fn drop(&mut self) {
        self.shared.order(Order::Kill);
    }
}

impl Shared {
    pub(super) fn control(&self) -> MutexGuard<'_, Control> {
        self.control.lock().expect("no code panics while it holds a process control")
    }

    fn order(&self, order: Order) {
        match &mut *self.control() {
            // Nothing before a kill matters, and a kill is never dropped. It ends the start as well, if that can still be ended.
            Control::Starting { orders } if matches!(order, Order::Kill) => {
                *orders = vec![order];
                self.kill_at.send_replace(Some(tokio::time::Instant::now()));
            }
            Control::Starting { orders } if orders.len() < MAX_EARLY_ORDERS => orders.push(order),
            Control::Starting { .. } | Control::Over => {}
            Control::Running { tree, pty } => carry_out(order, tree, pty.as_deref()),
        }
    }

    fn run(&self, tree: TreeControl, pty: Option<Arc<PtyMaster>>) {
        let mut control = self.control();
        if let Control::Starting { orders } = &*control {
            for &order in orders {
                carry_out(order, &tree, pty.as_deref());
            }
        }
        *control = Control::Running { tree, pty };
        drop(control);
        self.decided.send_replace(true);
    }

    fn over(&self) {
        *self.control() = Control::Over;
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
                tracing::debug!(%error, "cannot signal the foreground of a terminal");
            }
        }
        (Order::Signal(signal), _) => tree.signal(signal),
        (Order::Resize(size), Some(pty)) => {
            if let Err(error) = pty.resize(size) {
                tracing::debug!(%error, "cannot resize a terminal");
            }
        }
        (Order::Resize(_), None) => {}
    }
}

/// The task that owns one process.
async fn own(
    shared: Arc<Shared>,
    launcher: Launcher,
    mut command: Command,
    plan: Option<SandboxPlan>,
    outcome: oneshot::Sender<Result<(), LaunchError>>,
) {
    let mut kill_at = shared.kill_at.subscribe();
    let launched = async {
        if let Some(plan) = plan {
            let plan = tokio::select! {
                plan = plan => plan?,
                () = deadline(&mut kill_at) => {
                    return Err(LaunchError::Terminated { program: command.program().into() });
                }
            };
            command.sandbox = Some(plan);
        }
        if let Some(plan) = &command.sandbox {
            let _ = shared.network.set(plan.network);
        }
        launcher.launch_unless(deadline(&mut kill_at), command).await
    };
    match launched.await {
        Ok(launched) => {
            let owner = Owner::new(shared, launched);
            // Whoever started it may have gone; the handle's drop then ends the process.
            let _ = outcome.send(Ok(()));
            owner.run().await;
        }
        Err(error) => {
            shared.log.abandon();
            shared.over();
            let _ = outcome.send(Err(error));
        }
    }
}

struct Owner {
    shared: Arc<Shared>,
    tree: Tree,
    tree_gone: bool,
    outputs: [Option<Output>; 2],
    started: Instant,
}

impl Owner {
    fn new(shared: Arc<Shared>, launched: Launched) -> Self {
        let (outputs, input, pty) = match launched.stdio {
            ChildStdio::Pty(master) => {
                let master = Arc::new(master);
                let output = Output::new(Stream::Pty, Source::Pty(Arc::clone(&master)));
                ([Some(output), None], Some(Sink::Pty(Arc::clone(&master))), Some(master))
            }
            ChildStdio::Pipes { stdin, stdout, stderr } => (
                [
                    Some(Output::new(Stream::Stdout, Source::Pipe(stdout))),
                    Some(Output::new(Stream::Stderr, Source::Pipe(stderr))),
                ],
                stdin.map(Sink::Pipe),
                None,
            ),
        };
        shared.run(launched.tree.control(), pty);
        shared.stdin.connect(input);
        let (tree, started) = (launched.tree, Instant::now());
        Self { shared, tree, tree_gone: false, outputs, started }
    }

    async fn run(mut self) {
        let shared = Arc::clone(&self.shared);
        let mut kill_at = shared.kill_at.subscribe();
        loop {
            let [first, second] = &mut self.outputs;
            tokio::select! {
                event = self.tree.next_event(), if !self.tree_gone => self.tree_changed(event).await,
                () = ready(first.as_ref(), &shared.log) => transfer(first, &shared.log).await,
                () = ready(second.as_ref(), &shared.log) => transfer(second, &shared.log).await,
                () = shared.stdin.pump() => {}
                () = deadline(&mut kill_at) => {
                    // Once: a deadline that stays would fire again and again until the tree is gone.
                    shared.kill_at.send_replace(None);
                    shared.order(Order::Kill);
                }
            }
            self.close_when_over();
            if self.tree_gone && shared.log.progress().closed {
                break;
            }
        }
        shared.over();
    }

    async fn tree_changed(&mut self, event: TreeEvent) {
        let log = &self.shared.log;
        match event {
            TreeEvent::Exited(exit) => {
                for output in self.outputs.iter_mut().flatten() {
                    output.drain_pending(log).await;
                }
                self.look_for_denial(&exit);
                self.shared.log.append_exit(exit);
            }
            TreeEvent::Emptied => self.tree_ended().await,
            TreeEvent::Lost => {
                if log.progress().exit.is_none() {
                    log.fail("the keeper of the process was killed".to_owned());
                    log.append_exit(ExitRecord::killed(self.started.elapsed()));
                }
                self.tree_ended().await;
            }
        }
    }

    fn look_for_denial(&self, exit: &ExitRecord) {
        let Some(network) = self.shared.network.get().filter(|_| exit.code != 0) else { return };
        let ending = Ending { code: exit.code, signal: exit.signal };
        let said = self.shared.log.snapshot();
        let denial = denial::recognise(ending, &said, *network == Network::Restricted);
        if let Some(denial) = denial {
            let _ = self.shared.denial.set(denial);
        }
    }

    async fn tree_ended(&mut self) {
        self.tree_gone = true;
        self.shared.gone.send_replace(true);
        for output in self.outputs.iter_mut().flatten() {
            output.finish(&self.shared.log).await;
        }
    }

    fn close_when_over(&mut self) {
        let log = &self.shared.log;
        let progress = log.progress();
        let ended = self.outputs.iter().flatten().all(Output::ended);
        if ended && progress.exit.is_some() && !progress.closed {
            log.append_closed();
            self.shared.stdin.close();
        }
    }
}

async fn ready(output: Option<&Output>, log: &Log) {
    match output {
        Some(output) => output.ready(log).await,
        None => std::future::pending().await,
    }
}

async fn transfer(output: &mut Option<Output>, log: &Log) {
    if let Some(output) = output {
        output.transfer(log).await;
    }
}

async fn deadline(kill_at: &mut watch::Receiver<Option<tokio::time::Instant>>) {
    loop {
        let at = *kill_at.borrow_and_update();
        match at {
            Some(at) => {
                tokio::select! {
                    () = tokio::time::sleep_until(at) => return,
                    _ = kill_at.changed() => {}
                }
            }
            None => {
                if kill_at.changed().await.is_err() {
                    std::future::pending::<()>().await;
                }
            }
        }
    }
}

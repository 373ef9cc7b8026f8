//! The task that supervises one process, from its start to the death of its last descendant.

use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{oneshot, watch};

use super::denial::{self, Denial, Ending};
use super::gate::Confinement;
use super::handle::{ConfinementFuture, TIMEOUT_GRACE, Terminate};
use super::launch::{
    ChildStdio, Command, EndedBy, ExitRecord, LaunchError, Launched, Launcher, Tree, TreeEvent,
};
use super::log::{Log, Stream};
use super::orders::{Order, Shared};
use super::output::{Output, Source};
use super::stdin::Sink;
use crate::network::gate::Gate;
use crate::sandbox::Network;

/// Starts a process and supervises it until its last descendant is gone and its log is closed.
pub(super) async fn supervise(
    shared: Arc<Shared>,
    launcher: Launcher,
    mut command: Command,
    confining: Option<ConfinementFuture>,
    timeout: Option<Duration>,
    outcome: oneshot::Sender<Result<(), LaunchError>>,
) {
    let mut kill_at = shared.kill_at.subscribe();
    let program = command.program().to_owned();
    let launched = async {
        let mut planned_gate = None;
        if let Some(confining) = confining {
            let Confinement { plan, gate } = tokio::select! {
                confinement = confining => confinement?,
                () = deadline(&mut kill_at) => {
                    return Err(LaunchError::Terminated { program: command.program().into() });
                }
            };
            if let Some(gate) = &gate {
                command.add_variables(&gate.variables);
            }
            command.sandbox = Some(plan);
            planned_gate = gate;
        }
        let plan = command.sandbox.clone();
        if let Some(plan) = &plan {
            let _ = shared.network.set(plan.network);
        }
        let mut launched = launcher.launch_unless(deadline(&mut kill_at), command).await?;
        let sockets = std::mem::take(&mut launched.gate);
        let gate = match planned_gate.zip(plan) {
            Some((gate, plan)) => {
                let opened = gate.open(&plan, sockets).map_err(LaunchError::from_setup)?;
                Some(opened)
            }
            None => None,
        };
        Ok((launched, gate))
    };
    match unless_panicked(launched).await.unwrap_or(Err(LaunchError::Panicked { program })) {
        Ok((Launched { tree, stdio, .. }, gate)) => {
            let mut supervisor = Supervisor::new(Arc::clone(&shared), tree, gate, timeout);
            let supervised = async {
                supervisor.connect(stdio);
                // The receiver may be gone. If the handle was dropped too, the process is being
                // killed.
                let _ = outcome.send(Ok(()));
                supervisor.run().await;
            };
            if unless_panicked(supervised).await.is_none() {
                supervisor.end_after_panic().await;
            }
            shared.over();
        }
        Err(error) => {
            shared.log.abandon();
            shared.over();
            let _ = outcome.send(Err(error));
        }
    }
}

struct Supervisor {
    shared: Arc<Shared>,
    tree: Tree,
    tree_gone: bool,
    outputs: [Option<Output>; 2],
    /// `None` without a managed network, and once the tree has ended.
    gate: Option<Gate>,
    started: Instant,
    deadline: Option<tokio::time::Instant>,
}

impl Supervisor {
    fn new(shared: Arc<Shared>, tree: Tree, gate: Option<Gate>, timeout: Option<Duration>) -> Self {
        let started = Instant::now();
        // A timeout beyond the range of the clock means no deadline.
        let deadline = timeout.and_then(|timeout| tokio::time::Instant::now().checked_add(timeout));
        let outputs = [None, None];
        Self { shared, tree, tree_gone: false, outputs, gate, started, deadline }
    }

    /// Connects the process's streams and carries out the orders that arrived during the start.
    fn connect(&mut self, stdio: ChildStdio) {
        let (outputs, input, pty) = match stdio {
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
        self.outputs = outputs;
        self.shared.run(self.tree.control(), pty);
        self.shared.stdin.connect(input);
    }

    async fn run(&mut self) {
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
                    // Reset, or this would be ready again and again until the tree is gone.
                    shared.kill_at.send_replace(None);
                    shared.order(Order::Kill);
                }
                () = at(self.deadline) => {
                    self.deadline = None;
                    shared.terminate_because(EndedBy::Deadline, Terminate::Graceful(TIMEOUT_GRACE));
                }
            }
            self.close_when_over();
            if self.tree_gone && shared.log.progress().closed {
                break;
            }
        }
    }

    /// Ends the process and its log after a panic in the supervisor. Clients wait for the exit
    /// event, and the process must not keep running unobserved.
    async fn end_after_panic(&mut self) {
        let log = &self.shared.log;
        let killed = match log.progress().exit {
            None => "the process was killed",
            Some(_) => "any remaining descendants of the process were killed",
        };
        log.fail(format!("internal server error: {killed}; see the server's log"));
        // Killed directly: if the panic came before `Shared::run`, an order would only be queued.
        self.tree.control().kill_all();
        let tree = &mut self.tree;
        let killed = unless_panicked(async {
            let mut exit = None;
            loop {
                match tree.next_event().await {
                    TreeEvent::Exited(record) => exit = Some(record),
                    TreeEvent::Emptied | TreeEvent::Lost => return exit,
                }
            }
        });
        let exit = killed.await.flatten();
        let progress = log.progress();
        if progress.exit.is_none() {
            let exit = exit.unwrap_or(ExitRecord::killed(self.started.elapsed()));
            unless_panicked(async { log.append_exit(exit) }).await;
        }
        // A listener that panicked may panic again, but the log appends an event before it notifies
        // listeners.
        if !progress.closed {
            unless_panicked(async { log.append_closed() }).await;
        }
    }

    async fn tree_changed(&mut self, event: TreeEvent) {
        let log = &self.shared.log;
        match event {
            TreeEvent::Exited(mut exit) => {
                exit.ended_by = self.shared.ended_by.get().copied();
                for output in self.outputs.iter_mut().flatten() {
                    output.drain_pending(log).await;
                }
                if let Some(gate) = &self.gate {
                    let _ = self.shared.network_use.set(gate.summary());
                }
                self.look_for_denial(&exit);
                self.shared.log.append_exit(exit);
            }
            TreeEvent::Emptied => self.tree_ended().await,
            TreeEvent::Lost => {
                if log.progress().exit.is_none() {
                    let why = "the keeper of the process was killed, and so was the process";
                    log.fail(why.to_owned());
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
        // The gate's record is certain, unlike the guess from the output.
        let refused = self.shared.network_use.get().and_then(|network| network.refused.first());
        if denial.is_some() || refused.is_some() {
            let denial = Denial { host: refused.cloned(), ..denial.unwrap_or_default() };
            let _ = self.shared.denial.set(denial);
        }
    }

    async fn tree_ended(&mut self) {
        self.tree_gone = true;
        if let Some(gate) = self.gate.take() {
            // No need to keep the handle: the task ends within DRAIN_TIMEOUT.
            tokio::spawn(gate.drain());
        }
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

async fn unless_panicked<F: Future>(future: F) -> Option<F::Output> {
    let mut future = std::pin::pin!(future);
    poll_fn(|context| {
        // After a panic, inconsistent state is used only to end the process and close its log.
        let polled = catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(context)));
        polled.map_or(std::task::Poll::Ready(None), |poll| poll.map(Some))
    })
    .await
}

async fn at(deadline: Option<tokio::time::Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
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

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::task::{Context, Wake, Waker};

    use super::super::handle::{Process, StartOutcome};
    use super::super::launch::Io;
    use super::super::limits::Limits;
    use super::super::log::{Budget, Cursor, Event, LogLimits, LogListener, OnFull};
    use super::*;

    /// Panics in the supervising task: as a listener with the log locked, as a waker when the start
    /// is reported.
    struct Panics;

    impl LogListener for Panics {
        fn log_grew(&self) {
            panic!("on purpose");
        }
    }

    impl Wake for Panics {
        fn wake(self: Arc<Self>) {
            panic!("on purpose");
        }
    }

    fn start(script: &str, timeout: Option<Duration>) -> Process {
        start_with_outcome(script, timeout).0
    }

    fn start_with_outcome(script: &str, timeout: Option<Duration>) -> (Process, StartOutcome) {
        let command = Command {
            argv: ["/bin/sh", "-c", script].map(Into::into).to_vec(),
            arg0: None,
            cwd: "/".into(),
            env: Vec::new(),
            io: Io::Pipes { stdin: true },
            kill_on_exit: false,
            sandbox: None,
            limits: Limits::default(),
        };
        let limits = LogLimits {
            memory_bytes: 1 << 20,
            spill_bytes: 0,
            on_full: OnFull::Block,
            totals: Arc::default(),
        };
        Process::start(Launcher::plain(), command, None, limits, timeout)
    }

    #[tokio::test]
    async fn a_panic_in_the_supervisor_ends_the_process_and_closes_its_log() {
        let process = start("read line; echo $line; exec sleep 1000", None);
        let listener: Arc<dyn LogListener> = Arc::new(Panics);
        process.log().add_listener(&listener);
        process.offer_input("go\n".into(), None).unwrap();
        process.log().wait_closed().await;
        process.gone().await;
        let all = Budget { bytes: u64::MAX, events: usize::MAX };
        let page = Cursor::after(process.log(), 0).read(process.log(), all).await;
        let events: Vec<_> = page.events.into_iter().map(|event| event.entry.event).collect();
        assert!(
            matches!(&events[..], [Event::Output { .. }, Event::Exited(exit), Event::Closed]
                if exit.signal == Some(libc::SIGKILL)),
            "{events:?}"
        );
        assert!(page.progress.failure.is_some());
    }

    #[tokio::test]
    async fn a_panic_after_the_exit_does_not_claim_that_the_process_was_killed() {
        let process = start("read line; exit 3", None);
        let listener: Arc<dyn LogListener> = Arc::new(Panics);
        process.log().add_listener(&listener);
        process.offer_input("go\n".into(), None).unwrap();
        process.log().wait_closed().await;
        let progress = process.log().progress();
        assert_eq!(progress.exit.map(|exit| exit.code), Some(3));
        assert!(progress.failure.unwrap().contains("remaining descendants"));
    }

    #[tokio::test]
    async fn a_panic_before_the_start_is_reported_ends_the_process_too() {
        let (process, mut outcome) = start_with_outcome("exec sleep 1000", None);
        let waker = Waker::from(Arc::new(Panics));
        let polled = Pin::new(&mut outcome).poll(&mut Context::from_waker(&waker));
        assert!(polled.is_pending());
        process.log().wait_closed().await;
        process.gone().await;
        let progress = process.log().progress();
        assert_eq!(progress.exit.and_then(|exit| exit.signal), Some(libc::SIGKILL));
        assert!(progress.failure.is_some());
    }

    #[tokio::test]
    async fn a_deadline_ends_the_process_and_the_exit_says_so() {
        let process = start("exec sleep 1000", Some(Duration::from_millis(1)));
        process.log().wait_closed().await;
        let exit = process.log().progress().exit.unwrap();
        assert_eq!(exit.ended_by, Some(EndedBy::Deadline));
        assert!(exit.signal.is_some());
        let process = start("exit 3", Some(Duration::from_secs(1000)));
        process.log().wait_closed().await;
        let exit = process.log().progress().exit.unwrap();
        assert_eq!((exit.code, exit.ended_by), (3, None));
    }

    #[tokio::test]
    async fn a_deadline_ends_descendants_that_hold_the_output() {
        let process = start("sleep 1000 & exit 0", Some(Duration::from_millis(1)));
        process.log().wait_closed().await;
        process.gone().await;
    }
}

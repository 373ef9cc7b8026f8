//! The task that owns one process, from its start to the death of its last descendant.

use std::sync::Arc;
use std::time::Instant;

use tokio::sync::{oneshot, watch};

use super::control::{Order, Shared};
use super::denial::{self, Ending};
use super::launch::{
    ChildStdio, Command, ExitRecord, LaunchError, Launched, Launcher, Tree, TreeEvent,
};
use super::log::{Log, Stream};
use super::output::{Output, Source};
use super::running::SandboxPlan;
use super::stdin::Sink;
use crate::sandbox::Network;

/// Runs until nothing is left of it; what it has written stays in the log.
pub(super) async fn own(
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

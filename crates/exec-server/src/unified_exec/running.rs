//! One command: the task that follows it, and its state for calls.

use std::sync::{Arc, Mutex, MutexGuard};

use bytes::Bytes;
use exec_server_client::{ExecProcessEvent, ExecServerError, ProcessEvents};
use exec_server_protocol::OutputChunk;
use tokio::sync::watch;
use tokio::time::Instant;

use super::command::ProcessHandleId;
use super::events::{EventPermit, Reports, UnifiedExecEvent};
use super::text::incomplete_suffix;
use crate::ExecProcess;
use crate::process::{CollectedOutput, HeadTail};

/// Clones refer to the same command.
#[derive(Debug, Clone)]
pub(super) struct RunningCommand {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    id: ProcessHandleId,
    process: Arc<dyn ExecProcess>,
    takes_input: bool,
    began: Instant,
    state: Mutex<State>,
    /// True once the outcome of the command is known.
    ended: watch::Sender<bool>,
}

#[derive(Debug)]
struct State {
    /// Output that no call has returned yet.
    unseen: HeadTail,
    transcript: HeadTail,
    outcome: Option<Outcome>,
}

/// The exit code of a command, or why it is unknown.
pub(super) type Outcome = Result<i32, ExecServerError>;

impl RunningCommand {
    /// `bound` limits the retained output.
    pub(super) fn new(
        id: ProcessHandleId,
        process: Arc<dyn ExecProcess>,
        takes_input: bool,
        bound: usize,
    ) -> Self {
        let [unseen, transcript] = [(); 2].map(|()| HeadTail::new(bound));
        let state = Mutex::new(State { unseen, transcript, outcome: None });
        let (ended, _) = watch::channel(false);
        let began = Instant::now();
        Self { shared: Arc::new(Shared { id, process, takes_input, began, state, ended }) }
    }

    pub(super) fn id(&self) -> ProcessHandleId {
        self.shared.id
    }

    pub(super) fn takes_input(&self) -> bool {
        self.shared.takes_input
    }

    pub(super) fn process(&self) -> &Arc<dyn ExecProcess> {
        &self.shared.process
    }

    pub(super) fn has_ended(&self) -> bool {
        *self.shared.ended.borrow()
    }

    pub(super) async fn ended_by(&self, deadline: Instant) -> bool {
        let mut ended = self.shared.ended.subscribe();
        // Cannot fail: the sender lives as long as `self`.
        let ended = async { ended.wait_for(|ended| *ended).await.is_ok() };
        tokio::time::timeout_at(deadline, ended).await.unwrap_or(false)
    }

    /// Returns the output that no call has returned yet, and the outcome if the command has ended.
    /// While it runs, an incomplete character at the end is kept for the next call.
    pub(super) fn take(&self) -> (CollectedOutput, Option<Outcome>) {
        let mut state = self.lock();
        let mut output = state.unseen.take();
        if state.outcome.is_none() {
            let end = if output.omitted_bytes == 0 { &mut output.head } else { &mut output.tail };
            let incomplete = end.split_off(end.len() - incomplete_suffix(end));
            state.unseen.push(&incomplete);
        }
        (output, state.outcome.clone())
    }

    /// Reports an interaction, unless the command has ended.
    pub(super) fn report_interaction(&self, permit: EventPermit, bytes: Bytes) {
        // While the lock is held, the end of the command cannot be reported.
        let state = self.lock();
        if state.outcome.is_none() {
            permit.send(UnifiedExecEvent::Interaction { id: self.shared.id, bytes });
        }
    }

    /// Follows the command to its end, and reports the end with `permit`.
    pub(super) async fn follow(self, reports: Reports, permit: EventPermit) {
        let Shared { id, process, began, .. } = &*self.shared;
        let (outcome, left_out_bytes) =
            self.follow_output(process.subscribe_events(), &reports).await;
        let mut state = self.lock();
        state.outcome = Some(outcome.clone());
        permit.send(UnifiedExecEvent::End {
            id: *id,
            exit_code: outcome,
            duration: began.elapsed(),
            transcript: state.transcript.take(),
            left_out_bytes,
        });
        drop(state);
        self.shared.ended.send_replace(true);
    }

    /// Follows the output until the exit. All output of the command precedes its exit; later output
    /// belongs to its descendants and is ignored.
    async fn follow_output(&self, mut events: ProcessEvents, reports: &Reports) -> (Outcome, u64) {
        let mut left_out = 0;
        loop {
            match events.next().await {
                Some(ExecProcessEvent::Output(output)) => {
                    self.append(&output.chunk);
                    left_out = self.report(output, left_out, reports);
                }
                Some(ExecProcessEvent::Gap { dropped_bytes }) => {
                    self.skip(dropped_bytes);
                    left_out += dropped_bytes;
                }
                Some(ExecProcessEvent::Exited(exit)) => return (Ok(exit.exit_code), left_out),
                Some(ExecProcessEvent::Failed(error)) => return (Err(error), left_out),
                Some(ExecProcessEvent::Closed { .. }) | None => {
                    return (Err(ExecServerError::Closed), left_out);
                }
            }
        }
    }

    /// Returns the number of bytes omitted since the last chunk that was reported.
    fn report(&self, output: OutputChunk, left_out_bytes: u64, reports: &Reports) -> u64 {
        let OutputChunk { stream, chunk, .. } = output;
        let chunk: Bytes = chunk.into_bytes();
        let len = chunk.len() as u64;
        let id = self.shared.id;
        let delta = UnifiedExecEvent::OutputDelta { id, stream, chunk, left_out_bytes };
        if reports.offer(delta) { 0 } else { left_out_bytes + len }
    }

    fn append(&self, bytes: &[u8]) {
        let mut state = self.lock();
        state.unseen.push(bytes);
        state.transcript.push(bytes);
    }

    fn skip(&self, lost: u64) {
        let mut state = self.lock();
        state.unseen.skip(lost);
        state.transcript.skip(lost);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock().expect("no code panics while it holds the lock")
    }
}

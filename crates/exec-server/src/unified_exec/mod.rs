//! Runs commands for a model: each call returns within a bounded time with bounded text. A command
//! that takes longer continues, and the caller polls it by a small number.
//!
//! Approval, the choice of a sandbox, and retries are left to the caller. Background processes that
//! outlive a command are not tracked here: they belong to the environment and end with it.

mod command;
mod events;
mod running;
mod table;
mod text;

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use bytes::Bytes;
use exec_server_client::ExecServerError;
use exec_server_protocol::{EnvironmentInfo, TerminateMode, WriteStatus};
use tokio::sync::OnceCell;
use tokio::task::JoinSet;
use tokio::time::Instant;
use uuid::Uuid;

pub use command::{CommandLine, ExecCommand, ExecCommandOutput, ProcessHandleId, UnifiedExecError};
use events::Reports;
pub use events::{UnifiedExecEvent, UnifiedExecEvents};
use running::RunningCommand;
use table::Table;

use crate::ExecBackend;
use crate::process::DEFAULT_OUTPUT_BOUND;

/// Longer waits are shortened to this: adding them to the clock could overflow, here or in a timer.
const MAX_WAIT: Duration = Duration::from_secs(30 * 365 * 24 * 60 * 60);

/// Limits on calls, and on the state kept for them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnifiedExecLimits {
    /// The maximum number of known commands: running, or not yet reported as ended.
    pub max_processes: usize,
    /// Yield times are clamped to this range.
    pub min_yield_time: Duration,
    pub max_yield_time: Duration,
    /// Bounds the output kept for the next call, and the transcript in the `End` event; each in
    /// bytes.
    pub max_output: usize,
}

/// Runs commands in one environment.
///
/// Must be used within a tokio runtime. Dropping it stops following the commands but does not end
/// them; [`Self::terminate_all`] does.
#[derive(Debug)]
pub struct UnifiedExec {
    backend: Arc<dyn ExecBackend>,
    limits: UnifiedExecLimits,
    info: OnceCell<EnvironmentInfo>,
    reports: Reports,
    table: Mutex<Table>,
    /// One task follows each command. Others terminate evicted commands.
    tasks: Mutex<JoinSet<()>>,
}

impl UnifiedExec {
    /// Creates an instance without events.
    #[must_use]
    pub fn new(backend: Arc<dyn ExecBackend>, limits: UnifiedExecLimits) -> Self {
        Self::reporting(backend, limits, Reports::to_nobody())
    }

    /// Creates an instance with events, which must be read while calls are made; see
    /// [`UnifiedExecEvents`].
    #[must_use]
    pub fn with_events(
        backend: Arc<dyn ExecBackend>,
        limits: UnifiedExecLimits,
    ) -> (Self, UnifiedExecEvents) {
        let (reports, events) = Reports::to_reader(limits.max_processes);
        (Self::reporting(backend, limits, reports), events)
    }

    fn reporting(
        backend: Arc<dyn ExecBackend>,
        limits: UnifiedExecLimits,
        reports: Reports,
    ) -> Self {
        Self {
            backend,
            limits,
            info: OnceCell::new(),
            reports,
            table: Mutex::new(Table::new(limits.max_processes)),
            tasks: Mutex::default(),
        }
    }

    /// Starts a command and waits for its end, at most for its yield time.
    ///
    /// If this future is dropped once the command runs, the command continues under its number.
    pub async fn exec_command(
        &self,
        command: ExecCommand,
    ) -> Result<ExecCommandOutput, UnifiedExecError> {
        let began = Instant::now();
        let (yield_time, max_output) = (command.yield_time, command.max_output);
        let place = ReservedSlot { table: &self.table, id: self.table().reserve()? };
        let (begin, end) = self.reports.reserve_pair().await;
        let info = self.info.get_or_try_init(|| self.backend.info()).await?;
        let params = command.into_start(Uuid::new_v4().to_string(), info);
        let (argv, tty) = (params.argv.clone(), params.tty);
        let process = self.backend.start(params).await?;
        // No await from here until the command is in the table: a dropped call must not lose it.
        let id = place.id;
        begin.send(UnifiedExecEvent::Begin { id, argv, tty });
        let takes_input = tty;
        let running = RunningCommand::new(id, process, takes_input, self.limits.max_output);
        self.spawn(running.clone().follow(self.reports.clone(), end));
        if let Some(evicted) = place.fill(running.clone()) {
            self.make_place(evicted);
        }
        running.ended_by(self.deadline(yield_time)).await;
        self.snapshot(&running, began, max_output)
    }

    /// Writes to a command and waits for its end, at most for `yield_time`. With empty bytes, only
    /// waits. Returns the new output.
    pub async fn write_stdin(
        &self,
        id: ProcessHandleId,
        bytes: impl Into<Bytes> + Send,
        yield_time: Duration,
        max_output: usize,
    ) -> Result<ExecCommandOutput, UnifiedExecError> {
        let began = Instant::now();
        let deadline = self.deadline(yield_time);
        let bytes = bytes.into();
        let running = self.table().find(id)?;
        let accepted = bytes.is_empty() || self.write(&running, bytes, deadline).await?;
        let ended = running.ended_by(deadline).await;
        // If the command ends, its unread input is not an error. If it continues without accepting
        // input, the caller made a mistake.
        if !accepted && !ended {
            return Err(match running.takes_input() {
                true => UnifiedExecError::InputClosed { id },
                false => UnifiedExecError::NoInput { id },
            });
        }
        self.snapshot(&running, began, max_output)
    }

    /// Returns the commands that can be polled.
    #[must_use]
    pub fn known(&self) -> Vec<ProcessHandleId> {
        self.table().known()
    }

    /// Ends and forgets all commands, except those being started. Each `End` event follows when the
    /// process of the command has ended.
    pub async fn terminate_all(&self) -> Result<(), ExecServerError> {
        let commands = self.table().take_all();
        let mut outcome = Ok(());
        for command in commands {
            let terminated = command.process().terminate(TerminateMode::Force).await;
            outcome = outcome.and(terminated.map(drop));
        }
        outcome
    }

    fn make_place(&self, evicted: RunningCommand) {
        // In a separate task, because this call may be dropped, and the command is no longer in the
        // table.
        self.spawn(async move {
            let process = evicted.process();
            tracing::info!(
                process = process.process_id(),
                "ending a command to make room for a new one"
            );
            if let Err(error) = process.terminate(TerminateMode::Force).await {
                tracing::warn!(
                    process = process.process_id(),
                    %error,
                    "cannot end a command to make room for a new one; it may still run"
                );
            }
        });
    }

    /// Returns whether the command accepted the input.
    async fn write(
        &self,
        running: &RunningCommand,
        bytes: Bytes,
        deadline: Instant,
    ) -> Result<bool, UnifiedExecError> {
        if !running.takes_input() {
            return Ok(false);
        }
        running.report_interaction(self.reports.reserve().await, bytes.clone());
        let id = running.id();
        let written = tokio::time::timeout_at(deadline, running.process().write(bytes)).await;
        let status = written.map_err(|_| UnifiedExecError::InputNotRead { id })??;
        Ok(status == WriteStatus::Accepted)
    }

    fn snapshot(
        &self,
        running: &RunningCommand,
        began: Instant,
        max_output: usize,
    ) -> Result<ExecCommandOutput, UnifiedExecError> {
        let id = running.id();
        let (output, outcome) = running.take();
        let exit_code = outcome.transpose().inspect_err(|_| self.table().remove(id))?;
        if exit_code.is_some() {
            self.table().remove(id);
        }
        let output = output.within(max_output);
        Ok(ExecCommandOutput {
            output: output.to_text(),
            omitted_bytes: output.omitted_bytes,
            wall_time: began.elapsed(),
            exit_code,
            running_id: exit_code.is_none().then_some(id),
        })
    }

    fn deadline(&self, yield_time: Duration) -> Instant {
        let UnifiedExecLimits { min_yield_time, max_yield_time, .. } = self.limits;
        let yield_time = yield_time.max(min_yield_time).min(max_yield_time);
        Instant::now() + yield_time.min(MAX_WAIT)
    }

    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let mut tasks = self.tasks.lock().expect("no code panics while it holds the lock");
        while tasks.try_join_next().is_some() {}
        tasks.spawn(task);
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        lock(&self.table)
    }
}

impl Default for UnifiedExecLimits {
    fn default() -> Self {
        Self {
            max_processes: 64,
            min_yield_time: Duration::from_millis(250),
            max_yield_time: Duration::from_secs(30),
            max_output: DEFAULT_OUTPUT_BOUND,
        }
    }
}

/// A slot in the table, released if the start fails or is cancelled.
struct ReservedSlot<'a> {
    table: &'a Mutex<Table>,
    id: ProcessHandleId,
}

impl ReservedSlot<'_> {
    /// Returns the command that must now be terminated to make room, if any.
    fn fill(self, command: RunningCommand) -> Option<RunningCommand> {
        lock(self.table).fill(self.id, command)
    }
}

impl Drop for ReservedSlot<'_> {
    fn drop(&mut self) {
        lock(self.table).release(self.id);
    }
}

fn lock(table: &Mutex<Table>) -> MutexGuard<'_, Table> {
    table.lock().expect("no code panics while it holds the lock")
}

#[cfg(test)]
mod tests;

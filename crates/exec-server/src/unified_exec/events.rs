//! The events that unified exec reports, for a program that shows them to a user.
//!
//! The queue is bounded. It has two slots for each command that may be known at once, and 512 spare
//! slots. While no more than 256 slots are free, output is dropped and counted. A command starts
//! only after slots for its `Begin` and its `End` are reserved, so these are never lost; a call
//! with an `Interaction` waits for a slot. So a stalled reader eventually blocks calls, but never a
//! process.

use std::time::Duration;

use bytes::Bytes;
use exec_server_client::ExecServerError;
use exec_server_protocol::OutputStream;
use tokio::sync::{Semaphore, mpsc};

use super::command::ProcessHandleId;
use crate::process::CollectedOutput;

/// Slots beyond those for the first and last events of all commands.
const SPARE: usize = 512;
/// The number of free slots that output leaves to other events.
const KEPT_FOR_OTHERS: usize = SPARE / 2;

#[derive(Debug, Clone)]
pub enum UnifiedExecEvent {
    /// The first event of a command.
    Begin { id: ProcessHandleId, argv: Vec<String>, tty: bool },
    OutputDelta {
        id: ProcessHandleId,
        stream: OutputStream,
        chunk: Bytes,
        /// The number of bytes omitted just before this chunk, because the reader of these events
        /// was slow or the process's log had lost them.
        left_out_bytes: u64,
    },
    /// Input for the command, reported just before it is written.
    Interaction { id: ProcessHandleId, bytes: Bytes },
    /// The last event of a command. Each command has exactly one, unless the
    /// [`UnifiedExec`](super::UnifiedExec) is dropped before.
    End {
        id: ProcessHandleId,
        /// The exit code, or why it is unknown.
        exit_code: Result<i32, ExecServerError>,
        duration: Duration,
        /// The output of the command from its start, within
        /// [`UnifiedExecLimits::max_output`](super::UnifiedExecLimits::max_output).
        transcript: CollectedOutput,
        /// The number of bytes omitted after the last delta.
        left_out_bytes: u64,
    },
}

/// The events of all commands, in order for each command.
#[derive(Debug)]
pub struct UnifiedExecEvents {
    receiver: mpsc::Receiver<UnifiedExecEvent>,
}

impl UnifiedExecEvents {
    /// Returns `None` when the [`UnifiedExec`](super::UnifiedExec) has been dropped and everything
    /// was read. Cancel-safe.
    pub async fn next(&mut self) -> Option<UnifiedExecEvent> {
        self.receiver.recv().await
    }
}

/// The sending side. Without a reader, events are dropped.
#[derive(Debug, Clone)]
pub(super) struct Reports {
    sender: Option<mpsc::Sender<UnifiedExecEvent>>,
}

impl Reports {
    pub(super) fn to_nobody() -> Self {
        Self { sender: None }
    }

    pub(super) fn to_reader(max_processes: usize) -> (Self, UnifiedExecEvents) {
        // Invariant: the slots reserved by running commands are not spare slots, so while the
        // reader keeps up, there are slots for output.
        let capacity = max_processes.saturating_mul(2).saturating_add(SPARE);
        let (sender, receiver) = mpsc::channel(capacity.min(Semaphore::MAX_PERMITS));
        (Self { sender: Some(sender) }, UnifiedExecEvents { receiver })
    }

    /// Waits for the permits of a command's first and last event.
    pub(super) async fn reserve_pair(&self) -> (EventPermit, EventPermit) {
        (self.reserve().await, self.reserve().await)
    }

    pub(super) async fn reserve(&self) -> EventPermit {
        let Some(sender) = &self.sender else { return EventPermit(None) };
        // A dropped reader needs no more events.
        EventPermit(sender.clone().reserve_owned().await.ok())
    }

    /// Sends output if enough slots are free. Returns false if a reader misses it.
    pub(super) fn offer(&self, event: UnifiedExecEvent) -> bool {
        match &self.sender {
            Some(sender) => sender.capacity() > KEPT_FOR_OTHERS && sender.try_send(event).is_ok(),
            None => true,
        }
    }
}

/// The right to send one event. Without a reader, the event is dropped.
#[derive(Debug)]
pub(super) struct EventPermit(Option<mpsc::OwnedPermit<UnifiedExecEvent>>);

impl EventPermit {
    pub(super) fn send(self, event: UnifiedExecEvent) {
        if let Some(permit) = self.0 {
            permit.send(event);
        }
    }
}

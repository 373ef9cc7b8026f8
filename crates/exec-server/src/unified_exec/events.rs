//! What unified exec reports while it works, to whoever shows it to a person.
//!
//! The queue is bounded. It has two places for each command that may be known, and some to spare; when only half of the
//! spare ones are left, output is left out of it and counted. A command is started only once there are places for its
//! `Begin` and its `End`, so these are never lost; a call that has an `Interaction` to report waits for a place. So a
//! reader that stalls stalls calls in the end, but never a process.

use std::time::Duration;

use bytes::Bytes;
use exec_server_client::ExecServerError;
use exec_server_protocol::OutputStream;
use tokio::sync::{Semaphore, mpsc};

use super::command::ProcessHandleId;
use crate::process::CollectedOutput;

/// Places beyond those for the first and last events of all commands.
const SPARE: usize = 512;
/// Free places that output does not take.
const KEPT_FOR_OTHERS: usize = SPARE / 2;

#[derive(Debug, Clone)]
pub enum UnifiedExecEvent {
    /// The first event of a command.
    Begin { id: ProcessHandleId, argv: Vec<String>, tty: bool },
    OutputDelta {
        id: ProcessHandleId,
        stream: OutputStream,
        chunk: Bytes,
        /// Output that was left out just before, because the reader of these events was slow or the process
        /// itself lost it.
        left_out_bytes: u64,
    },
    /// Something is written to the command.
    Interaction { id: ProcessHandleId, bytes: Bytes },
    /// The last event of a command, once for each.
    End {
        id: ProcessHandleId,
        /// How it ended, or why that will not be known.
        exit_code: Result<i32, ExecServerError>,
        duration: Duration,
        /// What it wrote from its beginning to its end, bounded.
        transcript: CollectedOutput,
        /// Output that is in no delta after the last one.
        left_out_bytes: u64,
    },
}

/// The events of all commands, in order for each of them.
#[derive(Debug)]
pub struct UnifiedExecEvents {
    receiver: mpsc::Receiver<UnifiedExecEvent>,
}

impl UnifiedExecEvents {
    /// `None` when the layer is gone and everything was read. Cancel-safe.
    pub async fn next(&mut self) -> Option<UnifiedExecEvent> {
        self.receiver.recv().await
    }
}

/// Where events go in. Without a reader they go nowhere.
#[derive(Debug, Clone)]
pub(super) struct Reports {
    sender: Option<mpsc::Sender<UnifiedExecEvent>>,
}

impl Reports {
    pub(super) fn to_nobody() -> Self {
        Self { sender: None }
    }

    pub(super) fn to_reader(max_processes: usize) -> (Self, UnifiedExecEvents) {
        // Invariant: while the reader keeps up, commands that run hold no spare place, so that output has some.
        let capacity = max_processes.saturating_mul(2).saturating_add(SPARE);
        let (sender, receiver) = mpsc::channel(capacity.min(Semaphore::MAX_PERMITS));
        (Self { sender: Some(sender) }, UnifiedExecEvents { receiver })
    }

    /// Waits for permits for a command's first and last event.
    pub(super) async fn reserve_pair(&self) -> (EventPermit, EventPermit) {
        (self.reserve().await, self.reserve().await)
    }

    /// Waits for a permit.
    pub(super) async fn reserve(&self) -> EventPermit {
        let Some(sender) = &self.sender else { return EventPermit(None) };
        // A reader that went away wants nothing more.
        EventPermit(sender.clone().reserve_owned().await.ok())
    }

    /// Whether there was a place.
    pub(super) fn offer(&self, event: UnifiedExecEvent) -> bool {
        match &self.sender {
            Some(sender) => sender.capacity() > KEPT_FOR_OTHERS && sender.try_send(event).is_ok(),
            None => true,
        }
    }
}

/// The right to send one event. Without a reader the event is dropped.
#[derive(Debug)]
pub(super) struct EventPermit(Option<mpsc::OwnedPermit<UnifiedExecEvent>>);

impl EventPermit {
    pub(super) fn send(self, event: UnifiedExecEvent) {
        if let Some(permit) = self.0 {
            permit.send(event);
        }
    }
}

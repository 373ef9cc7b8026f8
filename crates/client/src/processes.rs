//! The processes of a client: routes their events, confirms output, and reads missing events.
//!
//! Decides and returns what to send; the driver sends it.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::Duration;

use exec_server_protocol::{ErrorCode, ErrorKind, RpcError};
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::calls::{Answer, Call, ProcessKey, ProcessQuery, ReplyTo};
use crate::notified::ProcessNotification;
use crate::process_state::{ProcessState, Unconfirmed};
use crate::{ExecServerError, Violation, catch_up};

/// Maximum delay before output is confirmed, and before a read is repeated that made no progress.
const ACK_DELAY: Duration = Duration::from_millis(100);
/// Maximum size of the output in the first read after a reconnect. Further reads and notifications
/// bring the rest.
const CATCH_UP_BYTES: u64 = 64 << 10;
/// Maximum size of the positions in `initialize`. Servers allow 1 MiB for that message.
const MAX_POSITIONS_BYTES: usize = 512 << 10;
/// Upper bound on the size of a position in JSON, without its id.
const POSITION_BYTES: usize = 32;
/// A control character in an id takes this many bytes in JSON.
const MAX_ESCAPE: usize = 6;

#[derive(Debug, Default)]
pub(crate) struct Processes {
    by_key: HashMap<ProcessKey, ProcessState>,
    identities: u64,
    /// Processes that may have something to send.
    touched: Vec<ProcessKey>,
    outbound: VecDeque<OutboundMessage>,
    /// Whether the server wants confirmations.
    acks: bool,
    ack_at: Option<Instant>,
}

#[derive(Debug)]
pub(crate) enum OutboundMessage {
    Call(Call),
    Notify(Vec<u8>),
}

impl Processes {
    pub(crate) fn confirm_output(&mut self, acks: bool) {
        self.acks = acks;
    }

    /// Registers a process. Fails if its id is in use, since the process with that id must keep its
    /// events. A process without a handle may be attached or observed again.
    pub(crate) fn track(&mut self, mut process: ProcessState) -> Result<(), ExecServerError> {
        let replaceable = |other: &ProcessState| {
            !process.started_here && !other.abandoned && other.mirror.is_without_handle()
        };
        if self.by_key.get(&process.key).is_some_and(|other| !replaceable(other)) {
            let message = match &process.key.observed_session {
                None if process.started_here => {
                    format!("process {:?} already exists in this session", process.key.process_id)
                }
                None => {
                    let id = &process.key.process_id;
                    format!("process {id:?} already has a handle or is being terminated")
                }
                Some(_) => {
                    let id = &process.key.process_id;
                    format!("process {id:?} is already observed by this client")
                }
            };
            let error = RpcError::new(ErrorCode::InvalidRequest, message);
            return Err(ExecServerError::Server(error.with_kind(ErrorKind::DuplicateProcess)));
        }
        self.identities += 1;
        process.identity = self.identities;
        self.by_key.insert(process.key.clone(), process);
        Ok(())
    }

    /// Records the response to a call that starts, attaches to or observes a process.
    pub(crate) fn opened(
        &mut self,
        key: &ProcessKey,
        sender: oneshot::Sender<Answer>,
        answer: Answer,
    ) {
        let failed = answer.is_err();
        let nobody_waits = sender.send(answer).is_err();
        match self.by_key.get_mut(key) {
            None => {}
            Some(process) if nobody_waits && !failed && process.started_here => {
                // The process has no handle, and never will.
                process.abandoned = true;
                self.touched.push(key.clone());
            }
            Some(_) if nobody_waits || failed => drop(self.by_key.remove(key)),
            Some(_) => self.touched.push(key.clone()),
        }
    }

    /// Called when the response to a call that starts, attaches to or observes a process will not
    /// arrive: the connection is lost, or the client is closing. A process that this client started
    /// is terminated. Any other is forgotten, and its mirror fails with `error`: the process now
    /// registered under `key` may already have a newer handle, which would wait forever.
    pub(crate) fn abandon(&mut self, key: &ProcessKey, error: &ExecServerError) {
        match self.by_key.get_mut(key) {
            Some(process) if process.started_here => process.abandoned = true,
            Some(process) => {
                process.mirror.fail(error.clone());
                self.by_key.remove(key);
            }
            None => {}
        }
    }

    pub(crate) fn connection_lost(&mut self) {
        for process in self.by_key.values_mut() {
            process.pulling = false;
        }
    }

    /// Returns the number of the last accepted event of each process of this session, or `None` if
    /// the map is too large for `initialize`.
    pub(crate) fn positions(&self) -> Option<BTreeMap<String, u64>> {
        let own = self.by_key.values().filter(|process| !process.is_observed());
        let positions: BTreeMap<_, _> =
            own.map(|process| (process.key().process_id.clone(), process.after())).collect();
        let bytes: usize = positions.keys().map(|id| MAX_ESCAPE * id.len() + POSITION_BYTES).sum();
        (bytes <= MAX_POSITIONS_BYTES).then_some(positions)
    }

    /// Returns one call for each observed process, and for each process that is not in `known`. The
    /// server sends the events of known processes unasked.
    pub(crate) fn catch_up(&mut self, known: &BTreeMap<String, u64>) -> Vec<Call> {
        let mut calls = Vec::new();
        for process in self.by_key.values_mut() {
            if process.is_observed() || !known.contains_key(&process.key().process_id) {
                calls.push(process.request(CATCH_UP_BYTES, ReplyTo::CatchUp));
            }
            // Earlier confirmations may have been lost.
            process.unconfirmed = Unconfirmed { any: true, due: true, bytes: 0 };
        }
        self.collect_outbound();
        calls
    }

    pub(crate) fn caught_up(&mut self, question: &ProcessQuery, answer: Answer, now: Instant) {
        self.take(question, answer, now);
    }

    pub(crate) fn pulled(&mut self, question: &ProcessQuery, answer: Answer, now: Instant) {
        if let Some(process) = self.asked(question) {
            process.pulling = false;
        }
        self.take(question, answer, now);
    }

    /// Returns the process of a query, unless another process has taken its key.
    fn asked(&mut self, question: &ProcessQuery) -> Option<&mut ProcessState> {
        let process = self.by_key.get_mut(&question.key)?;
        (process.identity == question.identity).then_some(process)
    }

    /// An unreadable response fails only its process.
    fn take(&mut self, question: &ProcessQuery, answer: Answer, now: Instant) {
        let Some(process) = self.asked(question) else { return };
        let taken = answer.and_then(|result| process.take(question.after, &result));
        let stalled = process.stalled;
        match taken {
            Ok(()) if stalled => drop(self.ack_at.get_or_insert(now + ACK_DELAY)),
            Ok(()) => {}
            Err(error @ ExecServerError::Gap { .. }) => {
                process.mirror.fail(error);
                // Terminate the process and confirm its last events, or the server would keep them
                // as long as the session.
                process.drain();
            }
            Err(error) => {
                process.mirror.fail(error);
                self.by_key.remove(&question.key);
            }
        }
        self.touched.push(question.key.clone());
    }

    pub(crate) fn happened(&mut self, notification: ProcessNotification, now: Instant) {
        let ProcessNotification { key, seq, event, dropped_bytes } = notification;
        if seq == 0 || seq >= catch_up::MAX_SEQ {
            let process_id = key.process_id.clone();
            return self.fail(&key, Violation::Numbers { process_id });
        }
        let Some(process) = self.by_key.get_mut(&key) else { return };
        process.offer(seq, event, dropped_bytes);
        process.stalled = false;
        if process.has_outbound() {
            self.touched.push(key);
        } else if process.unconfirmed.any {
            self.ack_at.get_or_insert(now + ACK_DELAY);
        }
    }

    pub(crate) fn fail(&mut self, key: &ProcessKey, violation: Violation) {
        if let Some(process) = self.by_key.get_mut(key) {
            process.mirror.fail(violation.into());
            process.drain();
            self.touched.push(key.clone());
        }
    }

    /// When to call [`Self::handle_timeout`].
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        self.ack_at
    }

    pub(crate) fn handle_timeout(&mut self, now: Instant) {
        if self.ack_at.is_some_and(|at| now >= at) {
            self.ack_at = None;
            for process in self.by_key.values_mut() {
                process.unconfirmed.due |= process.unconfirmed.any;
                process.stalled = false;
            }
            self.collect_outbound();
        }
    }

    /// Schedules every process for the next [`Self::poll_outbound`].
    pub(crate) fn collect_outbound(&mut self) {
        self.touched = self.by_key.keys().cloned().collect();
    }

    /// Returns the next message to send. Call this only while calls are admitted.
    pub(crate) fn poll_outbound(&mut self) -> Option<OutboundMessage> {
        loop {
            if let Some(message) = self.outbound.pop_front() {
                return Some(message);
            }
            let key = self.touched.pop()?;
            if let Some(process) = self.by_key.get_mut(&key) {
                process.collect_outbound(self.acks, &mut self.outbound);
                // The process is confirmed, and terminated if necessary: it needs no further
                // message.
                if process.mirror.is_over() {
                    self.by_key.remove(&key);
                }
            }
        }
    }

    pub(crate) fn fail_all(&mut self, error: &ExecServerError) {
        for (_, process) in self.by_key.drain() {
            process.mirror.fail(error.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use exec_server_protocol::Method;

    use super::*;
    use crate::{GapPolicy, ProcessMirror};

    /// Abandons the call that opens a process. Returns the methods that the client then calls.
    fn calls_after_a_loss(open: fn(ProcessKey, ProcessMirror) -> ProcessState) -> Vec<Method> {
        let key = ProcessKey { observed_session: None, process_id: "p".to_owned() };
        let mirror = ProcessMirror::new("p", GapPolicy::Declared);
        let mut processes = Processes::default();
        processes.track(open(key.clone(), mirror)).unwrap();
        processes.abandon(&key, &ExecServerError::Closed);
        processes.collect_outbound();
        std::iter::from_fn(|| processes.poll_outbound())
            .filter_map(|message| match message {
                OutboundMessage::Call(call) => Some(call.method),
                OutboundMessage::Notify(_) => None,
            })
            .collect()
    }

    #[test]
    fn a_lost_start_is_terminated_and_a_lost_attach_is_not() {
        assert!(calls_after_a_loss(ProcessState::started).contains(&Method::ProcessTerminate));
        assert_eq!(calls_after_a_loss(ProcessState::attached), []);
    }
}

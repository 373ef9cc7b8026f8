//! One process of a client: which events were announced, accepted and confirmed, and which are
//! missing.

use std::collections::VecDeque;
use std::sync::Arc;

use exec_server_protocol::{
    AckParams, Method, ObserveParams, ReadParams, ReadResponse, Rpc as _, TerminateMode,
    TerminateParams, notification, rpc,
};

use crate::call::read_result;
use crate::calls::{Call, ProcessKey, ProcessQuery, ReplyTo};
use crate::mirror::{GapPolicy, MirrorEvent, Offer, ProcessMirror};
use crate::processes::OutboundMessage;
use crate::{ExecServerError, catch_up};

/// Output is confirmed once this many bytes are unconfirmed, or after a delay.
const ACK_BYTES: usize = 64 << 10;

#[derive(Debug)]
pub(crate) struct ProcessState {
    pub(crate) key: ProcessKey,
    /// Distinguishes successive processes with the same key.
    pub(crate) identity: u64,
    pub(crate) mirror: ProcessMirror,
    /// The last event that the server has announced, whether or not the mirror accepted it.
    announced: u64,
    /// The server may have more events than it announced, for example because the last read was
    /// truncated.
    unsure: bool,
    pub(crate) pulling: bool,
    /// The last read made no progress; the next one is delayed.
    pub(crate) stalled: bool,
    pub(crate) unconfirmed: Unconfirmed,
    pub(crate) started_here: bool,
    /// The process will never have a handle, its mirror has failed, or the outcome of its start is
    /// unknown. If it runs, it must be terminated. Reset when the termination is queued.
    pub(crate) abandoned: bool,
}

#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Unconfirmed {
    pub(crate) any: bool,
    pub(crate) due: bool,
    pub(crate) bytes: usize,
}

impl ProcessState {
    fn new(key: ProcessKey, mirror: ProcessMirror) -> Self {
        let announced = mirror.next_seq() - 1;
        let unconfirmed = Unconfirmed::default();
        Self {
            key,
            identity: 0,
            mirror,
            announced,
            unsure: false,
            pulling: false,
            stalled: false,
            unconfirmed,
            started_here: false,
            abandoned: false,
        }
    }

    pub(crate) fn started(key: ProcessKey, mirror: ProcessMirror) -> Self {
        Self { started_here: true, ..Self::new(key, mirror) }
    }

    pub(crate) fn observed(key: ProcessKey, mirror: ProcessMirror) -> Self {
        Self::new(key, mirror)
    }

    /// An attached process. The server may have events that it does not send unasked, because it
    /// sent them to another client.
    pub(crate) fn attached(key: ProcessKey, mirror: ProcessMirror) -> Self {
        Self { unsure: true, ..Self::new(key, mirror) }
    }

    pub(crate) fn key(&self) -> &ProcessKey {
        &self.key
    }

    pub(crate) fn is_observed(&self) -> bool {
        self.key.observed_session.is_some()
    }

    pub(crate) fn after(&self) -> u64 {
        self.mirror.next_seq() - 1
    }

    /// Returns the call that asks for the events after the last accepted one: a `process/read` of
    /// at most `max_bytes` or, for an observed process, another `process/observe`.
    pub(crate) fn request(&self, max_bytes: u64, reply_to: fn(ProcessQuery) -> ReplyTo) -> Call {
        let process_id = self.key.process_id.clone();
        let after = self.after();
        let reply_to =
            reply_to(ProcessQuery { key: self.key.clone(), identity: self.identity, after });
        let after_seq = Some(after);
        match &self.key.observed_session {
            None => {
                let max_bytes = Some(max_bytes);
                let params = ReadParams { process_id, after_seq, max_bytes, wait_ms: None };
                Call::internal(&rpc::ProcessRead::into_call(params), reply_to)
            }
            Some(session_id) => {
                let session_id = session_id.clone();
                let params = ObserveParams { session_id, process_id, after_seq };
                Call::internal(&rpc::ProcessObserve::into_call(params), reply_to)
            }
        }
    }

    /// Applies the response to [`Self::request`].
    pub(crate) fn take(&mut self, after: u64, result: &[u8]) -> Result<(), ExecServerError> {
        if self.is_observed() {
            // The events after the last accepted one follow as notifications.
            self.announced = self.after();
            return Ok(());
        }
        let response: ReadResponse = read_result(Method::ProcessRead, result)?;
        self.unconfirmed = Unconfirmed { any: true, due: true, bytes: 0 };
        self.announced = self.announced.max(response.next_seq.saturating_sub(1));
        self.unsure = !response.chunks.is_empty();
        // The mirror may have advanced since the request; it ignores known events.
        let before = self.after();
        catch_up::apply(&self.mirror, after, response)?;
        // Announced events that did not arrive may be in flight, or may not exist. Delay the next
        // read to avoid a busy loop.
        self.stalled = self.after() == before;
        Ok(())
    }

    pub(crate) fn offer(&mut self, seq: u64, event: MirrorEvent, dropped_bytes: u64) {
        let is_last = matches!(event, MirrorEvent::Closed);
        if is_last && self.mirror.exit().is_none() && !self.is_observed() {
            // The mirror lacks the exit: it lies in a gap, or came while earlier events were
            // missing. A read will report it.
            return self.announced = self.announced.max(seq);
        }
        // Skip the events that a slow observer missed. If the mirror has refused events, the next
        // `process/observe` reports the gap instead.
        if self.is_observed() && dropped_bytes > 0 && self.announced == self.after() {
            let _ = self.mirror.skip_to(seq, dropped_bytes);
        }
        let bytes = match &event {
            MirrorEvent::Output { chunk, .. } => chunk.len(),
            // Confirm at once, so that the server can forget the process.
            MirrorEvent::Exited { .. } | MirrorEvent::Closed => ACK_BYTES,
        };
        self.announced = self.announced.max(seq);
        if self.mirror.offer(seq, event) == Offer::Accepted {
            self.unconfirmed.any = true;
            self.unconfirmed.bytes += bytes;
            self.unconfirmed.due |= self.unconfirmed.bytes >= ACK_BYTES;
        }
    }

    pub(crate) fn has_outbound(&self) -> bool {
        self.unconfirmed.due || self.abandoned || self.is_behind()
    }

    /// Whether the mirror lacks events that the server has announced or may have.
    pub(crate) fn is_behind(&self) -> bool {
        (self.unsure || self.announced > self.after()) && !self.mirror.is_over()
    }

    pub(crate) fn collect_outbound(
        &mut self,
        acks: bool,
        outbound: &mut VecDeque<OutboundMessage>,
    ) {
        if self.unconfirmed.due {
            self.unconfirmed = Unconfirmed::default();
            if acks && !self.is_observed() && self.after() > 0 {
                outbound.push_back(self.confirm());
            }
        }
        let unwanted = self.mirror.take_unwanted() | std::mem::take(&mut self.abandoned);
        if unwanted && !self.is_observed() {
            outbound.push_back(OutboundMessage::Call(self.terminate()));
        }
        if self.is_behind()
            && !self.pulling
            && !self.stalled
            && let Some(room) = self.mirror.worthwhile_room()
        {
            self.pulling = true;
            outbound.push_back(OutboundMessage::Call(self.request(room as u64, ReplyTo::Pull)));
        }
    }

    fn confirm(&self) -> OutboundMessage {
        let process_id = self.key.process_id.clone();
        let seq = self.after();
        if !self.mirror.is_over() {
            let params = AckParams { process_id, seq };
            return OutboundMessage::Notify(notification(&params));
        }
        // Without this last confirmation, the server would keep the process as long as the session.
        // So instead of a notification, a `process/read` confirms: it is resent when lost.
        let (after_seq, max_bytes) = (Some(seq), Some(0));
        let params = ReadParams { process_id, after_seq, max_bytes, wait_ms: None };
        OutboundMessage::Call(Call {
            replay: true,
            ..Call::internal(&rpc::ProcessRead::into_call(params), ReplyTo::Nobody)
        })
    }

    /// Replaces the failed mirror with one that has no handle and only consumes the remaining
    /// events. The process will be terminated.
    pub(crate) fn drain(&mut self) {
        let process_id = self.key.process_id.clone();
        let next = self.mirror.next_seq();
        self.mirror = ProcessMirror::telling(process_id, GapPolicy::Declared, next, Arc::default());
        self.mirror.lose_handle();
        (self.unsure, self.stalled, self.abandoned) = (true, false, true);
    }

    fn terminate(&self) -> Call {
        let params = TerminateParams {
            process_id: self.key.process_id.clone(),
            mode: TerminateMode::Force,
            session_id: None,
        };
        // Must arrive: nothing else will terminate the process.
        let call = rpc::ProcessTerminate::into_call(params);
        Call { replay: true, ..Call::internal(&call, ReplyTo::Nobody) }
    }
}

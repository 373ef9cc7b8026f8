//! The processes that a client has handles for: where their events go, what is confirmed, what is missing.
//!
//! Decides and returns what to send; the driver sends it.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use exec_server_protocol::{
    AckParams, ClosedNotification, ErrorCode, ExitedNotification, Method, Notification,
    ObserveParams, OutputNotification, ReadParams, ReadResponse, RpcError, TerminateMode,
    TerminateParams, notification,
};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::calls::{Answer, Asker, Call, ProcessKey, Question};
use crate::driver::{internal, read_result};
use crate::mirror::{Gaps, MirrorEvent, Offer, ProcessMirror};
use crate::{ExecServerError, Violation, catch_up};

/// Output is confirmed after this much of it, or this long after it came.
const ACK_BYTES: usize = 64 << 10;
const ACK_DELAY: Duration = Duration::from_millis(100);
/// The first read after a reconnect only has to show that nothing is missing; the rest follows by itself.
const CATCH_UP_BYTES: u64 = 64 << 10;

#[derive(Debug, Default)]
pub(crate) struct Processes {
    by_key: HashMap<ProcessKey, Tracked>,
    identities: u64,
    /// Those that may have an errand.
    touched: Vec<ProcessKey>,
    errands: VecDeque<Errand>,
    /// Whether the server wants output confirmed.
    acks: bool,
    ack_at: Option<Instant>,
}

/// Something to be sent.
#[derive(Debug)]
pub(crate) enum Errand {
    Call(Call),
    Notify(Vec<u8>),
}

#[derive(Debug)]
pub(crate) struct Tracked {
    key: ProcessKey,
    /// Tells it from others that had the same key.
    identity: u64,
    mirror: ProcessMirror,
    /// The last event that the server has announced, taken or not.
    announced: u64,
    /// The last read may have been cut short, so there may be more than was announced.
    unsure: bool,
    pulling: bool,
    /// The last read brought nothing; the next one waits a little.
    stalled: bool,
    unconfirmed: Unconfirmed,
    started_here: bool,
    /// Nobody has a handle, or nobody knows whether its start took effect: if it did, it is to be ended.
    abandoned: bool,
}

#[derive(Debug, Clone, Copy, Default)]
struct Unconfirmed {
    any: bool,
    /// Whether it is time to confirm.
    due: bool,
    bytes: usize,
}

impl Tracked {
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

    /// One of which the server may have events that it does not send by itself: another client has had them.
    pub(crate) fn attached(key: ProcessKey, mirror: ProcessMirror) -> Self {
        Self { unsure: true, ..Self::new(key, mirror) }
    }

    pub(crate) fn key(&self) -> &ProcessKey {
        &self.key
    }

    fn is_observed(&self) -> bool {
        self.key.observed_session.is_some()
    }

    fn after(&self) -> u64 {
        self.mirror.next_seq() - 1
    }

    /// Brings the events after the last one that is here, at most so many bytes at once.
    fn request(&self, max_bytes: u64, asker: fn(Question) -> Asker) -> Call {
        let process_id = self.key.process_id.clone();
        let after = self.after();
        let asker = asker(Question { key: self.key.clone(), identity: self.identity, after });
        let after_seq = Some(after);
        match &self.key.observed_session {
            None => {
                let max_bytes = Some(max_bytes);
                let params = ReadParams { process_id, after_seq, max_bytes, wait_ms: None };
                internal(Method::ProcessRead, &params, asker)
            }
            Some(session_id) => {
                let session_id = session_id.clone();
                let params = ObserveParams { session_id, process_id, after_seq };
                internal(Method::ProcessObserve, &params, asker)
            }
        }
    }

    /// Takes what [`Self::request`] brought.
    fn take(&mut self, after: u64, result: &RawValue) -> Result<(), ExecServerError> {
        if self.is_observed() {
            // The events themselves follow as notifications, from where we are.
            self.announced = self.after();
            return Ok(());
        }
        let response: ReadResponse = read_result(Method::ProcessRead, result)?;
        self.unconfirmed = Unconfirmed { any: true, due: true, bytes: 0 };
        self.announced = self.announced.max(response.next_seq.saturating_sub(1));
        self.unsure = !response.chunks.is_empty();
        // The mirror may have moved on since the request; what it has it ignores.
        let before = self.after();
        catch_up::apply(&self.mirror, after, response)?;
        // What was announced and did not come may be a lie, or on its way: no reason to ask as fast as we can.
        self.stalled = self.after() == before;
        Ok(())
    }

    fn offer(&mut self, seq: u64, event: MirrorEvent, dropped_bytes: u64) {
        let is_last = matches!(event, MirrorEvent::Closed);
        if is_last && self.mirror.exit().is_none() && !self.is_observed() {
            // The exit lies in a gap; a read knows it.
            return self.announced = self.announced.max(seq);
        }
        // What an observer was too slow for is gone, unless it was we who had no room.
        if self.is_observed() && dropped_bytes > 0 && self.announced == self.after() {
            let _ = self.mirror.skip_to(seq, dropped_bytes);
        }
        let bytes = match &event {
            MirrorEvent::Output { chunk, .. } => chunk.len(),
            // At once: the server may forget a process that has closed.
            MirrorEvent::Exited { .. } | MirrorEvent::Closed => ACK_BYTES,
        };
        self.announced = self.announced.max(seq);
        if self.mirror.offer(seq, event) == Offer::Accepted {
            self.unconfirmed.any = true;
            self.unconfirmed.bytes += bytes;
            self.unconfirmed.due |= self.unconfirmed.bytes >= ACK_BYTES;
        }
    }

    fn has_errand(&self) -> bool {
        self.unconfirmed.due || self.abandoned || self.is_behind()
    }

    /// Whether the server has announced what is not here.
    fn is_behind(&self) -> bool {
        (self.unsure || self.announced > self.after()) && !self.mirror.is_over()
    }

    fn tend(&mut self, acks: bool, errands: &mut VecDeque<Errand>) {
        if self.unconfirmed.due {
            self.unconfirmed = Unconfirmed::default();
            if acks && !self.is_observed() && self.after() > 0 {
                errands.push_back(self.confirm());
            }
        }
        let unwanted = self.mirror.take_unwanted() | std::mem::take(&mut self.abandoned);
        if unwanted && !self.is_observed() {
            errands.push_back(Errand::Call(self.terminate()));
        }
        if self.is_behind()
            && !self.pulling
            && !self.stalled
            && let Some(room) = self.mirror.worthwhile_room()
        {
            self.pulling = true;
            errands.push_back(Errand::Call(self.request(room as u64, Asker::Pull)));
        }
    }

    fn confirm(&self) -> Errand {
        let process_id = self.key.process_id.clone();
        let seq = self.after();
        if !self.mirror.is_over() {
            let params = AckParams { process_id, seq };
            return Errand::Notify(notification("process/ack", &params));
        }
        // No later confirmation makes up for this one, and without it the server keeps the process as long as the
        // session. A read confirms too, and is sent again when it is lost.
        let (after_seq, max_bytes) = (Some(seq), Some(0));
        let params = ReadParams { process_id, after_seq, max_bytes, wait_ms: None };
        Errand::Call(Call { replay: true, ..internal(Method::ProcessRead, &params, Asker::Nobody) })
    }

    /// Goes on for nobody.
    fn drain(&mut self) {
        let process_id = self.key.process_id.clone();
        let next = self.mirror.next_seq();
        self.mirror = ProcessMirror::telling(process_id, Gaps::Declared, next, Arc::default());
        self.mirror.lose_handle();
        (self.unsure, self.stalled, self.abandoned) = (true, false, true);
    }

    fn terminate(&self) -> Call {
        let params = TerminateParams {
            process_id: self.key.process_id.clone(),
            mode: TerminateMode::Force,
            session_id: None,
        };
        // It must arrive: nobody else will end the process.
        Call { replay: true, ..internal(Method::ProcessTerminate, &params, Asker::Nobody) }
    }
}

impl Processes {
    pub(crate) fn confirm_output(&mut self, acks: bool) {
        self.acks = acks;
    }

    /// Fails when the id is taken: the process that has it must keep its events. One that nobody has a handle of any
    /// more may be attached or observed anew.
    pub(crate) fn track(&mut self, process: Tracked) -> Result<(), ExecServerError> {
        let replaceable = |other: &Tracked| {
            !process.started_here && !other.abandoned && other.mirror.is_without_handle()
        };
        if self.by_key.get(&process.key).is_some_and(|other| !replaceable(other)) {
            let message = match &process.key.observed_session {
                None => {
                    format!("process {:?} already exists in this session", process.key.process_id)
                }
                Some(_) => format!("process {:?} is observed already", process.key.process_id),
            };
            let error = RpcError::new(ErrorCode::InvalidRequest, message);
            return Err(ExecServerError::Server(error.with_kind("duplicateProcess")));
        }
        self.identities += 1;
        let process = Tracked { identity: self.identities, ..process };
        self.by_key.insert(process.key.clone(), process);
        Ok(())
    }

    /// The call that brought a process was answered.
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
                // Nobody has a handle, and nobody ever will.
                process.abandoned = true;
                self.touched.push(key.clone());
            }
            Some(_) if nobody_waits || failed => drop(self.by_key.remove(key)),
            Some(_) => self.touched.push(key.clone()),
        }
    }

    /// The connection was lost before the answer to a start.
    pub(crate) fn abandon(&mut self, key: &ProcessKey) {
        if let Some(process) = self.by_key.get_mut(key) {
            process.abandoned = true;
        }
    }

    pub(crate) fn connection_lost(&mut self) {
        for process in self.by_key.values_mut() {
            process.pulling = false;
        }
    }

    /// One question for each process, and the end of those that nobody wants.
    pub(crate) fn catch_up(&mut self) -> Vec<Call> {
        let mut calls = Vec::new();
        for process in self.by_key.values_mut() {
            calls.push(process.request(CATCH_UP_BYTES, Asker::CatchUp));
            // Confirmations may have been lost.
            process.unconfirmed = Unconfirmed { any: true, due: true, bytes: 0 };
        }
        self.tend_all();
        calls
    }

    pub(crate) fn caught_up(&mut self, question: &Question, answer: Answer, now: Instant) {
        self.take(question, answer, now);
    }

    pub(crate) fn pulled(&mut self, question: &Question, answer: Answer, now: Instant) {
        if let Some(process) = self.asked(question) {
            process.pulling = false;
        }
        self.take(question, answer, now);
    }

    /// The process that a question was about, if it is still that one.
    fn asked(&mut self, question: &Question) -> Option<&mut Tracked> {
        let process = self.by_key.get_mut(&question.key)?;
        (process.identity == question.identity).then_some(process)
    }

    /// A process that cannot be read any more fails alone.
    fn take(&mut self, question: &Question, answer: Answer, now: Instant) {
        let Some(process) = self.asked(question) else { return };
        let taken = answer.and_then(|result| process.take(question.after, &result));
        let stalled = process.stalled;
        match taken {
            Ok(()) if stalled => drop(self.ack_at.get_or_insert(now + ACK_DELAY)),
            Ok(()) => {}
            Err(error @ ExecServerError::Gap { .. }) => {
                process.mirror.fail(error);
                // It is ended, and its last events are confirmed, or the server would keep them with the session.
                process.drain();
            }
            Err(error) => {
                process.mirror.fail(error);
                self.by_key.remove(&question.key);
            }
        }
        self.touched.push(question.key.clone());
    }

    /// An event of a process, or something that is none of ours. One that cannot be read fails its process alone; if
    /// nobody knows whose it is, nothing can be relied on any more.
    pub(crate) fn notified(
        &mut self,
        notification: &Notification<'_>,
        now: Instant,
    ) -> Result<(), Violation> {
        match read_event(notification) {
            Ok(Some(notified)) => self.happened(notified, now),
            Ok(None) => {
                tracing::debug!(method = %notification.method, "a notification of no process");
            }
            Err(violation) => self.fail_its_process(notification, violation)?,
        }
        Ok(())
    }

    fn happened(&mut self, Notified { key, seq, event, dropped_bytes }: Notified, now: Instant) {
        let Some(process) = self.by_key.get_mut(&key) else { return };
        process.offer(seq, event, dropped_bytes);
        process.stalled = false;
        if process.has_errand() {
            self.touched.push(key);
        } else if process.unconfirmed.any {
            self.ack_at.get_or_insert(now + ACK_DELAY);
        }
    }

    fn fail_its_process(
        &mut self,
        notification: &Notification<'_>,
        violation: Violation,
    ) -> Result<(), Violation> {
        let Ok(ProcessName { process_id, session_id }) = read(notification) else {
            return Err(violation);
        };
        let key = key(session_id, process_id);
        if let Some(process) = self.by_key.get_mut(&key) {
            process.mirror.fail(violation.into());
            process.drain();
            self.touched.push(key);
        }
        Ok(())
    }

    /// When [`Self::handle_timeout`] wants to be called.
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
            self.tend_all();
        }
    }

    /// Looks at every process at the next [`Self::poll_errand`].
    pub(crate) fn tend_all(&mut self) {
        self.touched = self.by_key.keys().cloned().collect();
    }

    /// What has to be sent now. Only to be asked while calls may go through.
    pub(crate) fn poll_errand(&mut self) -> Option<Errand> {
        loop {
            if let Some(errand) = self.errands.pop_front() {
                return Some(errand);
            }
            let key = self.touched.pop()?;
            if let Some(process) = self.by_key.get_mut(&key) {
                process.tend(self.acks, &mut self.errands);
                // Confirmed, and ended if it had to be: nothing more will come of it.
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

/// An event as it was notified.
struct Notified {
    key: ProcessKey,
    seq: u64,
    event: MirrorEvent,
    dropped_bytes: u64,
}

/// As much of a notification as is needed to say whose it is.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ProcessName {
    process_id: String,
    session_id: Option<String>,
}

fn read_event(notification: &Notification<'_>) -> Result<Option<Notified>, Violation> {
    let notified = match &*notification.method {
        "process/output" => {
            let params: OutputNotification = read(notification)?;
            Notified {
                key: key(params.session_id, params.process_id),
                seq: params.seq,
                event: MirrorEvent::Output { stream: params.stream, chunk: params.chunk.0 },
                dropped_bytes: params.dropped_bytes,
            }
        }
        "process/exited" => {
            let params: ExitedNotification = read(notification)?;
            Notified {
                key: key(params.session_id, params.process_id),
                seq: params.seq,
                event: MirrorEvent::Exited {
                    exit_code: params.exit_code,
                    sandbox_denied: params.sandbox_denied,
                    details: params.exit,
                },
                dropped_bytes: params.dropped_bytes,
            }
        }
        "process/closed" => {
            let params: ClosedNotification = read(notification)?;
            Notified {
                key: key(params.session_id, params.process_id),
                seq: params.seq,
                event: MirrorEvent::Closed,
                dropped_bytes: params.dropped_bytes,
            }
        }
        _ => return Ok(None),
    };
    if notified.seq == 0 || notified.seq >= catch_up::MAX_SEQ {
        return Err(Violation::Numbers { process_id: notified.key.process_id });
    }
    Ok(Some(notified))
}

fn key(observed_session: Option<String>, process_id: String) -> ProcessKey {
    ProcessKey { observed_session, process_id }
}

fn read<T: DeserializeOwned>(notification: &Notification<'_>) -> Result<T, Violation> {
    let text = notification.params.map_or("{}", RawValue::get);
    serde_json::from_str(text).map_err(|source| Violation::Notification {
        method: notification.method.clone().into_owned(),
        source,
    })
}

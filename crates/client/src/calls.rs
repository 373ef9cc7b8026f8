//! Calls that wait for their responses. Decides which are resent and which fail when the connection
//! is lost.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use exec_server_protocol::{Method, RequestId, RpcError, request};
use serde_json::value::RawValue;
use tokio::sync::oneshot;

use crate::ExecServerError;
use crate::leases::LeaseId;
use crate::recovery::Generation;

/// The result of a call as JSON text, which is a slice of the message that carried it, or the
/// error. The caller decodes the text.
pub(crate) type Answer = Result<Bytes, ExecServerError>;

#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) method: Method,
    pub(crate) params: Box<RawValue>,
    /// Whether the call may be resent if the connection is lost before the response.
    pub(crate) replay: bool,
    pub(crate) losses: u32,
    pub(crate) reply_to: ReplyTo,
}

#[derive(Debug)]
pub(crate) enum ReplyTo {
    Caller(oneshot::Sender<Answer>),
    /// A call that starts, attaches to or observes a process.
    Opening(ProcessKey, oneshot::Sender<Answer>),
    /// A call that opens a lease. Never resent.
    Leasing(LeaseId, oneshot::Sender<Answer>),
    Handshake(Generation),
    /// Reads the events that the client missed while it was disconnected.
    CatchUp(ProcessQuery),
    /// Reads events that a mirror lacks: it had no room for them, or the server does not send them
    /// unasked.
    Pull(ProcessQuery),
    Nobody,
}

/// The driver's query about a process. Identifies the process, so that a late response does not
/// reach its successor under the same key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ProcessQuery {
    pub(crate) key: ProcessKey,
    pub(crate) identity: u64,
    /// The last event that the mirror had accepted when the query was sent.
    pub(crate) after: u64,
}

/// Names a process of this session or of an observed session.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct ProcessKey {
    pub(crate) observed_session: Option<String>,
    pub(crate) process_id: String,
}

/// A call fails after this many lost connections: the call itself may break them.
pub(crate) const MAX_LOSSES: u32 = 100;

#[derive(Debug, Default)]
pub(crate) struct PendingCalls {
    next_id: i64,
    /// Calls below this id have left the server's queue: the server has answered the last of them,
    /// or their connection is lost.
    taken_up_to: i64,
    /// In the order sent.
    in_flight: BTreeMap<i64, Call>,
    /// Not sent yet, because the server's queue may be full.
    held: VecDeque<Call>,
    /// To be resent, in the original order.
    lost: VecDeque<Call>,
}

impl PendingCalls {
    /// Records the call as sent and returns the text of its request. [`Self::answered`] returns the
    /// call when its response arrives.
    pub(crate) fn send(&mut self, call: Call) -> Vec<u8> {
        let id = self.next_id;
        self.next_id += 1;
        let text = request(&RequestId::Integer(id), call.method.name(), &call.params);
        self.in_flight.insert(id, call);
        text
    }

    pub(crate) fn answered(&mut self, id: &RequestId) -> Option<Call> {
        let RequestId::Integer(id) = id else { return None };
        let call = self.in_flight.remove(id)?;
        self.taken_up_to = self.taken_up_to.max(*id + 1);
        Some(call)
    }

    pub(crate) fn queued_at_most(&self) -> i64 {
        self.next_id - self.taken_up_to
    }

    pub(crate) fn hold(&mut self, call: Call) {
        self.held.push_back(call);
    }

    pub(crate) fn has_held(&self) -> bool {
        !self.held.is_empty()
    }

    pub(crate) fn next_held(&mut self) -> Option<Call> {
        self.held.pop_front()
    }

    /// Called when the connection is lost. Returns the calls that cannot be resent;
    /// [`Self::next_lost`] returns the others.
    pub(crate) fn lose(&mut self) -> Vec<Call> {
        self.taken_up_to = self.next_id;
        let mut failed = Vec::new();
        let in_flight = std::mem::take(&mut self.in_flight).into_values();
        for mut call in in_flight.chain(std::mem::take(&mut self.held)) {
            call.losses += 1;
            if call.replay && call.losses < MAX_LOSSES {
                self.lost.push_back(call);
            } else {
                failed.push(call);
            }
        }
        failed
    }

    /// Returns the next call to resend. Skips calls whose caller is gone, except those that attach
    /// to or observe a process: when their response arrives, the driver forgets the process.
    pub(crate) fn next_lost(&mut self) -> Option<Call> {
        loop {
            let call = self.lost.pop_front()?;
            if !call.reply_to.is_gone() || matches!(call.reply_to, ReplyTo::Opening(..)) {
                return Some(call);
            }
        }
    }

    /// Processes whose start has no response yet.
    pub(crate) fn starts_in_flight(&self) -> impl Iterator<Item = &ProcessKey> {
        self.in_flight.values().chain(&self.held).filter_map(|call| {
            match (&call.reply_to, call.method) {
                (ReplyTo::Opening(key, _), Method::ProcessStart) => Some(key),
                _ => None,
            }
        })
    }

    pub(crate) fn take_all(&mut self) -> Vec<Call> {
        let in_flight = std::mem::take(&mut self.in_flight).into_values();
        let held = std::mem::take(&mut self.held);
        in_flight.chain(held).chain(std::mem::take(&mut self.lost)).collect()
    }
}

impl ReplyTo {
    pub(crate) fn tell(self, answer: Answer) {
        match self {
            Self::Caller(sender) | Self::Opening(_, sender) | Self::Leasing(_, sender) => {
                drop(sender.send(answer));
            }
            Self::Handshake(_) | Self::CatchUp(_) | Self::Pull(_) | Self::Nobody => {}
        }
    }

    pub(crate) fn is_gone(&self) -> bool {
        match self {
            Self::Caller(sender) | Self::Opening(_, sender) | Self::Leasing(_, sender) => {
                sender.is_closed()
            }
            Self::Handshake(_) | Self::CatchUp(_) | Self::Pull(_) | Self::Nobody => false,
        }
    }
}

impl Call {
    /// Makes a call for the driver itself. By default it is not resent when lost: the driver
    /// handles the loss.
    pub(crate) fn internal(call: &exec_server_protocol::Call, reply_to: ReplyTo) -> Self {
        let (method, params) = (call.method(), call.encode_params());
        Self { method, params, replay: false, losses: 0, reply_to }
    }
}

/// Leaves out `data` if it cannot be read: other servers may put anything into it.
pub(crate) fn read_error(error: &RawValue) -> RpcError {
    #[derive(serde::Deserialize)]
    struct Lenient {
        code: i64,
        message: String,
    }
    serde_json::from_str(error.get()).unwrap_or_else(|_| {
        match serde_json::from_str::<Lenient>(error.get()) {
            Ok(Lenient { code, message }) => RpcError { code, message, data: None },
            Err(why) => RpcError::internal(format!("cannot decode the server's error: {why}")),
        }
    })
}

#[cfg(test)]
mod tests {
    use exec_server_protocol::ErrorKind;

    use super::*;

    fn call(method: Method, replay: bool) -> (Call, oneshot::Receiver<Answer>) {
        let (sender, receiver) = oneshot::channel();
        let params = RawValue::from_string("{}".into()).unwrap();
        (Call { method, params, replay, losses: 0, reply_to: ReplyTo::Caller(sender) }, receiver)
    }

    #[test]
    fn answers_find_their_calls_once() {
        let mut calls = PendingCalls::default();
        let (list, _waits) = call(Method::ProcessList, true);
        assert_eq!(calls.send(list), br#"{"id":0,"method":"process/list","params":{}}"#);
        assert!(calls.answered(&RequestId::Integer(1)).is_none());
        assert!(calls.answered(&RequestId::String("0".into())).is_none());
        assert!(calls.answered(&RequestId::Integer(0)).is_some());
        assert!(calls.answered(&RequestId::Integer(0)).is_none());
    }

    #[test]
    fn replayable_calls_are_resent_in_order_and_others_fail() {
        let mut calls = PendingCalls::default();
        let mut waiting = Vec::new();
        for (method, replay) in [
            (Method::ProcessWrite, true),
            (Method::ProcessStart, false),
            (Method::ProcessCloseStdin, true),
        ] {
            let (call, receiver) = call(method, replay);
            calls.send(call);
            waiting.push(receiver);
        }
        let (abandoned, _) = call(Method::ProcessRead, true);
        calls.send(abandoned);
        let failed: Vec<_> = calls.lose().into_iter().map(|call| call.method).collect();
        assert_eq!(failed, [Method::ProcessStart]);
        let again: Vec<_> =
            std::iter::from_fn(|| calls.next_lost()).map(|call| call.method).collect();
        assert_eq!(again, [Method::ProcessWrite, Method::ProcessCloseStdin]);
    }

    #[test]
    fn errors_of_any_server_are_read() {
        let read = |text: &str| read_error(&RawValue::from_string(text.into()).unwrap());
        let ours = read(r#"{"code":-32600,"message":"no","data":{"kind":"unknownProcess"}}"#);
        assert_eq!(ours.kind(), Some(&ErrorKind::UnknownProcess));
        assert_eq!(read(r#"{"code":-1,"message":"no","data":[1]}"#).message, "no");
        assert_eq!(read("7").code, -32603);
    }
}

//! Calls that wait for their answers, and what becomes of them when the connection is lost.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use exec_server_protocol::{Method, RequestId, RpcError, request};
use serde_json::value::RawValue;
use tokio::sync::oneshot;

use crate::ExecServerError;
use crate::leases::LeaseId;
use crate::recovery::Generation;

/// A response as text, a part of the message that brought it. The caller decodes it.
pub(crate) type Answer = Result<Bytes, ExecServerError>;

/// A request, and who wants to know.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) method: Method,
    pub(crate) params: Box<RawValue>,
    /// Whether it may be sent again when the connection is lost before the answer.
    pub(crate) replay: bool,
    /// How often the connection was lost before the answer.
    pub(crate) losses: u32,
    pub(crate) reply_to: ReplyTo,
}

/// Who wants to know.
#[derive(Debug)]
pub(crate) enum ReplyTo {
    Caller(oneshot::Sender<Answer>),
    /// A call that brought a process with it.
    Opening(ProcessKey, oneshot::Sender<Answer>),
    /// A call that opens something for as long as the connection lives. It is never sent again.
    Leasing(LeaseId, oneshot::Sender<Answer>),
    /// The handshake of a connection.
    Handshake(Generation),
    /// What a process missed while there was no connection.
    CatchUp(ProcessQuery),
    /// What a process had no room for.
    Pull(ProcessQuery),
    /// Nobody.
    Nobody,
}

/// What the driver asked about a process, so that an answer that comes late meets nobody else.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ProcessQuery {
    pub(crate) key: ProcessKey,
    /// Which of the processes that had this key.
    pub(crate) identity: u64,
    /// The last event that was here when it was asked.
    pub(crate) after: u64,
}

/// Names a process: of this session, or of one that is observed.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct ProcessKey {
    pub(crate) observed_session: Option<String>,
    pub(crate) process_id: String,
}

/// A call that never gets an answer may be what ends the connection each time.
pub(crate) const MAX_LOSSES: u32 = 100;

#[derive(Debug, Default)]
pub(crate) struct PendingCalls {
    next_id: i64,
    /// Calls up to this one have left the queue of the server, because it has answered this one.
    taken_up_to: i64,
    /// In the order they were sent.
    in_flight: BTreeMap<i64, Call>,
    /// Not sent yet, because the queue of the server may be full.
    held: VecDeque<Call>,
    /// To be sent again, in the order they were sent.
    lost: VecDeque<Call>,
}

impl PendingCalls {
    /// The text of the request; its answer will be found by [`Self::answered`].
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

    /// The most that can wait in the queue of the server.
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

    /// The connection is lost. Returns the calls that cannot be sent again; the others wait for
    /// [`Self::next_lost`].
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

    /// The next call to be sent again, unless nobody waits for it any more. What opened a process is sent all the same:
    /// its answer ends what nobody has a handle of.
    pub(crate) fn next_lost(&mut self) -> Option<Call> {
        loop {
            let call = self.lost.pop_front()?;
            if !call.reply_to.is_gone() || matches!(call.reply_to, ReplyTo::Opening(..)) {
                return Some(call);
            }
        }
    }

    /// The processes whose starts are not answered yet.
    pub(crate) fn starts_in_flight(&self) -> impl Iterator<Item = &ProcessKey> {
        self.in_flight.values().chain(&self.held).filter_map(|call| {
            match (&call.reply_to, call.method) {
                (ReplyTo::Opening(key, _), Method::ProcessStart) => Some(key),
                _ => None,
            }
        })
    }

    /// Everything that waits, to be told that it is over.
    pub(crate) fn take_all(&mut self) -> Vec<Call> {
        let in_flight = std::mem::take(&mut self.in_flight).into_values();
        let held = std::mem::take(&mut self.held);
        in_flight.chain(held).chain(std::mem::take(&mut self.lost)).collect()
    }
}

impl ReplyTo {
    /// Hands the answer to whoever waits for one.
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
    /// A call of the driver's own; what becomes of it when the connection is lost, the driver knows.
    pub(crate) fn internal(call: &exec_server_protocol::Call, reply_to: ReplyTo) -> Self {
        let (method, params) = (call.method(), call.encode_params());
        Self { method, params, replay: false, losses: 0, reply_to }
    }
}

/// Reads the `error` member of an answer. Other servers may put anything into `data`.
pub(crate) fn read_error(error: &RawValue) -> RpcError {
    #[derive(serde::Deserialize)]
    struct Lenient {
        code: i64,
        message: String,
    }
    serde_json::from_str(error.get()).unwrap_or_else(|_| {
        match serde_json::from_str::<Lenient>(error.get()) {
            Ok(Lenient { code, message }) => RpcError { code, message, data: None },
            Err(_) => RpcError::internal("the server's error cannot be read"),
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
    fn harmless_calls_are_sent_again_in_order_and_others_fail() {
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

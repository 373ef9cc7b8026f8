//! One call as its caller sees it: sent, then awaited.

use std::marker::PhantomData;
use std::sync::Arc;

use exec_server_protocol::{
    DecodeError, MAX_JSON_VALUES, MAX_MESSAGE_BYTES, Method, Replay, RequestId, Rpc, check_bounds,
    request,
};
use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::value::{RawValue, to_raw_value};
use tokio::sync::oneshot;

use crate::calls::{Answer, Call, ReplyTo};
use crate::in_process::CallResult;
use crate::{ExecServerError, Violation};

/// Upper bound on the size of a request without its params.
const ENVELOPE_BYTES: usize = 1024;

/// A pending response. Dropping it does not cancel the call.
#[derive(Debug)]
pub(crate) struct PendingReply<R> {
    receiver: Receiver,
    method: PhantomData<fn() -> R>,
}

#[derive(Debug)]
enum Receiver {
    Json(oneshot::Receiver<Answer>),
    InProcess(oneshot::Receiver<CallResult>),
}

impl<R: Rpc> PendingReply<R> {
    fn over_connection(receiver: oneshot::Receiver<Answer>) -> Self {
        Self { receiver: Receiver::Json(receiver), method: PhantomData }
    }

    pub(crate) fn in_process(receiver: oneshot::Receiver<CallResult>) -> Self {
        Self { receiver: Receiver::InProcess(receiver), method: PhantomData }
    }

    pub(crate) async fn answer(self) -> Result<R::Response, ExecServerError> {
        // Every call is answered; the sender is dropped early only if its runtime shuts down.
        match self.receiver {
            Receiver::Json(receiver) => {
                let answer = receiver.await.unwrap_or(Err(ExecServerError::Closed))?;
                read_result(R::METHOD, &answer)
            }
            Receiver::InProcess(receiver) => match receiver.await {
                Ok(returned) => read_returned::<R>(returned),
                Err(_) => Err(ExecServerError::Closed),
            },
        }
    }

    /// Takes the response, if it has arrived. Must not be called again after it returns `Some`.
    pub(crate) fn answer_if_there(&mut self) -> Option<Result<R::Response, ExecServerError>> {
        use oneshot::error::TryRecvError;
        match &mut self.receiver {
            Receiver::Json(receiver) => match receiver.try_recv() {
                Ok(answer) => Some(answer.and_then(|answer| read_result(R::METHOD, &answer))),
                Err(TryRecvError::Empty) => None,
                Err(TryRecvError::Closed) => Some(Err(ExecServerError::Closed)),
            },
            Receiver::InProcess(receiver) => match receiver.try_recv() {
                Ok(returned) => Some(read_returned::<R>(returned)),
                Err(TryRecvError::Empty) => None,
                Err(TryRecvError::Closed) => Some(Err(ExecServerError::Closed)),
            },
        }
    }
}

fn read_returned<R: Rpc>(returned: CallResult) -> Result<R::Response, ExecServerError> {
    let response = returned.map_err(ExecServerError::Server)?;
    Ok(R::from_response(response).expect("the response belongs to the method of its call"))
}

pub(crate) fn prepare<R: Rpc>(
    params: &R::Params,
    reply_to: impl FnOnce(oneshot::Sender<Answer>) -> ReplyTo,
) -> Result<(Call, PendingReply<R>), ExecServerError> {
    let (sender, receiver) = oneshot::channel();
    let params = to_raw_value(params).expect("params have only string keys");
    check_size(R::METHOD, &params)?;
    let reply_to = reply_to(sender);
    let replay = match R::REPLAY {
        // Sending the call again would open a second lease.
        _ if matches!(reply_to, ReplyTo::Leasing(..)) => false,
        Replay::Idempotent => true,
        Replay::WithWriteId => has_write_id(&params),
        Replay::Never => false,
    };
    let call = Call { method: R::METHOD, params, replay, losses: 0, reply_to };
    Ok((call, PendingReply::over_connection(receiver)))
}

pub(crate) fn read_result<T: DeserializeOwned>(
    method: Method,
    result: &[u8],
) -> Result<T, ExecServerError> {
    serde_json::from_slice(result)
        .map_err(|source| Violation::Result { method: method.name(), source }.into())
}

/// Rejects messages that the server would refuse unread. Its error could not name the id of the
/// request, so the caller would wait forever.
fn check_size(method: Method, params: &RawValue) -> Result<(), ExecServerError> {
    let len = params.get().len() + ENVELOPE_BYTES;
    let checked = if len > MAX_MESSAGE_BYTES {
        Err(DecodeError::TooLarge { len })
    } else if len > MAX_JSON_VALUES && most_values(params) > MAX_JSON_VALUES {
        check_bounds(&request(&RequestId::Integer(0), method.name(), params))
    } else {
        Ok(())
    };
    checked.map_err(|error| ExecServerError::TooLarge {
        method: method.name(),
        source: Arc::new(error),
    })
}

/// An upper bound on the number of values: each value but the first follows `,`, `:`, `[` or `{`.
/// Long strings contain few of these bytes, and counting is many times faster than parsing.
fn most_values(params: &RawValue) -> usize {
    let before_a_value = |&byte: &u8| {
        u8::from(byte == b',')
            | u8::from(byte == b':')
            | u8::from(byte == b'[')
            | u8::from(byte == b'{')
    };
    // The count within a chunk fits into a `u8`, so the compiler can vectorize the loop.
    let pieces = params.get().as_bytes().chunks(usize::from(u8::MAX));
    1 + pieces.map(|piece| usize::from(piece.iter().map(before_a_value).sum::<u8>())).sum::<usize>()
}

fn has_write_id(params: &RawValue) -> bool {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Named {
        write_id: Option<IgnoredAny>,
    }
    serde_json::from_str::<Named>(params.get()).is_ok_and(|named| named.write_id.is_some())
}

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

use crate::calls::{Answer, Asker, Call};
use crate::{ExecServerError, Violation};

/// Room for what is around the params of a request.
const ENVELOPE_BYTES: usize = 1024;

/// An answer that is on its way. Dropping it does not take the call back.
#[derive(Debug)]
pub(crate) struct Waiting<R> {
    receiver: oneshot::Receiver<Answer>,
    method: PhantomData<R>,
}

impl<R: Rpc> Waiting<R> {
    pub(crate) async fn answer(self) -> Result<R::Response, ExecServerError> {
        // The driver answers every call it takes; it is gone only when the runtime is.
        let answer = self.receiver.await.unwrap_or(Err(ExecServerError::Closed))?;
        read_result(R::METHOD, &answer)
    }

    /// The answer, if it has come, once.
    pub(crate) fn answer_if_there(&mut self) -> Option<Result<R::Response, ExecServerError>> {
        let answer = match self.receiver.try_recv() {
            Ok(answer) => answer,
            Err(oneshot::error::TryRecvError::Empty) => return None,
            Err(oneshot::error::TryRecvError::Closed) => Err(ExecServerError::Closed),
        };
        Some(answer.and_then(|answer| read_result(R::METHOD, &answer)))
    }
}

/// Makes the call and the place where its answer will be.
pub(crate) fn prepare<R: Rpc>(
    params: &R::Params,
    asker: impl FnOnce(oneshot::Sender<Answer>) -> Asker,
) -> Result<(Call, Waiting<R>), ExecServerError> {
    let (sender, receiver) = oneshot::channel();
    let params = to_raw_value(params).expect("params have only string keys");
    check_size(R::METHOD, &params)?;
    let asker = asker(sender);
    let replay = match R::REPLAY {
        // What is opened anew is another one.
        _ if matches!(asker, Asker::Leasing(..)) => false,
        Replay::Harmless => true,
        Replay::WithWriteId => has_write_id(&params),
        Replay::Never => false,
    };
    let call = Call { method: R::METHOD, params, replay, losses: 0, asker };
    Ok((call, Waiting { receiver, method: PhantomData }))
}

/// Decodes an answer.
pub(crate) fn read_result<T: DeserializeOwned>(
    method: Method,
    result: &RawValue,
) -> Result<T, ExecServerError> {
    serde_json::from_str(result.get())
        .map_err(|source| Violation::Result { method: method.name(), source }.into())
}

/// What the server would refuse as a whole it could not answer by its id; nobody would ever hear of it.
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

/// No fewer than there are: each value but the first follows one of these. A long text has few of them or none, and
/// counting is many times faster than reading.
fn most_values(params: &RawValue) -> usize {
    let before_a_value = |&byte: &u8| {
        u8::from(byte == b',')
            | u8::from(byte == b':')
            | u8::from(byte == b'[')
            | u8::from(byte == b'{')
    };
    // The count of such a piece fits into a byte: the compiler then counts many at once.
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

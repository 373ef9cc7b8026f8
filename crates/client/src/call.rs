//! One call as its caller sees it: sent, then awaited.

use std::marker::PhantomData;

use exec_server_protocol::{Replay, Rpc};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::{RawValue, to_raw_value};
use tokio::sync::oneshot;

use crate::ExecServerError;
use crate::calls::{Answer, Asker, Call};
use crate::driver::read_result;

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
}

/// Makes the call and the place where its answer will be.
pub(crate) fn prepare<R: Rpc>(
    params: &R::Params,
    asker: impl FnOnce(oneshot::Sender<Answer>) -> Asker,
) -> (Call, Waiting<R>) {
    let (sender, receiver) = oneshot::channel();
    let params = to_raw_value(params).expect("params have only string keys");
    let replay = match R::REPLAY {
        Replay::Harmless => true,
        Replay::WithWriteId => has_write_id(&params),
        Replay::Never => false,
    };
    let call = Call { method: R::METHOD, params, replay, asker: asker(sender) };
    (call, Waiting { receiver, method: PhantomData })
}

fn has_write_id(params: &RawValue) -> bool {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Named {
        write_id: Option<IgnoredAny>,
    }
    serde_json::from_str::<Named>(params.get()).is_ok_and(|named| named.write_id.is_some())
}

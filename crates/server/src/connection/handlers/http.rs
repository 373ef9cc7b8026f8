//! `http/*`. The body of a response is read as fast as its client takes it.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use exec_server_host::http::{HttpError, Response};
use exec_server_protocol::{
    BodyDeltaNotification, Empty, HttpRequestParams, RpcError, notification, rpc,
};
use tokio::sync::oneshot;

use super::super::bodies::{Stream, StreamWindow, WholeRequest};
use super::super::handle::ConnectionHandle;
use super::super::reader::Reader;
use super::super::responder::Responder;
use crate::local::{MAX_BODY_BYTES, head, host_request, http_refusal, no_thread};
use crate::server::Shared;

/// Pieces that have come are joined up to about this size.
const JOINED_BYTES: usize = 64 << 10;

impl Reader {
    pub(super) fn http_request(&mut self, params: HttpRequestParams, responder: Responder) {
        // Before the check: a server that drains sees it, or it sees that the server does.
        let under_way = self.shared.http_requests.begin();
        if let Err(error) = self.shared.check_http() {
            return responder.fail(&error.about(&format!("http request {:?}", params.request_id)));
        }
        let (shared, connection) = (Arc::clone(&self.shared), Arc::clone(&self.connection));
        if !params.stream_response {
            let request = match self.connection.bodies.open_whole(params.request_id.clone()) {
                Ok(request) => request,
                Err(error) => return responder.fail(&error),
            };
            return self.work(responder, move |responder| async move {
                answer_whole(&shared, &connection, params, &request, responder).await;
                drop((request, under_way));
            });
        }
        let stream = match self.connection.bodies.open(params.request_id.clone()) {
            Ok(stream) => stream,
            Err(error) => return responder.fail(&error),
        };
        self.work(responder, move |responder| async move {
            answer_streamed(&shared, &connection, params, &stream, responder).await;
            drop((stream, under_way));
        });
    }

    /// Answered when nothing more will be told about the request.
    pub(super) fn http_cancel(&mut self, request_id: &str, responder: Responder) {
        let cancelled = self.connection.bodies.cancel(request_id);
        if cancelled.is_empty() {
            return responder.answer::<rpc::HttpCancel>(Ok(Empty {}));
        }
        let under_way = self.shared.http_requests.begin();
        self.work(responder, |responder| async move {
            for stream in cancelled {
                stream.ended().await;
            }
            responder.answer::<rpc::HttpCancel>(Ok(Empty {}));
            drop(under_way);
        });
    }
}

async fn answer_whole(
    shared: &Shared,
    connection: &ConnectionHandle,
    params: HttpRequestParams,
    request: &WholeRequest,
    responder: Responder,
) {
    let id = params.request_id.clone();
    let mut memory = connection.bodies.memory(connection.memory().hold());
    let fetch = async {
        let response = shared.http.send(host_request(params)).await?;
        let mut whole = head(&response);
        let body = response.bytes_within(MAX_BODY_BYTES, &mut |bytes| memory.grow_to(bytes)).await;
        whole.body_base64 = body?.into();
        let room = connection.room_for(whole.body_base64.0.len()).await;
        Ok((whole, room))
    };
    let fetched = tokio::select! {
        fetched = fetch => fetched,
        () = request.cancelled() => return responder.fail(&cancelled(&id)),
    };
    let (whole, room) = match fetched {
        Ok(fetched) => fetched,
        Err(error) => return responder.fail(&http_refusal(&id, &error)),
    };
    let (answered, done) = oneshot::channel::<()>();
    shared.files.run_or_tell(move |thread| {
        responder.answer::<rpc::HttpRequest>(thread.map(|()| whole).map_err(no_thread));
        drop((room, answered));
    });
    // Whoever waits for the work of a connection that ends waits for the answer.
    let _ = done.await;
}

async fn answer_streamed(
    shared: &Shared,
    connection: &ConnectionHandle,
    params: HttpRequestParams,
    stream: &Stream,
    responder: Responder,
) {
    let id = params.request_id.clone();
    let window = StreamWindow::new(stream, params.acks == Some(true));
    let sent = tokio::select! {
        sent = shared.http.send(host_request(params)) => sent,
        () = stream.cancelled() => return responder.fail(&cancelled(&id)),
    };
    match sent {
        Err(error) => responder.fail(&http_refusal(&id, &error)),
        Ok(response) => {
            responder.answer::<rpc::HttpRequest>(Ok(head(&response)));
            tokio::select! {
                () = send_body(response, id, window, connection) => {}
                () = stream.cancelled() => {}
            }
        }
    }
}

fn cancelled(id: &str) -> RpcError {
    RpcError::invalid_request(format!("http request {id:?} was cancelled")).with_kind("cancelled")
}

async fn send_body(
    response: Response,
    request_id: String,
    mut window: StreamWindow,
    connection: &ConnectionHandle,
) {
    let mut deltas = Deltas { response, failure: None };
    for seq in 1.. {
        window.open().await;
        let (delta, done, error) = match deltas.next().await {
            Ok(Some(delta)) => (delta, false, None),
            Ok(None) => (Bytes::new(), true, None),
            Err(error) => (Bytes::new(), true, Some(error.to_string())),
        };
        window.sent(seq, delta.len());
        let _room = connection.room_for(delta.len()).await;
        let request_id = request_id.clone();
        let delta =
            BodyDeltaNotification { request_id, seq, delta_base64: delta.into(), done, error };
        connection.outbox().push(notification(&delta));
        if done {
            return;
        }
    }
}

/// A body in pieces that are worth a message.
struct Deltas {
    response: Response,
    /// Came while pieces were joined; told after them.
    failure: Option<HttpError>,
}

impl Deltas {
    /// What there is now, several pieces together if they are small.
    async fn next(&mut self) -> Result<Option<Bytes>, HttpError> {
        if let Some(failure) = self.failure.take() {
            return Err(failure);
        }
        let Some(first) = self.response.chunk().await? else { return Ok(None) };
        if first.len() >= JOINED_BYTES {
            return Ok(Some(first));
        }
        let mut delta = BytesMut::from(first);
        while delta.len() < JOINED_BYTES {
            let more = tokio::select! {
                biased;
                more = self.response.chunk() => more,
                () = std::future::ready(()) => break,
            };
            match more {
                Ok(Some(piece)) => delta.extend_from_slice(&piece),
                Ok(None) => break,
                Err(failure) => {
                    self.failure = Some(failure);
                    break;
                }
            }
        }
        Ok(Some(delta.freeze()))
    }
}

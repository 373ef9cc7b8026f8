//! `http/*`. A streamed body is read only as fast as the client takes it.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use exec_server_host::http::{HttpError, Response};
use exec_server_protocol::{
    BodyDeltaNotification, Empty, ErrorKind, ErrorSubject, HttpRequestParams, RpcError, rpc,
};
use tokio::sync::oneshot;

use super::events::{EventStream, Sent};
use super::resources::{HttpStream, StreamWindow, WholeRequest};
use super::{Dispatcher, Reply, no_events};
use crate::adapter::{MAX_BODY_BYTES, head, host_request, http_rpc_error};
use crate::connection::ClientConnection;
use crate::server::ServerState;
use crate::sessions::Session;

/// Available pieces are joined up to about this size.
const JOINED_BYTES: usize = 64 << 10;

impl Dispatcher {
    pub(super) fn http_request(
        &self,
        session: &Session,
        params: HttpRequestParams,
        mut reply: Reply,
    ) {
        // Counted before the check: either a server that drains waits for this request, or the
        // check fails.
        let under_way = self.state.http_requests.begin();
        if let Err(error) = self.state.check_http(session) {
            return reply.fail(error.about(ErrorSubject::Request(params.request_id.clone())));
        }
        let (state, connection) = (Arc::clone(&self.state), Arc::clone(&self.connection));
        if !params.stream_response {
            let request =
                match self.connection.resources.bodies.open_whole(params.request_id.clone()) {
                    Ok(request) => request,
                    Err(error) => return reply.fail(error),
                };
            return self.spawn(reply, move |reply| async move {
                answer_whole(&state, &connection, params, &request, reply).await;
                drop((request, under_way));
            });
        }
        let Some(events) = reply.events(&self.connection) else {
            return reply.fail(no_events());
        };
        let stream = match self.connection.resources.bodies.open(params.request_id.clone()) {
            Ok(stream) => stream,
            Err(error) => return reply.fail(error),
        };
        self.spawn(reply, move |reply| async move {
            answer_streamed(&state, &events, params, &stream, reply).await;
            drop((stream, under_way));
        });
    }

    /// Responds once no further notification about the request can follow.
    pub(super) fn http_cancel(&self, request_id: &str, reply: Reply) {
        let cancelled = self.connection.resources.bodies.cancel(request_id);
        if cancelled.is_empty() {
            return reply.send::<rpc::HttpCancel>(Ok(Empty {}));
        }
        let under_way = self.state.http_requests.begin();
        self.spawn(reply, |reply| async move {
            for stream in cancelled {
                stream.ended().await;
            }
            reply.send::<rpc::HttpCancel>(Ok(Empty {}));
            drop(under_way);
        });
    }
}

async fn answer_whole(
    state: &ServerState,
    connection: &ClientConnection,
    params: HttpRequestParams,
    request: &WholeRequest,
    reply: Reply,
) {
    let id = params.request_id.clone();
    let mut memory = connection.resources.bodies.memory(connection.hold_memory());
    let fetch = async {
        let response = state.http.send(host_request(params)).await?;
        let mut whole = head(&response);
        let body = response.bytes_within(MAX_BODY_BYTES, &mut |bytes| memory.grow_to(bytes)).await;
        whole.body_base64 = body?.into();
        let reserved = connection.reserve(whole.body_base64.len()).await;
        Ok((whole, reserved))
    };
    let fetched = tokio::select! {
        fetched = fetch => fetched,
        () = request.cancelled() => return reply.fail(cancelled(&id)),
    };
    let (whole, reserved) = match fetched {
        Ok(fetched) => fetched,
        Err(error) => return reply.fail(http_rpc_error(&id, &error)),
    };
    let (answered, done) = oneshot::channel::<()>();
    state.files.run_or_tell(move |thread| {
        reply.send::<rpc::HttpRequest>(thread.map(|()| whole));
        drop((reserved, answered));
    });
    // A shutdown, and the end of a connection on stdio, wait for this task, and so for the
    // response.
    let _ = done.await;
}

async fn answer_streamed(
    state: &ServerState,
    events: &EventStream,
    params: HttpRequestParams,
    stream: &HttpStream,
    reply: Reply,
) {
    let id = params.request_id.clone();
    // A client in this program takes a piece when it has room for it, and sends no acks.
    let acks = params.acks == Some(true) && matches!(events, EventStream::Socket(_));
    let window = StreamWindow::new(stream, acks);
    let sent = tokio::select! {
        sent = state.http.send(host_request(params)) => sent,
        () = stream.cancelled() => return reply.fail(cancelled(&id)),
    };
    match sent {
        Err(error) => reply.fail(http_rpc_error(&id, &error)),
        Ok(response) => {
            reply.send::<rpc::HttpRequest>(Ok(head(&response)));
            tokio::select! {
                () = send_body(response, id, window, events) => {}
                () = stream.cancelled() => {}
            }
        }
    }
}

fn cancelled(id: &str) -> RpcError {
    RpcError::invalid_request(format!("http request {id:?} was cancelled"))
        .with_kind(ErrorKind::Cancelled)
}

async fn send_body(
    response: Response,
    request_id: String,
    mut window: StreamWindow,
    events: &EventStream,
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
        let request_id = request_id.clone();
        let delta =
            BodyDeltaNotification { request_id, seq, delta_base64: delta.into(), done, error };
        let sent = events.send(delta).await;
        if done || sent == Sent::Gone {
            return;
        }
    }
}

/// A body as pieces of a reasonable message size.
struct Deltas {
    response: Response,
    /// A failure while pieces were joined, reported after them.
    failure: Option<HttpError>,
}

impl Deltas {
    /// Returns the data that is available now, with small pieces joined.
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

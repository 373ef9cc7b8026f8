//! `http/*`. The body of a response is read as fast as its client takes it.

use std::sync::Arc;

use exec_server_host::http::Response;
use exec_server_protocol::{BodyDeltaNotification, HttpRequestParams, RpcError, notification, rpc};

use super::super::bodies::{Stream, StreamWindow};
use super::super::handle::ConnectionHandle;
use super::super::reader::Reader;
use super::super::responder::Responder;
use crate::local::{MAX_BODY_BYTES, head, host_request, http_refusal};
use crate::server::Shared;

impl Reader {
    pub(super) fn http_request(&mut self, params: HttpRequestParams, responder: Responder) {
        let (shared, connection) = (Arc::clone(&self.shared), Arc::clone(&self.connection));
        if !params.stream_response {
            return self.work(responder, move |responder| async move {
                answer_whole(&shared, &connection, params, responder).await;
            });
        }
        let (stream, claim) = match self.connection.bodies.open(params.request_id.clone()) {
            Ok(opened) => opened,
            Err(error) => return responder.fail(&error),
        };
        self.work(responder, move |responder| async move {
            answer_streamed(&shared, &connection, params, &stream, responder).await;
            drop(claim);
        });
    }
}

async fn answer_whole(
    shared: &Shared,
    connection: &ConnectionHandle,
    params: HttpRequestParams,
    responder: Responder,
) {
    let id = params.request_id.clone();
    let response = match shared.http.send(host_request(params)).await {
        Ok(response) => response,
        Err(error) => return responder.fail(&http_refusal(&id, &error)),
    };
    let _memory = connection.bodies.whole(declared_length(&response)).await;
    let mut whole = head(&response);
    match response.bytes(MAX_BODY_BYTES).await {
        Ok(body) => whole.body_base64 = body.into(),
        Err(error) => return responder.fail(&http_refusal(&id, &error)),
    }
    let room = connection.room_for(whole.body_base64.0.len()).await;
    shared.files.run(move || {
        responder.answer::<rpc::HttpRequest>(Ok(whole));
        drop(room);
    });
}

fn declared_length(response: &Response) -> Option<usize> {
    let named = |(name, _): &&(String, String)| name.eq_ignore_ascii_case("content-length");
    response.headers.iter().find(named).and_then(|(_, value)| value.parse().ok())
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
        () = stream.cancelled() => {
            let error = RpcError::invalid_request(format!("http request {id:?} was cancelled"));
            return responder.fail(&error.with_kind("cancelled"));
        }
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

async fn send_body(
    mut response: Response,
    request_id: String,
    mut window: StreamWindow,
    connection: &ConnectionHandle,
) {
    for seq in 1.. {
        window.open().await;
        let (delta, done, error) = match response.chunk().await {
            Ok(Some(piece)) => (piece, false, None),
            Ok(None) => (bytes::Bytes::new(), true, None),
            Err(error) => (bytes::Bytes::new(), true, Some(error.to_string())),
        };
        window.sent(seq, delta.len());
        let _room = connection.room_for(delta.len()).await;
        let request_id = request_id.clone();
        let delta =
            BodyDeltaNotification { request_id, seq, delta_base64: delta.into(), done, error };
        connection.outbox().push(notification("http/request/bodyDelta", &delta));
        if done {
            return;
        }
    }
}

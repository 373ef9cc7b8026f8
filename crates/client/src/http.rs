//! HTTP requests made by the server: whole responses, or bodies streamed in pieces.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use exec_server_protocol::{HttpRequestParams, HttpResponse, rpc};
use futures_core::Stream;

use crate::leases::{LeaseHandle, Pieces, Target};
use crate::{ExecServerClient, ExecServerError};

/// The body of one response. Dropping it cancels the request on the server.
///
/// An unread body holds back the download. If the connection is lost, the body ends with an error
/// after the pieces that have arrived.
#[derive(Debug)]
pub struct HttpBody {
    handle: LeaseHandle<Pieces>,
}

impl ExecServerClient {
    /// Makes a request through the server and returns the whole response. Chooses the `request_id`.
    /// Dropping the future cancels the request.
    pub async fn http_fetch(
        &self,
        mut params: HttpRequestParams,
    ) -> Result<HttpResponse, ExecServerError> {
        let (handle, lease) = LeaseHandle::new(self, Pieces::default(), Target::Body);
        params.request_id = handle.id().to_owned();
        params.stream_response = false;
        let response = self.lease::<rpc::HttpRequest>(params, lease).await?.answer().await?;
        handle.release();
        Ok(response)
    }

    /// Makes a request through the server and returns the head of the response; the body follows in
    /// pieces. Chooses the `request_id`. Dropping the future cancels the request.
    pub async fn http_stream(
        &self,
        mut params: HttpRequestParams,
    ) -> Result<(HttpResponse, HttpBody), ExecServerError> {
        let (handle, lease) = LeaseHandle::new(self, Pieces::default(), Target::Body);
        params.request_id = handle.id().to_owned();
        params.stream_response = true;
        params.acks = Some(true);
        let head = self.lease::<rpc::HttpRequest>(params, lease).await?.answer().await?;
        Ok((head, HttpBody { handle }))
    }
}

impl HttpBody {
    /// Returns the next piece, or `None` at the end and after an error. Cancel-safe.
    pub async fn next(&mut self) -> Option<Result<Bytes, ExecServerError>> {
        self.handle.next().await
    }
}

impl Stream for HttpBody {
    type Item = Result<Bytes, ExecServerError>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.handle.poll_next(context)
    }
}

//! HTTP requests that the server makes: their responses at once, or their bodies in pieces as they come.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use exec_server_protocol::{HttpRequestParams, HttpResponse, rpc};
use futures_core::Stream;

use crate::leases::{LeaseHandle, Pieces, Target};
use crate::{ExecServerClient, ExecServerError};

/// The body of one response. Dropping it ends the request at the server.
///
/// Whoever does not read it holds back the download. It ends with its connection, at once and with an error: what the
/// other side would send next is not known.
#[derive(Debug)]
pub struct HttpBody {
    handle: LeaseHandle<Pieces>,
}

impl ExecServerClient {
    /// Lets the server make a request, and returns with the whole response. The `request_id` is chosen here. Dropping the
    /// future ends the request.
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

    /// Lets the server make a request, and returns with the head of the response; the body follows in pieces. The
    /// `request_id` is chosen here. Dropping the future ends the request.
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
    /// The next piece; `None` at the end, and after an error. Cancel-safe.
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

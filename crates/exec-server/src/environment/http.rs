//! HTTP requests made by an environment, from its network and with its credentials.

use std::fmt::{self, Debug};
use std::pin::Pin;
use std::task::{Context, Poll};

use async_trait::async_trait;
use bytes::Bytes;
use exec_server_client::{ExecServerClient, ExecServerError};
use exec_server_protocol::{HttpRequestParams, HttpResponse};
use futures_core::Stream;

/// Makes requests from the machine on which the processes of an environment run.
///
/// The implementation chooses `request_id`, `stream_response` and `acks`; what callers put there is ignored. Dropping a
/// future or a body ends the request. A request is never made twice: one that loses its connection fails as
/// [`ExecServerError::Interrupted`].
#[async_trait]
pub trait HttpClient: Debug + Send + Sync {
    /// The whole response at once; its body must fit into one message.
    async fn request(&self, params: HttpRequestParams) -> Result<HttpResponse, ExecServerError>;

    /// Status and headers at once, and the body as it comes.
    async fn request_streamed(
        &self,
        params: HttpRequestParams,
    ) -> Result<(HttpResponse, HttpBody), ExecServerError>;
}

/// A body in pieces. Whoever does not read it holds back the download. An error is the last item; so is the loss of the
/// connection, which no body survives.
pub struct HttpBody {
    pieces: Pin<Box<dyn Stream<Item = Result<Bytes, ExecServerError>> + Send>>,
}

impl HttpBody {
    pub fn new(
        pieces: impl Stream<Item = Result<Bytes, ExecServerError>> + Send + 'static,
    ) -> Self {
        Self { pieces: Box::pin(pieces) }
    }

    /// The next piece; `None` at the end, and after an error. Cancel-safe.
    pub async fn next(&mut self) -> Option<Result<Bytes, ExecServerError>> {
        std::future::poll_fn(|context| self.pieces.as_mut().poll_next(context)).await
    }
}

impl Stream for HttpBody {
    type Item = Result<Bytes, ExecServerError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.pieces.as_mut().poll_next(context)
    }
}

impl Debug for HttpBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpBody").finish_non_exhaustive()
    }
}

#[async_trait]
impl HttpClient for ExecServerClient {
    async fn request(&self, params: HttpRequestParams) -> Result<HttpResponse, ExecServerError> {
        self.http_fetch(params).await
    }

    async fn request_streamed(
        &self,
        params: HttpRequestParams,
    ) -> Result<(HttpResponse, HttpBody), ExecServerError> {
        let (head, body) = self.http_stream(params).await?;
        Ok((head, HttpBody::new(body)))
    }
}

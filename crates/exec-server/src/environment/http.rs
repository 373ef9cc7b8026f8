//! HTTP requests made by an environment, from its network and with its credentials.

use std::fmt::Debug;

use async_trait::async_trait;
use exec_server_client::{ExecServerClient, ExecServerError, HttpBody};
use exec_server_protocol::{HttpRequestParams, HttpResponse};

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

#[async_trait]
impl HttpClient for ExecServerClient {
    async fn request(&self, params: HttpRequestParams) -> Result<HttpResponse, ExecServerError> {
        self.http_fetch(params).await
    }

    async fn request_streamed(
        &self,
        params: HttpRequestParams,
    ) -> Result<(HttpResponse, HttpBody), ExecServerError> {
        self.http_stream(params).await
    }
}

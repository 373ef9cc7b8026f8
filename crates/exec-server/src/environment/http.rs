//! HTTP requests from an environment, with its network and its credentials.

use std::fmt::Debug;

use async_trait::async_trait;
use exec_server_client::{ExecServerClient, ExecServerError, HttpBody};
use exec_server_protocol::{HttpRequestParams, HttpResponse};

/// Sends requests from the machine on which an environment's processes run.
///
/// The implementation chooses `request_id`, `stream_response` and `acks` and ignores those of
/// callers. Dropping a future or a body ends the request. A request is never repeated: if the
/// connection to the environment is lost, it fails as [`ExecServerError::Interrupted`].
#[async_trait]
pub trait HttpClient: Debug + Send + Sync {
    /// Returns the complete response; its body must fit into one message.
    async fn request(&self, params: HttpRequestParams) -> Result<HttpResponse, ExecServerError>;

    /// Returns the status and headers as soon as they arrive, and the body as a stream.
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

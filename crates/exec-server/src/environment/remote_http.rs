//! HTTP from another machine: a thin layer over the client.

use async_trait::async_trait;
use exec_server_client::{ExecServerClient, ExecServerError};
use exec_server_protocol::{HttpRequestParams, HttpResponse};

use super::http::{HttpBody, HttpClient};

/// Requests of a server that a client is connected to.
#[derive(Debug, Clone)]
pub struct RemoteHttpClient {
    client: ExecServerClient,
}

impl RemoteHttpClient {
    #[must_use]
    pub fn new(client: ExecServerClient) -> Self {
        Self { client }
    }
}

#[async_trait]
impl HttpClient for RemoteHttpClient {
    async fn request(&self, params: HttpRequestParams) -> Result<HttpResponse, ExecServerError> {
        self.client.http_fetch(params).await
    }

    async fn request_streamed(
        &self,
        params: HttpRequestParams,
    ) -> Result<(HttpResponse, HttpBody), ExecServerError> {
        let (head, body) = self.client.http_stream(params).await?;
        Ok((head, HttpBody::new(body)))
    }
}

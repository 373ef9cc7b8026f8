//! HTTP requests made by an environment, from its network and with its credentials. Part of every environment in a
//! later version; nothing implements it yet.

use std::fmt::{self, Debug};
use std::pin::Pin;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use exec_server_client::ExecServerError;
use futures_core::Stream;

/// Makes requests from the machine on which the processes of an environment run.
#[async_trait]
pub trait HttpClient: Debug + Send + Sync {
    /// The whole response at once.
    async fn request(&self, request: HttpRequest) -> Result<HttpResponse, ExecServerError>;

    /// Status and headers at once, and the body as it comes.
    async fn request_streamed(
        &self,
        request: HttpRequest,
    ) -> Result<StreamedHttpResponse, ExecServerError>;
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpRequest {
    pub method: String,
    /// `http:` or `https:`.
    pub url: String,
    pub headers: Vec<HttpRequestHeader>,
    pub body: Bytes,
    pub timeout: Option<Duration>,
    pub redirects: RedirectPolicy,
}

#[derive(Clone, PartialEq, Eq)]
pub struct HttpRequestHeader {
    pub name: String,
    pub value: String,
    /// A variable of the executor whose value is appended to `value`, so that a secret need not be known here.
    pub value_env_var: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RedirectPolicy {
    #[default]
    Follow,
    /// The redirect itself is the response.
    Stop,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpResponse {
    pub status: u16,
    pub headers: Vec<HttpResponseHeader>,
    pub body: Bytes,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpResponseHeader {
    pub name: String,
    pub value: String,
}

/// A body in pieces. An error is the last item; so is the loss of the connection, which no stream survives.
pub type HttpBody = Pin<Box<dyn Stream<Item = Result<Bytes, ExecServerError>> + Send>>;

pub struct StreamedHttpResponse {
    pub status: u16,
    pub headers: Vec<HttpResponseHeader>,
    pub body: HttpBody,
}

impl Debug for HttpRequestHeader {
    /// Without the value: it is often a credential.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpRequestHeader")
            .field("name", &self.name)
            .field("value_env_var", &self.value_env_var)
            .finish_non_exhaustive()
    }
}

impl Debug for StreamedHttpResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamedHttpResponse")
            .field("status", &self.status)
            .field("headers", &self.headers)
            .finish_non_exhaustive()
    }
}

//! HTTP in the words of the wire, and the program's own way in. No URL and no value of a header leaves this module but
//! to the host.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use exec_server_host::http::{Header, HttpError, Redirects, Request, Response};
use exec_server_protocol::{
    ErrorCode, HttpRequestParams, HttpResponse, HttpResponseHeader, MAX_FILE_BYTES, RedirectPolicy,
    RpcError,
};

use crate::server::Shared;

/// The largest body that fits into one message.
pub(crate) const MAX_BODY_BYTES: usize = MAX_FILE_BYTES as usize;

/// Requests from this machine for the program that the server is part of. Clones share their connections.
#[derive(Debug, Clone)]
pub struct LocalHttp {
    shared: Arc<Shared>,
}

impl LocalHttp {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    /// The whole response at once.
    pub async fn request(&self, params: HttpRequestParams) -> Result<HttpResponse, RpcError> {
        let (mut whole, LocalBody { id, response }) = self.request_streamed(params).await?;
        let body = response.bytes(MAX_BODY_BYTES).await;
        whole.body_base64 = body.map_err(|error| refusal(&id, &error))?.into();
        Ok(whole)
    }

    /// Status and headers at once, and the body as it comes.
    pub async fn request_streamed(
        &self,
        params: HttpRequestParams,
    ) -> Result<(HttpResponse, LocalBody), RpcError> {
        let id = params.request_id.clone();
        let allowed = self.shared.check_http();
        allowed.map_err(|error| error.about(&format!("http request {id:?}")))?;
        let sent = self.shared.http.send(host_request(params)).await;
        let response = sent.map_err(|error| refusal(&id, &error))?;
        Ok((head(&response), LocalBody { id, response }))
    }
}

/// A body that is read as far as it is asked for. Dropping it ends the exchange.
#[derive(Debug)]
pub struct LocalBody {
    id: String,
    response: Response,
}

impl LocalBody {
    /// The next piece; `None` at the end. Cancel-safe.
    pub async fn next(&mut self) -> Option<Result<Bytes, RpcError>> {
        let next = self.response.chunk().await;
        next.map_err(|error| refusal(&self.id, &error)).transpose()
    }
}

pub(crate) fn host_request(params: HttpRequestParams) -> Request {
    let header = |header: exec_server_protocol::HttpRequestHeader| Header {
        name: header.name,
        value: header.value,
        value_env_var: header.value_env_var,
    };
    Request {
        method: params.method,
        url: params.url,
        headers: params.headers.into_iter().map(header).collect(),
        body: params.body_base64.unwrap_or_default().0,
        timeout: params.timeout_ms.map(Duration::from_millis),
        redirects: match params.redirect_policy {
            RedirectPolicy::Follow => Redirects::Follow,
            RedirectPolicy::Stop => Redirects::Stop,
        },
    }
}

/// The response without its body.
pub(crate) fn head(response: &Response) -> HttpResponse {
    let header = |(name, value): &(String, String)| HttpResponseHeader {
        name: name.clone(),
        value: value.clone(),
    };
    HttpResponse {
        status: response.status,
        headers: response.headers.iter().map(header).collect(),
        body_base64: Bytes::new().into(),
    }
}

pub(crate) fn refusal(request_id: &str, error: &HttpError) -> RpcError {
    let message = format!("http request {request_id:?}: {error}");
    match error {
        HttpError::BadRequest(_) => RpcError::invalid_params(message),
        HttpError::BodyTooLarge { .. } => {
            let message = format!("{message}; ask for it with streamResponse");
            RpcError::new(ErrorCode::InternalError, message).with_kind("bodyTooLarge")
        }
        HttpError::NoRoom => RpcError::internal(message).with_kind("overloaded"),
        HttpError::TimedOut { .. } | HttpError::ConnectTimedOut { .. } => {
            RpcError::internal(message).with_kind("timedOut")
        }
        _ => RpcError::internal(message).with_kind("httpFailed"),
    }
}

//! Translates HTTP between wire types and the types of the host crate. The URL and the header values
//! of a request may be secret, so only the host crate receives them.

use std::time::Duration;

use bytes::Bytes;
use exec_server_host::http::{Header, HttpError, Redirects, Request, Response};
use exec_server_protocol::{
    ErrorCode, ErrorKind, ErrorSubject, HttpRequestParams, HttpResponse, HttpResponseHeader,
    MAX_FILE_BYTES, RedirectPolicy, RpcError,
};

/// The largest body that fits into one message.
pub(crate) const MAX_BODY_BYTES: usize = MAX_FILE_BYTES as usize;

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
        body: params.body_base64.unwrap_or_default().into_bytes(),
        timeout: params.timeout_ms.map(Duration::from_millis),
        redirects: match params.redirect_policy {
            RedirectPolicy::Follow => Redirects::Follow,
            RedirectPolicy::Stop => Redirects::Stop,
        },
    }
}

/// Returns the response without its body.
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

pub(crate) fn to_rpc_error(request_id: &str, error: &HttpError) -> RpcError {
    let message = error.to_string();
    let told = match error {
        HttpError::BadRequest(_) => RpcError::invalid_params(message),
        HttpError::BodyTooLarge { .. } => {
            let message = format!("{message}; request it with streamResponse");
            RpcError::new(ErrorCode::InternalError, message).with_kind(ErrorKind::BodyTooLarge)
        }
        HttpError::NoRoom => RpcError::internal(message).with_kind(ErrorKind::Overloaded),
        HttpError::TimedOut { .. } | HttpError::ConnectTimedOut { .. } => {
            RpcError::internal(message).with_kind(ErrorKind::TimedOut)
        }
        _ => RpcError::internal(message).with_kind(ErrorKind::HttpFailed),
    };
    told.about(ErrorSubject::Request(request_id.to_owned()))
}

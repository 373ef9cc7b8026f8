//! Error responses of the registry: `{"error": {"code", "message"}}`.

use bytes::Bytes;
use exec_server_relay::registry::{ENVIRONMENT_OFFLINE, ErrorBody, ErrorResponse};
use exec_server_relay::with_sources;
use exec_server_transport::HttpReply;
use http_body_util::Full;
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use hyper::{Method, Response, StatusCode};
use serde::Serialize;

use crate::directory::DirectoryError;

/// Why a request is refused. Contains no secret of the request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) status: StatusCode,
    pub(crate) code: &'static str,
    pub(crate) message: String,
    /// The audit log already has this refusal, as the outcome of a call.
    pub(crate) is_recorded: bool,
}

impl Refusal {
    fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self { status, code, message: message.into(), is_recorded: false }
    }

    pub(crate) fn unauthorized() -> Self {
        let message = "valid credentials are required";
        Self::new(StatusCode::UNAUTHORIZED, "unauthorized", message)
    }

    pub(crate) fn bad_ticket() -> Self {
        let message = "the ticket is missing, unknown, used or expired, or its credential is no \
                       longer valid";
        Self::new(StatusCode::UNAUTHORIZED, "invalid_ticket", message)
    }

    pub(crate) fn replaced() -> Self {
        let message = "the registration for which the ticket was issued has ended; connect again";
        Self::new(StatusCode::FORBIDDEN, "registration_replaced", message)
    }

    pub(crate) fn forbidden(message: &str) -> Self {
        Self::new(StatusCode::FORBIDDEN, "forbidden", message)
    }

    pub(crate) fn not_found() -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found", "no such path")
    }

    pub(crate) fn method_not_allowed(allowed: &[&Method]) -> Self {
        let allowed: Vec<&str> = allowed.iter().map(|method| method.as_str()).collect();
        let message = format!("this path allows only {}", allowed.join(" and "));
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", message)
    }

    pub(crate) fn offline() -> Self {
        Self::new(StatusCode::CONFLICT, ENVIRONMENT_OFFLINE, "the environment is not connected")
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_request", message)
    }

    pub(crate) fn too_large(max: usize) -> Self {
        let message = format!("the body exceeds {max} bytes");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", message)
    }

    pub(crate) fn too_many(message: &str) -> Self {
        Self::new(StatusCode::TOO_MANY_REQUESTS, "too_many_requests", message)
    }

    pub(crate) fn draining() -> Self {
        let message = "the service is restarting";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", message)
    }

    pub(crate) fn recorded(self) -> Self {
        Self { is_recorded: true, ..self }
    }

    pub(crate) fn into_reply(self) -> HttpReply {
        let body = ErrorBody { code: self.code.to_owned(), message: self.message };
        let mut response = json(self.status, &ErrorResponse { error: body });
        match self.status {
            StatusCode::UNAUTHORIZED => {
                let scheme = HeaderValue::from_static("Bearer");
                response.headers_mut().insert(WWW_AUTHENTICATE, scheme);
                HttpReply::Unauthorized(response)
            }
            StatusCode::SERVICE_UNAVAILABLE => {
                response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
                HttpReply::Answer(response)
            }
            _ => HttpReply::Answer(response),
        }
    }
}

impl From<DirectoryError> for Refusal {
    fn from(error: DirectoryError) -> Self {
        match error {
            DirectoryError::Full => {
                let message = "this credential has too many unused tickets or authorizations; \
                               try again later";
                Self::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", message)
            }
            // Every attempt to register lost against another one.
            DirectoryError::Conflict => {
                let message = "too many registrations of this environment at once; try again";
                Self::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", message)
            }
            // Clients retry after this error.
            error => {
                tracing::error!(error = with_sources(&error), "the store failed");
                let message = "the service cannot use its store; its log has the reason";
                Self::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", message)
            }
        }
    }
}

pub(crate) fn json(status: StatusCode, body: &impl Serialize) -> Response<Full<Bytes>> {
    let body = serde_json::to_vec(body).expect("the body has only string keys");
    let mut response = Response::new(Full::from(body));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_races_of_registrations_are_not_blamed_on_the_store() {
        let refusal = Refusal::from(DirectoryError::Conflict);
        assert_eq!((refusal.status.as_u16(), refusal.code), (503, "unavailable"));
        assert!(!refusal.message.contains("store"), "{}", refusal.message);
    }
}

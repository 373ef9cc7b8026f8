//! Responses that the proxy generates itself.

use http_body_util::{Either, Full};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{Response, StatusCode};

use super::super::decisions::Refusal;
use super::super::dial::DialError;
use super::Body;
use crate::network::policy::{DenyReason, Host};

const PROXY_ERROR: &str = "x-proxy-error";

/// A response with one line of text, sent instead of a response from the host.
#[derive(Debug)]
pub(super) struct Rejection {
    status: StatusCode,
    /// The value of `x-proxy-error`.
    code: Option<&'static str>,
    line: String,
}

impl Rejection {
    pub(super) fn bad_request(reason: &'static str) -> Self {
        Self { status: StatusCode::BAD_REQUEST, code: None, line: reason.to_owned() }
    }

    pub(super) fn bad_gateway(line: String) -> Self {
        Self { status: StatusCode::BAD_GATEWAY, code: None, line }
    }

    pub(super) fn from_dial(error: &DialError, host: &Host, port: u16) -> Self {
        let target = host.with_port(port);
        match error {
            DialError::Refused(refusal) => Self::forbidden(refusal, &target),
            DialError::TimedOut => {
                let line = format!("{target}: {error}");
                Self { status: StatusCode::GATEWAY_TIMEOUT, code: None, line }
            }
            DialError::Resolve { .. } | DialError::Connect { .. } | DialError::Upstream { .. } => {
                Self::bad_gateway(format!("{target}: {error}"))
            }
        }
    }

    pub(super) fn into_response(self) -> Response<Body> {
        let mut response = Response::new(Either::Left(Full::from(self.line + "\n")));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
        if let Some(code) = self.code {
            headers.insert(PROXY_ERROR, HeaderValue::from_static(code));
        }
        response
    }

    fn forbidden(refusal: &Refusal, target: &str) -> Self {
        let (code, problem) = match refusal {
            Refusal::Policy(DenyReason::NotAllowed) => {
                let problem = "is not allowed; allow it with --allow-host, and in the rules of \
                               operator and token if there are any";
                ("blocked-by-allowlist", problem)
            }
            Refusal::Policy(DenyReason::Denied) => {
                ("blocked-by-denylist", "is denied by a rule that --allow-host does not override")
            }
            Refusal::Policy(DenyReason::Method) => (
                "blocked-by-method-policy",
                "was refused: limited mode allows only GET, HEAD and OPTIONS of plain HTTP, and \
                 --allow-host does not override it",
            ),
            Refusal::Policy(DenyReason::PrivateAddress) => (
                "blocked-by-policy",
                "leads to a private address; allow the address itself with --allow-host",
            ),
            Refusal::Client { .. } => (
                "blocked-by-policy",
                "was refused by the exec-server client; allow it with --allow-host",
            ),
            Refusal::TooManyQuestions => (
                "blocked-by-policy",
                "was refused: the exec-server client has too many unanswered questions about \
                 hosts; try again later, or allow it with --allow-host",
            ),
        };
        let line = format!("network: {target} {problem}");
        Self { status: StatusCode::FORBIDDEN, code: Some(code), line }
    }
}

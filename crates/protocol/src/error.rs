//! Errors on the wire. Codes are assigned here and nowhere else.

use serde::{Deserialize, Deserializer, Serialize};

use crate::{ErrorKind, PathUri};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorCode {
    /// The message is not a request, or the request is refused: wrong order of calls, duplicate or
    /// unknown id, a limit, a permission, the sandbox. For `fs/*` also a bad value.
    InvalidRequest,
    MethodNotFound,
    /// Params that do not decode (bad URI, bad base64), contradict each other, or have a bad value
    /// (empty argv).
    InvalidParams,
    InternalError,
    /// A path does not exist, or a file handle is not open.
    NotFound,
    /// The session is still attached to another connection; the client may retry.
    SessionAttached,
}

impl ErrorCode {
    #[must_use]
    pub const fn value(self) -> i64 {
        match self {
            Self::InvalidRequest => -32600,
            Self::MethodNotFound => -32601,
            Self::InvalidParams => -32602,
            Self::InternalError => -32603,
            Self::NotFound => -32004,
            Self::SessionAttached => -32010,
        }
    }
}

/// The `error` member of the response to a failed request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[error("{message}")]
pub struct RpcError {
    pub code: i64,
    /// One line that names the subject and the cause.
    pub message: String,
    /// Details for programs (extension).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<ErrorData>,
}

/// Machine-readable detail of an error (extension).
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ErrorData {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<ErrorKind>,
    /// The subject of the error, if there is exactly one. A subject of an unknown kind decodes as
    /// absent.
    #[serde(default, deserialize_with = "known_subject", skip_serializing_if = "Option::is_none")]
    pub subject: Option<ErrorSubject>,
    /// The message without its subject, for clients that name the subject in their own terms.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// The subject of an error. `request` is the `requestId` of an HTTP request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum ErrorSubject {
    Process(String),
    Request(String),
    Path(PathUri),
}

fn known_subject<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<ErrorSubject>, D::Error> {
    let subject = serde_json::Value::deserialize(deserializer)?;
    Ok(serde_json::from_value(subject).ok())
}

impl RpcError {
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self { code: code.value(), message: one_line(message.into()), data: None }
    }

    pub fn invalid_request(message: impl Into<String>) -> Self {
        Self::new(ErrorCode::InvalidRequest, message)
    }

    pub fn invalid_params(message: impl Into<String>) -> Self {
        Self::new(ErrorCode::InvalidParams, message)
    }

    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(ErrorCode::InternalError, message)
    }

    /// Prefixes the message with its subject. The original message becomes the reason.
    #[must_use]
    pub fn about(mut self, subject: ErrorSubject) -> Self {
        let reason = std::mem::take(&mut self.message);
        let named = match &subject {
            ErrorSubject::Process(id) => format!("process {id:?}"),
            ErrorSubject::Request(id) => format!("http request {id:?}"),
            ErrorSubject::Path(path) => path.as_path().display().to_string(),
        };
        self.message = one_line(format!("{named}: {reason}"));
        self.with_subject(subject, reason)
    }

    /// Sets the subject and the reason. The message must already name the subject; the reason is
    /// the message without it.
    #[must_use]
    pub fn with_subject(mut self, subject: ErrorSubject, reason: impl Into<String>) -> Self {
        let data = self.data.get_or_insert_default();
        (data.subject, data.reason) = (Some(subject), Some(one_line(reason.into())));
        self
    }

    #[must_use]
    pub fn with_kind(mut self, kind: ErrorKind) -> Self {
        self.data.get_or_insert_default().kind = Some(kind);
        self
    }

    #[must_use]
    pub fn kind(&self) -> Option<&ErrorKind> {
        self.data.as_ref()?.kind.as_ref()
    }
}

/// Keeps an error on one line, since names quoted from a peer may contain line breaks.
fn one_line(message: String) -> String {
    if message.contains(['\n', '\r']) { message.replace(['\n', '\r'], " ") } else { message }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_subject_leaves_the_kind_readable() {
        for subject in [r#"{"watch":"w"}"#, r#""p""#, "7", r#"{"process":7}"#] {
            let text = format!(
                r#"{{"code":-32600,"message":"m","data":{{"kind":"conflict","subject":{subject}}}}}"#
            );
            let error: RpcError = serde_json::from_str(&text).unwrap();
            assert_eq!(error.kind(), Some(&ErrorKind::Conflict), "{subject}");
            assert_eq!(error.data.unwrap().subject, None);
        }
        let error = RpcError::internal("no").about(ErrorSubject::Process("p".into()));
        let text = serde_json::to_string(&error).unwrap();
        assert_eq!(serde_json::from_str::<RpcError>(&text).unwrap(), error);
    }
}

//! Errors as they appear on the wire. Codes are assigned here and nowhere else.

use serde::{Deserialize, Serialize};

/// What kind of failure a peer is told about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorCode {
    /// Bad order of calls, duplicate process id, unknown process, permission or sandbox denial.
    InvalidRequest,
    MethodNotFound,
    /// Fails to decode, empty argv, bad URI, bad base64.
    InvalidParams,
    InternalError,
    /// A path does not exist.
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

/// The `error` member of a failed request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message} ({code})")]
pub struct RpcError {
    pub code: i64,
    /// One line that names the subject and the cause.
    pub message: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<ErrorData>,
}

/// Machine-readable detail of an error.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorData {
    /// A stable word for programs to branch on.
    pub kind: String,
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

    /// Says what the error is about.
    #[must_use]
    pub fn about(mut self, subject: &str) -> Self {
        self.message = one_line(format!("{subject}: {}", self.message));
        self
    }

    /// Adds the stable word that programs branch on.
    #[must_use]
    pub fn with_kind(mut self, kind: &str) -> Self {
        self.data = Some(ErrorData { kind: kind.to_owned() });
        self
    }
}

/// Peers may put line breaks into names that we quote; an error stays one line.
fn one_line(message: String) -> String {
    if message.contains(['\n', '\r']) { message.replace(['\n', '\r'], " ") } else { message }
}

//! Errors of the client, distinguished by how a caller would react.

use std::sync::Arc;
use std::time::Duration;

use exec_server_protocol::{ErrorKind, RpcError};
use exec_server_relay::harness::HarnessError;
use exec_server_transport::{AuthError, DialError};

/// Why a call, a process or a connection failed. Cheap to clone, because one loss is reported to
/// many callers.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ExecServerError {
    /// The client was closed or dropped. In process also: its session has ended.
    #[error("the client or its session was closed")]
    Closed,
    /// The connection is lost and will not come back. Every waiting call gets this same error.
    #[error("disconnected from the server: {0}")]
    Disconnected(#[source] Arc<DisconnectReason>),
    /// The connection was lost during a call that is not safe to repeat, or after a call that
    /// opened a file, search or HTTP body. The call may or may not have taken effect. The client
    /// keeps working.
    #[error("{method} was interrupted by a lost connection; it may or may not have taken effect")]
    Interrupted { method: &'static str },
    /// The call exceeds a limit on messages and was not sent.
    #[error("{method}: {source}")]
    TooLarge { method: &'static str, source: Arc<exec_server_protocol::DecodeError> },
    #[error("{what} took longer than {after:?}")]
    TimedOut { what: &'static str, after: Duration },
    /// An error response from the server: code, message, and a stable identifier in `data.kind`.
    #[error(transparent)]
    Server(RpcError),
    /// The server sent something that the protocol does not allow.
    #[error("the server broke the protocol: {0}")]
    ProtocolViolation(#[source] Arc<Violation>),
    #[error("{0}")]
    ConnectFailed(#[source] Arc<ConnectError>),
    /// Output of this process is lost: the server's log no longer has it.
    #[error("process {process_id:?} lost {} of its output", amount(*dropped_bytes))]
    Gap {
        process_id: String,
        /// 0 if the size is unknown.
        dropped_bytes: u64,
    },
    /// Too much unread data of this call has piled up.
    #[error(
        "more than {limit} bytes from {method} are unread, and the server has no flow control; \
         read them sooner"
    )]
    NotConsumed { method: &'static str, limit: usize },
    /// The server does not support sandboxes and started the process without the requested one. The
    /// client has terminated the process.
    #[error(
        "the server does not enforce sandboxes: process {process_id:?} started without one and was \
         terminated"
    )]
    NotSandboxed { process_id: String },
    /// The server started the process without the requested host rules. The client has terminated
    /// it.
    #[error(
        "the server does not enforce host rules: process {process_id:?} started without \
         them and was terminated"
    )]
    NetworkNotManaged { process_id: String },
    /// The server does not support limits and started the process without them. The client has
    /// terminated the process.
    #[error(
        "the server does not support process limits: process {process_id:?} started without them \
         and was terminated"
    )]
    NotLimited { process_id: String },
    /// This handle only observes a process of another session.
    #[error(
        "process {process_id:?} belongs to another session; only that session's client can use its \
         stdin or resize it"
    )]
    ReadOnly { process_id: String },
}

/// Why a connection is lost for good.
#[derive(Debug, thiserror::Error)]
pub enum DisconnectReason {
    #[error("could not reconnect within {deadline:?}; last attempt: {last}")]
    Deadline { deadline: Duration, last: String },
    #[error("the connection ended and cannot be re-established")]
    CannotRedial,
    #[error("the client task stopped: its runtime shut down, or it panicked")]
    TaskStopped,
    #[error("the server program {program} ended: {status}")]
    ServerExited { program: String, status: String },
    /// The server did not resume the session, or no retry can make a connection to it.
    #[error("{refused}: {error}", refused = refused(.0), error = .0)]
    Refused(ExecServerError),
}

/// Why no connection could be made.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    #[error("{error}{cause}", error = .0, cause = cause(.0))]
    Dial(#[from] DialError),
    #[error("{error}{cause}", error = .0, cause = cause(&**.0))]
    Relay(#[source] Box<HarnessError>),
    #[error(transparent)]
    Token(#[from] AuthError),
    /// The client has no credentials.
    #[error("{0}")]
    Credentials(String),
    #[error("no token: the environment variable {name} is unset or empty")]
    TokenVariable { name: String },
    /// `url` lacks its query, user name and password, which may be secrets.
    #[error("cannot connect to {url} within {after:?}")]
    TimedOut { url: String, after: Duration },
    #[error("cannot start {program}: {source}")]
    Launch { program: String, source: std::io::Error },
    #[error("the connection ended before the server answered initialize; see the server's log")]
    EndedEarly,
}

/// A protocol violation by the server.
#[derive(Debug, thiserror::Error)]
pub enum Violation {
    /// The server sent something other than a message, for example the banner of another program.
    #[error("it sent {start:?}, which is not a message: {source}")]
    Message { start: String, source: exec_server_protocol::DecodeError },
    #[error("{0}")]
    Malformed(#[from] exec_server_transport::MalformedMessage),
    #[error("cannot decode the response to {method}: {source}")]
    Result { method: &'static str, source: serde_json::Error },
    #[error("cannot decode the notification {method}: {source}")]
    Notification { method: String, source: serde_json::Error },
    #[error("process {process_id:?} has events with invalid sequence numbers")]
    Numbers { process_id: String },
    #[error("expected piece {expected} of an HTTP body, got piece {got}")]
    BodyNumbers { expected: u64, got: u64 },
    #[error("it sent an empty block before the end of the file")]
    EmptyBlock,
    #[error("cannot decode the target of a symlink: {0}")]
    LinkTarget(#[from] exec_server_protocol::LinkTargetError),
    #[error("{0}")]
    PageOrder(#[from] exec_server_protocol::PageOrderError),
    #[error("it sent more than {limit} unacknowledged bytes of an HTTP body")]
    NotHeldBack { limit: usize },
    #[error("it resumed session {given} instead of {asked}")]
    OtherSession { asked: String, given: String },
}

impl Violation {
    /// Quotes only the beginning: the text may be large.
    pub(crate) fn message(text: &[u8], source: exec_server_protocol::DecodeError) -> Self {
        const QUOTED: usize = 80;
        let start = String::from_utf8_lossy(&text[..text.len().min(4 * QUOTED)]);
        Self::Message { start: start.chars().take(QUOTED).collect(), source }
    }
}

impl ExecServerError {
    /// The `data.kind` of a server error.
    #[must_use]
    pub fn kind(&self) -> Option<&ErrorKind> {
        match self {
            Self::Server(error) => error.kind(),
            _ => None,
        }
    }
}

impl ConnectError {
    /// Whether retrying is pointless.
    #[must_use]
    pub fn is_permanent(&self) -> bool {
        match self {
            Self::Dial(error) => error.is_permanent(),
            Self::Relay(error) => !error.is_temporary(),
            Self::Credentials(_) | Self::TokenVariable { .. } | Self::Launch { .. } => true,
            // A token file may be about to be replaced.
            Self::Token(_) | Self::TimedOut { .. } | Self::EndedEarly => false,
        }
    }
}

fn refused(error: &ExecServerError) -> &'static str {
    match error {
        ExecServerError::ConnectFailed(_) => "could not reconnect",
        _ => "the server did not resume the session",
    }
}

/// The amount of lost output; an older server does not report it.
fn amount(dropped_bytes: u64) -> String {
    match dropped_bytes {
        0 => "a part".to_owned(),
        dropped => format!("{dropped} bytes"),
    }
}

/// The chain of causes of an error, for single-line messages.
fn cause(error: &dyn std::error::Error) -> String {
    let sources = std::iter::successors(error.source(), |error| error.source());
    sources.map(|source| format!(": {source}")).collect()
}

impl From<Violation> for ExecServerError {
    fn from(violation: Violation) -> Self {
        Self::ProtocolViolation(Arc::new(violation))
    }
}

impl From<HarnessError> for ConnectError {
    fn from(error: HarnessError) -> Self {
        Self::Relay(Box::new(error))
    }
}

impl From<ConnectError> for ExecServerError {
    fn from(error: ConnectError) -> Self {
        Self::ConnectFailed(Arc::new(error))
    }
}

impl From<DisconnectReason> for ExecServerError {
    fn from(lost: DisconnectReason) -> Self {
        Self::Disconnected(Arc::new(lost))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_of_unknown_size_is_not_reported_as_0_bytes() {
        let gap = |dropped_bytes| {
            ExecServerError::Gap { process_id: "p".to_owned(), dropped_bytes }.to_string()
        };
        assert_eq!(gap(9), r#"process "p" lost 9 bytes of its output"#);
        assert_eq!(gap(0), r#"process "p" lost a part of its output"#);
    }

    #[test]
    fn a_connection_that_cannot_be_made_is_not_reported_as_a_refused_session() {
        let refused = |error| DisconnectReason::Refused(error).to_string();
        let server = ExecServerError::Server(RpcError::internal("no"));
        assert!(refused(server).starts_with("the server did not resume the session: "));
        let dialled = ConnectError::TokenVariable { name: "T".to_owned() };
        assert_eq!(
            refused(dialled.into()),
            "could not reconnect: no token: the environment variable T is unset or empty"
        );
    }
}

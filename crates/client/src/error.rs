//! What can go wrong for a caller, by what the caller would do about it.

use std::sync::Arc;
use std::time::Duration;

use exec_server_protocol::{ErrorKind, RpcError};
use exec_server_relay::harness::HarnessError;
use exec_server_transport::{AuthError, DialError};

/// Why a call, a process or a connection failed. Clones are cheap: one loss is told to many.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ExecServerError {
    /// The owner of this client closed it.
    #[error("the client was closed")]
    Closed,
    /// The connection is lost and will not come back. Everybody who waits gets this same error.
    #[error("disconnected from the server: {0}")]
    Disconnected(#[source] Arc<DisconnectReason>),
    /// The connection was lost while this call was under way, and doing it twice would not be harmless: it may or
    /// may not have taken effect. The client itself goes on.
    #[error("{method} was interrupted by a lost connection; it may or may not have taken effect")]
    Interrupted { method: &'static str },
    /// The call is larger than a message may be, and was not sent.
    #[error("{method}: {source}")]
    TooLarge { method: &'static str, source: Arc<exec_server_protocol::DecodeError> },
    #[error("{what} took longer than {after:?}")]
    TimedOut { what: &'static str, after: Duration },
    /// The server's own answer: code, message, and a stable word in `data.kind`.
    #[error(transparent)]
    Server(RpcError),
    /// The server said something that this protocol does not allow.
    #[error("the server broke the protocol: {0}")]
    ProtocolViolation(#[source] Arc<Violation>),
    #[error("{0}")]
    ConnectFailed(#[source] Arc<ConnectError>),
    /// Output of this process is gone: the server kept it as long as it could.
    #[error("process {process_id:?} lost {dropped_bytes} bytes of its output")]
    Gap { process_id: String, dropped_bytes: u64 },
    /// Too much of what the server sends for this call waits to be consumed.
    #[error(
        "more than {limit} bytes of {method} wait to be consumed, and the server does not hold back"
    )]
    NotConsumed { method: &'static str, limit: usize },
    /// The server started the process without the sandbox that was asked for, as one does that knows none. It has ended it.
    #[error(
        "the server does not enforce sandboxes: it started the process without one, and had to end it again"
    )]
    NotSandboxed { process_id: String },
    /// The server started the process without the rules about hosts that were asked for. It has
    /// ended it.
    #[error(
        "the server does not enforce rules about hosts: it started the process without them, and \
         had to end it again"
    )]
    NetworkNotManaged { process_id: String },
    /// The server knows no limits, and started the process without them.
    #[error(
        "the server does not know limits of processes: it started the process without them, and had to \
         end it again"
    )]
    NotLimited { process_id: String },
    /// This handle only watches a process that belongs to another session.
    #[error("process {process_id:?} belongs to another session and is only observed")]
    ReadOnly { process_id: String },
}

/// Why a connection that once worked is lost for good.
#[derive(Debug, thiserror::Error)]
pub enum DisconnectReason {
    #[error("it did not come back within {deadline:?}; last attempt: {last}")]
    Deadline { deadline: Duration, last: String },
    #[error("the connection ended and cannot be dialled again")]
    CannotRedial,
    #[error("the task of the client was stopped, with its runtime or by a panic")]
    TaskStopped,
    #[error("the server program ended: {status}")]
    ServerExited { status: String },
    #[error("the server does not give the session back: {0}")]
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
    /// Nothing to prove this client with.
    #[error("{0}")]
    Credentials(String),
    #[error("there is no token to connect with: the variable {name} is not set")]
    TokenVariable { name: String },
    #[error("cannot connect within {after:?}")]
    TimedOut { after: Duration },
    #[error("cannot start {program}: {source}")]
    Launch { program: String, source: std::io::Error },
    #[error("the connection ended before the server answered initialize")]
    EndedEarly,
}

/// What the server said wrong.
#[derive(Debug, thiserror::Error)]
pub enum Violation {
    /// Such as the banner of a program that is no server.
    #[error("it sent {start:?}, which is not a message: {source}")]
    Message { start: String, source: exec_server_protocol::DecodeError },
    #[error("{0}")]
    Malformed(#[from] exec_server_transport::MalformedMessage),
    #[error("the answer to {method} cannot be read: {source}")]
    Result { method: &'static str, source: serde_json::Error },
    #[error("a notification {method} cannot be read: {source}")]
    Notification { method: String, source: serde_json::Error },
    #[error("process {process_id:?} has events with impossible numbers")]
    Numbers { process_id: String },
    #[error("piece {got} of a body came where piece {expected} was due")]
    BodyNumbers { expected: u64, got: u64 },
    #[error("a block of a file is empty and is not the end")]
    EmptyBlock,
    #[error("the target of a symlink cannot be read: {0}")]
    LinkTarget(#[from] exec_server_protocol::LinkTargetError),
    #[error("{0}")]
    PageOrder(#[from] exec_server_protocol::PageOrderError),
    #[error("it sent more than {limit} bytes of a body ahead of their acknowledgement")]
    NotHeldBack { limit: usize },
    #[error("it gave session {given} instead of {asked}")]
    OtherSession { asked: String, given: String },
}

impl Violation {
    /// Quotes the beginning, since the text may be large.
    pub(crate) fn message(text: &[u8], source: exec_server_protocol::DecodeError) -> Self {
        const QUOTED: usize = 80;
        let start = String::from_utf8_lossy(&text[..text.len().min(4 * QUOTED)]);
        Self::Message { start: start.chars().take(QUOTED).collect(), source }
    }
}

impl ExecServerError {
    /// The kind of a server's error.
    #[must_use]
    pub fn kind(&self) -> Option<&ErrorKind> {
        match self {
            Self::Server(error) => error.kind(),
            _ => None,
        }
    }
}

impl ConnectError {
    /// Whether trying the same again is pointless.
    #[must_use]
    pub fn is_permanent(&self) -> bool {
        match self {
            Self::Dial(error) => error.is_permanent(),
            Self::Relay(error) => !error.is_temporary(),
            Self::Credentials(_) | Self::TokenVariable { .. } | Self::Launch { .. } => true,
            // A token may be in the middle of being renewed.
            Self::Token(_) | Self::TimedOut { .. } | Self::EndedEarly => false,
        }
    }
}

/// The reason behind an error, for texts that stand alone on a line.
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

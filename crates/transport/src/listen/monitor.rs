//! The operator's view of a listener: clients that it did not let in, and the metrics that it serves.

use std::fmt;
use std::net::SocketAddr;

/// A client that was refused.
#[derive(Debug, Clone, Copy)]
pub struct Refusal {
    /// `None` where the transport has no addresses.
    pub address: Option<SocketAddr>,
    pub reason: RefusalReason,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefusalReason {
    /// Its `Host` or `Origin` is not allowed.
    Name,
    /// It has no credentials, or wrong ones.
    Credentials,
    /// It is another user of this machine.
    OtherUser,
    /// There are too many connections.
    Limit,
    /// Its TLS handshake failed.
    Tls,
    /// It may be inside a sandbox of the server.
    Sandboxed,
}

impl RefusalReason {
    pub const ALL: [Self; 6] =
        [Self::Name, Self::Credentials, Self::OtherUser, Self::Limit, Self::Tls, Self::Sandboxed];

    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::Name => "name",
            Self::Credentials => "credentials",
            Self::OtherUser => "otherUser",
            Self::Limit => "limit",
            Self::Tls => "tls",
            Self::Sandboxed => "sandboxed",
        }
    }
}

/// Sees what a listener does, for the operator.
pub trait ListenerMonitor: fmt::Debug + Send + Sync {
    /// A client was not let in. Must not block.
    fn refused(&self, refusal: &Refusal);

    /// The body of `GET /metrics`; `None` if that is not served. Must not block.
    fn metrics(&self) -> Option<String>;
}

//! The operator's view of a listener: refused clients, and the metrics that it serves.

use std::fmt;
use std::net::SocketAddr;

#[derive(Debug, Clone, Copy)]
pub struct Refusal {
    /// `None` on a Unix socket, and if a TCP socket was already reset.
    pub address: Option<SocketAddr>,
    pub reason: RefusalReason,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefusalReason {
    /// The `Host` or `Origin` is not allowed.
    Name,
    /// The credentials are missing or invalid, or their role may not read the metrics.
    Credentials,
    /// The user of the client is refused or cannot be determined.
    OtherUser,
    /// There are too many connections.
    Limit,
    /// The TLS handshake failed.
    Tls,
    /// The client may be inside a sandbox of the server.
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

pub trait ListenerMonitor: fmt::Debug + Send + Sync {
    /// Must not block.
    fn refused(&self, refusal: &Refusal);

    /// Returns the body of `GET /metrics`, or `None` if metrics are not served. Must not block.
    fn metrics(&self) -> Option<String>;
}

//! The connection that a session is attached to.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::connection::ClientConnection;
use crate::feed::ConfirmedBy;

#[derive(Debug)]
pub(super) enum Attachment {
    Attached(Arc<ClientConnection>),
    Detached {
        since: Instant,
        until: Instant,
    },
    /// Final.
    Ended,
}

#[derive(Debug)]
pub(crate) enum AttachError {
    /// Another connection has the session.
    Attached(Arc<ClientConnection>),
    Ended,
}

/// The resume request of a client that reconnects.
#[derive(Debug)]
pub(crate) struct Resume {
    pub(crate) confirmed_by: ConfirmedBy,
    /// `None` keeps the current value.
    pub(crate) detached_ttl: Option<Duration>,
    /// The last event that the client has, for some of its processes.
    pub(crate) positions: BTreeMap<String, u64>,
}

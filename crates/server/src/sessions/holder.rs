//! Whom a session is attached to: a connection, or this program itself.

use std::sync::Arc;

use crate::connection::{Audience, ConnectionHandle, ConnectionId};
use crate::local::LocalProcess;

#[derive(Debug, Clone)]
pub(crate) enum Holder {
    Connection(Arc<ConnectionHandle>),
    /// A [`LocalSession`](super::LocalSession), numbered as connections are. It reads the logs itself, so
    /// nothing is fed to it, and it is never away.
    Program(ConnectionId),
}

impl Holder {
    pub(crate) fn id(&self) -> ConnectionId {
        match self {
            Self::Connection(connection) => connection.id(),
            Self::Program(id) => *id,
        }
    }

    pub(super) fn feed(&self, process: &Arc<LocalProcess>, audience: Audience, held: bool) {
        match self {
            Self::Connection(connection) => connection.feed(process, audience, held),
            Self::Program(_) => {}
        }
    }

    pub(super) fn lose_session(&self) {
        match self {
            Self::Connection(connection) => connection.lose_session(),
            Self::Program(_) => {}
        }
    }
}

//! Feeds. Each is a cursor over the log of one process, and sends its events to one client.

mod in_process;
mod socket;

pub(crate) use in_process::feed_in_process;
#[cfg(test)]
pub(crate) use socket::tests;
pub(crate) use socket::{CATCH_UP_TIMEOUT, SocketFeed};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum FeedReader {
    /// The session's own client. Events that it confirms may be evicted.
    Owner { confirmed_by: ConfirmedBy },
    /// An observer. Events that it has not read may be evicted.
    Observer { session_id: String, after: u64 },
}

/// How the server knows that the owner has an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ConfirmedBy {
    /// The client acknowledges it.
    Ack,
    /// The peer's socket seems to have read it: the best evidence for a client that never acks. See
    /// `connection::delivery_window`.
    Receipt,
}

//! Cursors over the logs of processes that bring their events to clients.

mod in_process;
mod socket;

pub(crate) use in_process::feed_in_process;
#[cfg(test)]
pub(crate) use socket::tests;
pub(crate) use socket::{CATCH_UP_TIMEOUT, SocketFeed};

/// Who reads a feed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum FeedReader {
    /// The session's own client. What it confirms may be evicted.
    Owner { confirmed_by: ConfirmedBy },
    /// Someone who looks on, and holds nothing back.
    Observer { session_id: String, after: u64 },
}

/// How it is known that the owner has an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ConfirmedBy {
    /// The client says so.
    Ack,
    /// The peer's WebSocket has read it: the best that is known of a client that never acks.
    Receipt,
}

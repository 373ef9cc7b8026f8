//! Leases: watches, searches, bodies of HTTP responses and file handles. None outlives its
//! connection. Routes their notifications, and releases each lease on the server when it is no
//! longer wanted.
//!
//! Decides and returns what to send; the driver, or the link to a server in the same program, sends
//! it. Ids are never reused, and a lost connection ends every lease, so late messages from an old
//! connection are ignored.

mod changes;
mod handle;
mod inbox;
mod matches;
mod pieces;
#[cfg(test)]
mod tests;
mod wakeups;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use exec_server_protocol::{
    Call, FsCancelSearchParams, FsCloseParams, FsUnwatchParams, HttpAckParams, HttpCancelParams,
    Method, ServerNotification,
};

pub use changes::Changes;
pub(crate) use changes::PendingChanges;
pub(crate) use handle::LeaseHandle;
pub(crate) use inbox::{Inbox, LeaseInbox, NoItems, wait_until};
pub(crate) use matches::Matches;
pub(crate) use pieces::Pieces;
pub(crate) use wakeups::LeaseWakeups;

use crate::{ExecServerError, Violation};
use pieces::PieceKind;

pub(crate) type LeaseId = Arc<str>;

/// The driver's side of a lease. Dropping it notifies the holder of the end.
#[derive(Debug)]
pub(crate) struct Lease {
    id: LeaseId,
    target: Target,
    stage: Stage,
}

/// The recipient of a lease's notifications.
#[derive(Debug, Clone)]
pub(crate) enum Target {
    Watch(Arc<Inbox<PendingChanges>>),
    Search(Arc<Inbox<Matches>>),
    Body(Arc<Inbox<Pieces>>),
    File { inbox: Arc<Inbox<NoItems>>, purpose: FilePurpose },
}

/// The purpose of an open file, which decides how to release it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FilePurpose {
    Read,
    /// A release does not commit the file. If it has a resume key, the server keeps its data.
    Write,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// The call that opens the lease has no response yet.
    Opening,
    Open,
}

#[derive(Debug)]
pub(crate) enum LeaseMessage {
    GiveUp(Box<Call>),
    Acknowledge(HttpAckParams),
}

#[derive(Debug, Default)]
pub(crate) struct Leases {
    by_id: HashMap<LeaseId, Lease>,
    outbound: VecDeque<LeaseMessage>,
    /// Whether the server supports acknowledgements of HTTP bodies.
    acks: bool,
}

impl Leases {
    pub(crate) fn acknowledge(&mut self, acks: bool) {
        self.acks = acks;
    }

    /// Registers a lease before its call is sent, so that early notifications have a recipient.
    pub(crate) fn track(&mut self, lease: Lease) {
        if let Target::Body(inbox) = &lease.target {
            inbox.with_queue(|pieces| pieces.acknowledge(self.acks));
        }
        self.by_id.insert(lease.id.clone(), lease);
    }

    /// Records the response to the call that opens a lease. The response is delivered before the
    /// lease ends, so that a caller that observes the end finds the response.
    pub(crate) fn opened(&mut self, id: &LeaseId, refused: bool, deliver: impl FnOnce()) {
        deliver();
        let Some(lease) = self.by_id.get_mut(id) else { return };
        // A search ends with its response.
        if refused || matches!(lease.target, Target::Search(_)) {
            lease.target.inbox().end(Ok(()));
            self.by_id.remove(id);
            return;
        }
        lease.stage = Stage::Open;
        self.collect_outbound(id);
    }

    /// `text_len` is the length of the notification's params as JSON text.
    pub(crate) fn notified(&mut self, id: &str, notification: ServerNotification, text_len: usize) {
        if let Some((id, lease)) = self.by_id.get_key_value(id) {
            let id = id.clone();
            lease.target.take(notification, text_len);
            self.collect_outbound(&id);
        }
    }

    pub(crate) fn fail(&mut self, id: &str, violation: Violation) {
        if let Some((id, lease)) = self.by_id.get_key_value(id) {
            let id = id.clone();
            lease.target.inbox().end(Err(violation.into()));
            self.collect_outbound(&id);
        }
    }

    /// Checks one lease for acknowledgements to send, and releases it if it is unwanted.
    pub(crate) fn collect_outbound(&mut self, id: &LeaseId) {
        let Some(lease) = self.by_id.get(id) else { return };
        if let Target::Body(inbox) = &lease.target
            && let Some(seq) = inbox.with_queue(Pieces::take_ack)
        {
            let params = HttpAckParams { request_id: id.to_string(), seq };
            self.outbound.push_back(LeaseMessage::Acknowledge(params));
        }
        let given_up = lease.target.inbox().is_given_up();
        match (lease.stage, &lease.target) {
            (Stage::Open, _) if given_up => {
                self.outbound.push_back(LeaseMessage::GiveUp(Box::new(lease.give_up())));
                self.by_id.remove(id);
            }
            // For example a complete body: there is nothing to release.
            (Stage::Open, _) if lease.target.inbox().is_over() => drop(self.by_id.remove(id)),
            // Repeated after each further notification: the first cancellation may have arrived
            // before the search or HTTP request had started.
            (Stage::Opening, Target::Search(_) | Target::Body(_)) if given_up => {
                self.outbound.push_back(LeaseMessage::GiveUp(Box::new(lease.give_up())));
            }
            // Requests may overtake each other, so a lease that is being opened is released after
            // its response.
            (Stage::Opening | Stage::Open, _) => {}
        }
    }

    /// Returns the next message to send. Call this only while calls are admitted.
    pub(crate) fn poll_outbound(&mut self) -> Option<LeaseMessage> {
        self.outbound.pop_front()
    }

    pub(crate) fn connection_lost(&mut self) {
        self.outbound.clear();
        for (_, lease) in self.by_id.drain() {
            lease
                .target
                .inbox()
                .end(Err(ExecServerError::Interrupted { method: lease.method().name() }));
        }
    }

    pub(crate) fn fail_all(&mut self, error: &ExecServerError) {
        self.outbound.clear();
        for (_, lease) in self.by_id.drain() {
            lease.target.inbox().end(Err(error.clone()));
        }
    }
}

impl Lease {
    pub(crate) fn new(id: LeaseId, target: Target) -> Self {
        Self { id, target, stage: Stage::Opening }
    }

    pub(crate) fn id(&self) -> &LeaseId {
        &self.id
    }

    pub(crate) fn target(&self) -> &Target {
        &self.target
    }

    /// The method that opens the lease.
    fn method(&self) -> Method {
        match &self.target {
            Target::Watch(_) => Method::FsWatch,
            Target::Search(_) => Method::FsSearch,
            Target::Body(_) => Method::HttpRequest,
            Target::File { purpose: FilePurpose::Read, .. } => Method::FsOpen,
            Target::File { purpose: FilePurpose::Write, .. } => Method::FsCreate,
        }
    }

    /// Returns the call that releases the lease. If the connection is lost first, so is the lease.
    fn give_up(&self) -> Call {
        let id = self.id.to_string();
        match &self.target {
            Target::Watch(_) => Call::FsUnwatch(FsUnwatchParams { watch_id: id }),
            Target::Search(_) => Call::FsCancelSearch(FsCancelSearchParams { search_id: id }),
            Target::Body(_) => Call::HttpCancel(HttpCancelParams { request_id: id }),
            Target::File { purpose, .. } => {
                let keep = *purpose == FilePurpose::Write;
                Call::FsClose(FsCloseParams { handle_id: id, discard: false, keep })
            }
        }
    }
}

impl Target {
    /// Ignores a notification of the wrong kind.
    pub(crate) fn take(&self, notification: ServerNotification, text_len: usize) {
        match (self, notification) {
            (Self::Watch(inbox), ServerNotification::FsChanged(changed)) => inbox.put(|pending| {
                pending.add(changed);
                Ok(())
            }),
            (Self::Search(inbox), ServerNotification::FsSearchResults(results)) => {
                inbox.put(|matches| matches.add(text_len, results.results));
            }
            (Self::Body(inbox), ServerNotification::HttpBodyDelta(delta)) => {
                let mut taken = PieceKind::More;
                inbox.put(|pieces| pieces.add(delta).map(|outcome| taken = outcome));
                if taken == PieceKind::Last {
                    inbox.end(Ok(()));
                }
            }
            _ => {}
        }
    }

    pub(crate) fn inbox(&self) -> &dyn LeaseInbox {
        match self {
            Self::Watch(inbox) => &**inbox,
            Self::Search(inbox) => &**inbox,
            Self::Body(inbox) => &**inbox,
            Self::File { inbox, .. } => &**inbox,
        }
    }
}

impl Drop for Lease {
    /// Also ends the inbox of a lease whose call was never sent, so that no holder waits forever.
    fn drop(&mut self) {
        self.target.inbox().end(Err(ExecServerError::Closed));
    }
}

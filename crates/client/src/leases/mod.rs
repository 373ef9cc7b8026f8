//! What a client has at the server for as long as one connection lives: watches, searches, bodies of HTTP responses, file
//! handles. Where their notifications go, and that each is given up there when nobody wants it here.
//!
//! Decides and returns what to send; the driver sends it. Ids are never used twice, and a lost connection ends every
//! lease, so what an old connection still says reaches nobody.

mod bell;
mod changes;
mod held;
mod inbox;
mod matches;
mod pieces;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use exec_server_protocol::{
    FsCancelSearchParams, FsCloseParams, FsUnwatchParams, HttpAckParams, HttpCancelParams, Method,
    ServerNotification, notification,
};
use tokio::sync::oneshot;

pub(crate) use bell::Bell;
pub use changes::Changes;
pub(crate) use changes::PendingChanges;
pub(crate) use held::Held;
pub(crate) use inbox::{Inbox, NoItems};
pub(crate) use matches::Matches;
pub(crate) use pieces::Pieces;

use crate::calls::{Answer, Asker, Call};
use crate::processes::Errand;
use crate::{ExecServerError, Violation};
use pieces::Taken;

/// As the server knows it.
pub(crate) type LeaseId = Arc<str>;

/// The driver's side of a lease. Whoever holds the other side is told of its end, whatever becomes of this one.
#[derive(Debug)]
pub(crate) struct Lease {
    id: LeaseId,
    target: Target,
    stage: Stage,
}

/// Where the news of a lease go.
#[derive(Debug)]
pub(crate) enum Target {
    Watch(Arc<Inbox<PendingChanges>>),
    Search(Arc<Inbox<Matches>>),
    Body(Arc<Inbox<Pieces>>),
    File { inbox: Arc<Inbox<NoItems>>, purpose: FilePurpose },
}

/// What a file is open for, and so what it means to give it up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FilePurpose {
    Read,
    /// It does not take its name. If it has a key by which it can be found again, it is kept.
    Write,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// The call that opens it is not answered yet.
    Opening,
    Open,
}

#[derive(Debug, Default)]
pub(crate) struct Leases {
    by_id: HashMap<LeaseId, Lease>,
    errands: VecDeque<Errand>,
    /// Whether the server knows acknowledgements.
    acks: bool,
}

impl Leases {
    pub(crate) fn acknowledge(&mut self, acks: bool) {
        self.acks = acks;
    }

    /// Known before the call that opens it is sent, so that what is notified early has a home.
    pub(crate) fn track(&mut self, lease: Lease) {
        if let Target::Body(inbox) = &lease.target {
            inbox.tend(|pieces| pieces.acknowledge(self.acks));
        }
        self.by_id.insert(lease.id.clone(), lease);
    }

    /// The call that opens a lease was answered.
    pub(crate) fn opened(&mut self, id: &LeaseId, sender: oneshot::Sender<Answer>, answer: Answer) {
        let refused = answer.is_err();
        // Before the lease ends: who sees the end finds the answer.
        let _ = sender.send(answer);
        let Some(lease) = self.by_id.get_mut(id) else { return };
        // A search is over when it is answered.
        if refused || matches!(lease.target, Target::Search(_)) {
            lease.end(Ok(()));
            self.by_id.remove(id);
            return;
        }
        lease.stage = Stage::Open;
        self.tend(id);
    }

    /// `text_len` is the length of the message that brought the notification.
    pub(crate) fn notified(&mut self, id: &str, notification: ServerNotification, text_len: usize) {
        if let Some((id, lease)) = self.by_id.get_key_value(id) {
            let id = id.clone();
            lease.take(notification, text_len);
            self.tend(&id);
        }
    }

    /// Fails one lease because of what the server said about it.
    pub(crate) fn fail(&mut self, id: &str, violation: Violation) {
        if let Some((id, lease)) = self.by_id.get_key_value(id) {
            let id = id.clone();
            lease.end(Err(violation.into()));
            self.tend(&id);
        }
    }

    /// Looks after one lease: what it has to acknowledge, and whether anybody wants it.
    pub(crate) fn tend(&mut self, id: &LeaseId) {
        let Some(lease) = self.by_id.get(id) else { return };
        if let Target::Body(inbox) = &lease.target
            && let Some(seq) = inbox.tend(Pieces::take_ack)
        {
            let params = HttpAckParams { request_id: id.to_string(), seq };
            self.errands.push_back(Errand::Notify(notification(&params)));
        }
        let given_up = lease.is_given_up();
        match (lease.stage, &lease.target) {
            (Stage::Open, _) if given_up => {
                self.errands.push_back(lease.give_up());
                self.by_id.remove(id);
            }
            // A body that came to its end.
            (Stage::Open, _) if lease.is_over() => drop(self.by_id.remove(id)),
            // Said again for each result that still comes: the search may not have begun when it was said before.
            (Stage::Opening, Target::Search(_) | Target::Body(_)) if given_up => {
                self.errands.push_back(lease.give_up());
            }
            // Requests may overtake each other: what is being opened is closed when it is open.
            (Stage::Opening | Stage::Open, _) => {}
        }
    }

    /// What has to be sent now. Only to be asked while calls may go through.
    pub(crate) fn poll_errand(&mut self) -> Option<Errand> {
        self.errands.pop_front()
    }

    /// The connection is gone, and with it everything that was open there.
    pub(crate) fn connection_lost(&mut self) {
        self.errands.clear();
        for (_, lease) in self.by_id.drain() {
            lease.end(Err(ExecServerError::Interrupted { method: lease.method().name() }));
        }
    }

    pub(crate) fn fail_all(&mut self, error: &ExecServerError) {
        self.errands.clear();
        for (_, lease) in self.by_id.drain() {
            lease.end(Err(error.clone()));
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

    /// What a notification of another kind says under this id means nothing.
    fn take(&self, notification: ServerNotification, text_len: usize) {
        match (&self.target, notification) {
            (Target::Watch(inbox), ServerNotification::FsChanged(changed)) => inbox.put(|pending| {
                pending.add(changed);
                Ok(())
            }),
            (Target::Search(inbox), ServerNotification::FsSearchResults(results)) => {
                inbox.put(|matches| matches.add(text_len, results.results));
            }
            (Target::Body(inbox), ServerNotification::HttpBodyDelta(delta)) => {
                let mut taken = Taken::More;
                inbox.put(|pieces| pieces.add(delta).map(|outcome| taken = outcome));
                if taken == Taken::Last {
                    inbox.end(Ok(()));
                }
            }
            _ => {}
        }
    }

    pub(crate) fn end(&self, end: Result<(), ExecServerError>) {
        match &self.target {
            Target::Watch(inbox) => inbox.end(end),
            Target::Search(inbox) => inbox.end(end),
            Target::Body(inbox) => inbox.end(end),
            Target::File { inbox, .. } => inbox.end(end),
        }
    }

    fn is_over(&self) -> bool {
        match &self.target {
            Target::Watch(inbox) => inbox.is_over(),
            Target::Search(inbox) => inbox.is_over(),
            Target::Body(inbox) => inbox.is_over(),
            Target::File { inbox, .. } => inbox.is_over(),
        }
    }

    fn is_given_up(&self) -> bool {
        match &self.target {
            Target::Watch(inbox) => inbox.is_given_up(),
            Target::Search(inbox) => inbox.is_given_up(),
            Target::Body(inbox) => inbox.is_given_up(),
            Target::File { inbox, .. } => inbox.is_given_up(),
        }
    }

    /// What opened it.
    fn method(&self) -> Method {
        match &self.target {
            Target::Watch(_) => Method::FsWatch,
            Target::Search(_) => Method::FsSearch,
            Target::Body(_) => Method::HttpRequest,
            Target::File { purpose: FilePurpose::Read, .. } => Method::FsOpen,
            Target::File { purpose: FilePurpose::Write, .. } => Method::FsCreate,
        }
    }

    /// Tells the server that nobody wants it. If the connection is lost before, so is the lease.
    fn give_up(&self) -> Errand {
        let id = self.id.to_string();
        Errand::Call(match &self.target {
            Target::Watch(_) => {
                let params = FsUnwatchParams { watch_id: id };
                Call::internal(Method::FsUnwatch, &params, Asker::Nobody)
            }
            Target::Search(_) => {
                let params = FsCancelSearchParams { search_id: id };
                Call::internal(Method::FsCancelSearch, &params, Asker::Nobody)
            }
            Target::Body(_) => {
                let params = HttpCancelParams { request_id: id };
                Call::internal(Method::HttpCancel, &params, Asker::Nobody)
            }
            Target::File { purpose, .. } => {
                let keep = *purpose == FilePurpose::Write;
                let params = FsCloseParams { handle_id: id, discard: false, keep };
                Call::internal(Method::FsClose, &params, Asker::Nobody)
            }
        })
    }
}

impl Drop for Lease {
    /// Also when it was never sent: nobody waits for ever.
    fn drop(&mut self) {
        self.end(Err(ExecServerError::Closed));
    }
}

//! The holder's side of a lease.

use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::task::coop;

use super::inbox::{Inbox, LeaseInbox as _, Queue};
use super::{Lease, LeaseId, Target};
use crate::{ExecServerClient, ExecServerError};

/// The holder's handle of a lease. Dropping it releases the lease on the server, without waiting.
#[derive(Debug)]
pub(crate) struct LeaseHandle<Q: Queue> {
    inbox: Arc<Inbox<Q>>,
    id: LeaseId,
    client: ExecServerClient,
}

impl<Q: Queue> LeaseHandle<Q> {
    pub(crate) fn new(
        client: &ExecServerClient,
        queue: Q,
        target: impl FnOnce(Arc<Inbox<Q>>) -> Target,
    ) -> (Self, Lease) {
        let id = LeaseId::from(client.unique_id());
        let inbox = Arc::new(Inbox::new(queue));
        let lease = Lease::new(id.clone(), target(Arc::clone(&inbox)));
        (Self { inbox, id, client: client.clone() }, lease)
    }

    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    pub(crate) fn client(&self) -> &ExecServerClient {
        &self.client
    }

    /// Returns the next item; after the last item the error, if any, and then `None`. Cancel-safe.
    pub(crate) async fn next(&self) -> Option<Result<Q::Item, ExecServerError>> {
        std::future::poll_fn(|context| self.poll_next(context)).await
    }

    pub(crate) fn poll_next(
        &self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Q::Item, ExecServerError>>> {
        // A flooding server is always ready, so the reader must yield to other tasks.
        let budget = ready!(coop::poll_proceed(context));
        let item = ready!(self.inbox.poll_item(context));
        budget.made_progress();
        if self.inbox.has_outbound() {
            self.client.lease_changed(&self.id);
        }
        Poll::Ready(item)
    }

    /// Resolves when [`Self::next`] would return immediately.
    pub(crate) async fn ready(&self) {
        std::future::poll_fn(|context| self.inbox.poll_ready(context)).await;
    }

    /// Marks the lease as ended by the server, so that dropping the handle releases nothing.
    pub(crate) fn release(self) {
        self.inbox.end(Ok(()));
        self.client.lease_changed(&self.id);
    }

    pub(crate) fn is_over(&self) -> bool {
        self.inbox.is_over()
    }

    /// Resolves when the lease has ended. Returns its error, if any.
    pub(crate) async fn over(&self) -> Option<ExecServerError> {
        self.inbox.over().await
    }
}

impl<Q: Queue> Drop for LeaseHandle<Q> {
    fn drop(&mut self) {
        self.inbox.abandon();
        // A lease that has ended need not be released.
        if !self.inbox.is_over() {
            self.client.lease_changed(&self.id);
        }
    }
}

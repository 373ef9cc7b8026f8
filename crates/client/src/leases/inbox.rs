//! The queue between the sender of a lease's notifications and its holder: items, then an end.

use std::fmt::Debug;
use std::sync::{Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};

use tokio::sync::Notify;

use crate::ExecServerError;

/// Items that wait for their consumer. Each implementation has its own bound.
pub(crate) trait Queue: Debug + Send + 'static {
    type Item;

    fn pop(&mut self) -> Option<Self::Item>;

    fn is_empty(&self) -> bool;

    /// Whether consuming items has produced something for the driver to send.
    fn has_outbound(&self) -> bool {
        false
    }

    /// Whether a server in the same program must wait before it sends another item.
    fn is_full(&self) -> bool {
        !self.is_empty()
    }
}

/// An inbox, independent of the type of its items.
pub(crate) trait LeaseInbox: Send + Sync {
    /// Ends the inbox. Only the first end counts.
    fn end(&self, end: Result<(), ExecServerError>);

    fn is_over(&self) -> bool;

    /// Whether further items are unwanted: the consumer left before the end, or an error ended the
    /// inbox.
    fn is_given_up(&self) -> bool;

    fn is_full(&self) -> bool;

    /// Notified when one of these conditions may have changed.
    fn changed(&self) -> &Notify;
}

#[derive(Debug)]
pub(crate) struct NoItems;

impl Queue for NoItems {
    type Item = std::convert::Infallible;

    fn pop(&mut self) -> Option<Self::Item> {
        None
    }

    fn is_empty(&self) -> bool {
        true
    }
}

#[derive(Debug)]
pub(crate) struct Inbox<Q> {
    state: Mutex<State<Q>>,
    changed: Notify,
}

#[derive(Debug)]
struct State<Q> {
    queue: Q,
    /// The end. Delivered after all queued items.
    end: Option<Result<(), ExecServerError>>,
    /// Whether the consumer has received the error.
    told: bool,
    /// The consumer is gone.
    abandoned: bool,
    waker: Option<Waker>,
}

impl<Q: Queue> Inbox<Q> {
    pub(crate) fn new(queue: Q) -> Self {
        let state = State { queue, end: None, told: false, abandoned: false, waker: None };
        Self { state: Mutex::new(state), changed: Notify::new() }
    }

    /// Has no effect after the end or without a consumer. An error from `add` ends the inbox.
    pub(crate) fn put(&self, add: impl FnOnce(&mut Q) -> Result<(), ExecServerError>) {
        let mut state = self.lock();
        if state.end.is_some() || state.abandoned {
            return;
        }
        let added = add(&mut state.queue);
        state.wake();
        drop(state);
        if let Err(error) = added {
            self.end(Err(error));
        }
    }

    pub(crate) fn with_queue<T>(&self, look: impl FnOnce(&mut Q) -> T) -> T {
        look(&mut self.lock().queue)
    }

    pub(crate) fn abandon(&self) {
        self.lock().abandoned = true;
        self.changed.notify_waiters();
    }

    /// Returns the next item; after the last item the error, if any, and then `None`.
    pub(crate) fn poll_item(
        &self,
        context: &Context<'_>,
    ) -> Poll<Option<Result<Q::Item, ExecServerError>>> {
        let mut state = self.lock();
        if let Some(item) = state.queue.pop() {
            drop(state);
            self.changed.notify_waiters();
            return Poll::Ready(Some(Ok(item)));
        }
        match &state.end {
            Some(Err(error)) if !state.told => {
                let error = error.clone();
                state.told = true;
                Poll::Ready(Some(Err(error)))
            }
            Some(_) => Poll::Ready(None),
            None => {
                state.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }

    /// Resolves when there is an item, or when no item will follow.
    pub(crate) fn poll_ready(&self, context: &Context<'_>) -> Poll<()> {
        let mut state = self.lock();
        if state.end.is_some() || !state.queue.is_empty() {
            return Poll::Ready(());
        }
        state.waker = Some(context.waker().clone());
        Poll::Pending
    }

    pub(crate) fn has_outbound(&self) -> bool {
        self.lock().queue.has_outbound()
    }

    /// Resolves at the end, for any number of waiters. Returns the error, if any.
    pub(crate) async fn over(&self) -> Option<ExecServerError> {
        wait_until(self, |inbox| inbox.is_over()).await;
        self.lock().end.clone().and_then(Result::err)
    }

    fn lock(&self) -> MutexGuard<'_, State<Q>> {
        self.state.lock().expect("no code panics while it holds an inbox")
    }
}

impl<Q: Queue> LeaseInbox for Inbox<Q> {
    fn end(&self, end: Result<(), ExecServerError>) {
        let mut state = self.lock();
        if state.end.is_none() {
            state.end = Some(end);
            state.wake();
            drop(state);
            self.changed.notify_waiters();
        }
    }

    fn is_over(&self) -> bool {
        self.lock().end.is_some()
    }

    fn is_given_up(&self) -> bool {
        let state = self.lock();
        state.end.as_ref().map_or(state.abandoned, Result::is_err)
    }

    fn is_full(&self) -> bool {
        self.lock().queue.is_full()
    }

    fn changed(&self) -> &Notify {
        &self.changed
    }
}

pub(crate) async fn wait_until(inbox: &dyn LeaseInbox, reached: fn(&dyn LeaseInbox) -> bool) {
    loop {
        let mut changed = std::pin::pin!(inbox.changed().notified());
        // The waiter is registered before the check, so that no change is missed.
        changed.as_mut().enable();
        if reached(inbox) {
            return;
        }
        changed.await;
    }
}

impl<Q> State<Q> {
    fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

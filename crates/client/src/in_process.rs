//! PendingCalls to a server in the same program: no connection that could be lost, and no JSON.

use std::collections::HashMap;
use std::fmt::Debug;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use exec_server_protocol::{
    CallResponse, EventSink, Offered, Rpc, RpcError, ServerLink, ServerNotification, SinkFuture,
};
use tokio::sync::{oneshot, watch};

use crate::calls::ProcessKey;
use crate::driver::Opens;
use crate::leases::{Lease, LeaseId, LeaseMessage, Leases, Target, wait_until};
use crate::mirror::{Offer, ProcessMirror, WeakMirror};
use crate::notified::read_event;
use crate::{ConnectionState, ExecServerError};

/// The response of a call as a value.
pub(crate) type Returned = Result<CallResponse, RpcError>;

/// A session at a server in the same program. Dropping it ends the session.
#[derive(Debug)]
pub(crate) struct InProcess {
    server: Arc<dyn ServerLink>,
    pub(crate) state: watch::Sender<ConnectionState>,
    /// The processes of this session whose events still come.
    mirrors: Mutex<HashMap<ProcessKey, WeakMirror>>,
    leases: Mutex<Leases>,
}

impl InProcess {
    pub(crate) fn new(server: Arc<dyn ServerLink>) -> Arc<Self> {
        let (state, _) = watch::channel(ConnectionState::Connected);
        let (mirrors, leases) = (Mutex::default(), Mutex::default());
        Arc::new(Self { server, state, mirrors, leases })
    }

    pub(crate) fn session_id(&self) -> &str {
        self.server.session_id()
    }

    pub(crate) fn is_closed(&self) -> bool {
        matches!(*self.state.borrow(), ConnectionState::Closed)
    }

    pub(crate) fn call<R: Rpc>(
        self: &Arc<Self>,
        params: R::Params,
        opens: Option<Opens>,
    ) -> oneshot::Receiver<Returned> {
        let call = R::into_call(params);
        match opens {
            None => {
                let (sender, receiver) = oneshot::channel();
                self.server.call(call, None, Box::new(|returned| drop(sender.send(returned))));
                receiver
            }
            Some(Opens::Process(process)) => {
                let mirror = process.mirror.clone();
                self.lock_mirrors().insert(process.key().clone(), mirror.downgrade());
                let (sender, receiver) = oneshot::channel();
                let respond = Box::new(|returned| drop(sender.send(returned)));
                self.server.call(call, Some(Arc::new(ProcessSink(mirror))), respond);
                receiver
            }
            Some(Opens::Lease(lease)) => self.open_lease(call, lease),
        }
    }

    fn open_lease(
        self: &Arc<Self>,
        call: exec_server_protocol::Call,
        lease: Lease,
    ) -> oneshot::Receiver<Returned> {
        let (sender, receiver) = oneshot::channel();
        let (id, sink) = (lease.id().clone(), LeaseSink(lease.target().clone()));
        self.lock_leases().track(lease);
        // Weak: a call under way must not keep the session.
        let this = Arc::downgrade(self);
        let respond = move |returned: Returned| match Weak::upgrade(&this) {
            None => drop(sender.send(returned)),
            Some(this) => {
                let refused = returned.is_err();
                this.lock_leases().opened(&id, refused, || drop(sender.send(returned)));
                this.send_outbound();
            }
        };
        self.server.call(call, Some(Arc::new(sink)), Box::new(respond));
        receiver
    }

    /// The holder of a lease has taken something, or is gone.
    pub(crate) fn lease_changed(&self, id: &LeaseId) {
        self.lock_leases().tend(id);
        self.send_outbound();
    }

    fn send_outbound(&self) {
        loop {
            // Not under the lock: a call may be answered at once.
            let message = self.lock_leases().poll_outbound();
            match message {
                None => return,
                Some(LeaseMessage::GiveUp(call)) => self.server.call(*call, None, Box::new(drop)),
                // Only servers at the other end of a socket wait for acknowledgements.
                Some(LeaseMessage::Acknowledge(_)) => {}
            }
        }
    }

    /// A process of this session that no handle is left of.
    pub(crate) fn find_mirror(&self, key: &ProcessKey) -> Option<ProcessMirror> {
        let mirror = self.lock_mirrors().get(key)?.upgrade()?;
        mirror.is_without_handle().then_some(mirror)
    }

    fn lock_mirrors(&self) -> MutexGuard<'_, HashMap<ProcessKey, WeakMirror>> {
        let mut mirrors = self.mirrors.lock().unwrap_or_else(PoisonError::into_inner);
        // Now and then, and not each time: there may be many.
        if mirrors.len() == mirrors.capacity() {
            mirrors.retain(|_, mirror| mirror.upgrade().is_some());
        }
        mirrors
    }

    fn lock_leases(&self) -> MutexGuard<'_, Leases> {
        self.leases.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for InProcess {
    fn drop(&mut self) {
        // Before the server kills the processes: subscribers learn that the client is gone, and of nothing after it.
        for mirror in self.lock_mirrors().values().filter_map(WeakMirror::upgrade) {
            mirror.fail(ExecServerError::Closed);
        }
    }
}

/// Takes the events of a process.
#[derive(Debug)]
struct ProcessSink(ProcessMirror);

impl EventSink for ProcessSink {
    fn offer(&self, notification: ServerNotification) -> Offered {
        let Self(mirror) = self;
        if mirror.is_unwanted() {
            return Offered::Gone;
        }
        let Some((seq, event, dropped_bytes)) = read_event(&notification) else {
            return Offered::Accepted;
        };
        if dropped_bytes > 0
            && let Err(gap) = mirror.skip_to(seq, dropped_bytes)
        {
            mirror.fail(gap);
        }
        // What is offered after a failure is a duplicate, so the process still runs to its end.
        match mirror.offer(seq, event) {
            Offer::Full => Offered::Full(notification),
            Offer::Accepted | Offer::Duplicate | Offer::Hole => Offered::Accepted,
        }
    }

    fn room(&self) -> SinkFuture<'_> {
        Box::pin(self.0.has_room())
    }

    fn gone(&self) -> SinkFuture<'_> {
        Box::pin(self.0.unwanted())
    }

    /// Does nothing to a process that has closed; subscribers of any other would wait for ever.
    fn end(&self) {
        self.0.fail(ExecServerError::Closed);
    }
}

/// Takes the notifications of a lease.
#[derive(Debug)]
struct LeaseSink(Target);

impl EventSink for LeaseSink {
    fn offer(&self, notification: ServerNotification) -> Offered {
        let inbox = self.0.inbox();
        if inbox.is_given_up() {
            return Offered::Gone;
        }
        if inbox.is_full() {
            return Offered::Full(notification);
        }
        // Nothing was sent as text, and the server waits for room.
        self.0.take(notification, 0);
        Offered::Accepted
    }

    fn room(&self) -> SinkFuture<'_> {
        Box::pin(wait_until(self.0.inbox(), |inbox| !inbox.is_full()))
    }

    fn gone(&self) -> SinkFuture<'_> {
        Box::pin(wait_until(self.0.inbox(), |inbox| inbox.is_given_up()))
    }

    fn end(&self) {
        // A search ends with the response to its call.
        if !matches!(self.0, Target::Search(_)) {
            self.0.inbox().end(Err(ExecServerError::Closed));
        }
    }
}

//! Calls to a server in the same program: no connection that could be lost, and no JSON.

use std::collections::HashMap;
use std::fmt::Debug;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use exec_server_protocol::{
    Call, CallResponse, ErrorKind, EventSink, MAX_SERVER_REQUESTS, Offered, RespondToServer, Rpc,
    RpcError, ServerCall, ServerLink, ServerNotification, ServerRequestHandler, SinkFuture,
};
use tokio::runtime;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinSet;

use crate::calls::ProcessKey;
use crate::driver::OpenedResource;
use crate::leases::{Lease, LeaseId, LeaseMessage, Leases, Target, wait_until};
use crate::mirror::{Offer, ProcessMirror, WeakMirror};
use crate::network::{NetworkHandlers, too_many_server_requests};
use crate::notified::read_event;
use crate::process_state::ProcessState;
use crate::{ConnectionState, ExecServerError};

pub(crate) type CallResult = Result<CallResponse, RpcError>;

/// A session on a server in the same program. Dropping it ends the session.
#[derive(Debug)]
pub(crate) struct InProcess {
    server: Arc<dyn ServerLink>,
    state: watch::Sender<ConnectionState>,
    /// The mirrors of opened processes. Dropped ones are removed from time to time.
    mirrors: Mutex<HashMap<ProcessKey, WeakMirror>>,
    leases: Mutex<Leases>,
    answers: Arc<Answers>,
    /// Runs the calls that follow a response, because the response may arrive on a thread confined
    /// to a sandbox.
    runtime: runtime::Handle,
}

impl InProcess {
    /// Must be called within a runtime.
    pub(crate) fn new(server: Arc<dyn ServerLink>, network: NetworkHandlers) -> Arc<Self> {
        let (state, _) = watch::channel(ConnectionState::Connected);
        let (mirrors, leases) = (Mutex::default(), Mutex::default());
        let runtime = runtime::Handle::current();
        let (tasks, on_runtime) = (Mutex::default(), runtime.clone());
        let answers = Arc::new(Answers { network, tasks, runtime: on_runtime });
        server.handle_requests(Arc::clone(&answers) as Arc<dyn ServerRequestHandler>);
        Arc::new(Self { server, state, mirrors, leases, answers, runtime })
    }

    pub(crate) fn session_id(&self) -> &str {
        self.server.session_id()
    }

    pub(crate) fn state(&self) -> watch::Receiver<ConnectionState> {
        self.state.subscribe()
    }

    pub(crate) fn is_closed(&self) -> bool {
        matches!(*self.state.borrow(), ConnectionState::Closed)
    }

    /// Ends this side of the session: subscribers and leases get [`ExecServerError::Closed`], and
    /// the handlers of server requests are aborted. A session that was not closed ends after that,
    /// when the link is dropped, so subscribers do not see how the server kills its processes.
    pub(crate) fn hang_up(&self) {
        self.state.send_replace(ConnectionState::Closed);
        self.answers.lock_tasks().abort_all();
        self.lock_leases().fail_all(&ExecServerError::Closed);
        let mirrors: Vec<_> = self.lock_mirrors().drain().collect();
        for mirror in mirrors.iter().filter_map(|(_, mirror)| mirror.upgrade()) {
            mirror.fail(ExecServerError::Closed);
        }
    }

    pub(crate) fn call<R: Rpc>(
        self: &Arc<Self>,
        params: R::Params,
        opens: Option<OpenedResource>,
    ) -> oneshot::Receiver<CallResult> {
        let call = R::into_call(params);
        match opens {
            None => self.call_plainly(call),
            Some(OpenedResource::Process(process)) => self.open_process(call, &process),
            Some(OpenedResource::Lease(lease)) => self.open_lease(call, lease),
        }
    }

    fn call_plainly(self: &Arc<Self>, call: Call) -> oneshot::Receiver<CallResult> {
        let (sender, receiver) = oneshot::channel();
        // Weak: a pending call must not keep the session alive.
        let this = Arc::downgrade(self);
        let respond = move |returned: CallResult| {
            note_end(&this, &returned);
            let _ = sender.send(returned);
        };
        self.server.call(call, None, Box::new(respond));
        receiver
    }

    fn open_process(
        self: &Arc<Self>,
        call: Call,
        process: &ProcessState,
    ) -> oneshot::Receiver<CallResult> {
        let (sender, receiver) = oneshot::channel();
        let (key, mirror) = (process.key().clone(), process.mirror.clone());
        let sink = ProcessSink { mirror: mirror.clone(), is_observed: process.is_observed() };
        let (this, mirror) = (Arc::downgrade(self), mirror.downgrade());
        let respond = move |returned: CallResult| {
            note_end(&this, &returned);
            if returned.is_ok()
                && let Some(this) = Weak::upgrade(&this)
            {
                this.lock_mirrors().insert(key, mirror);
                this.drop_later();
            }
            let _ = sender.send(returned);
        };
        self.server.call(call, Some(Arc::new(sink)), Box::new(respond));
        receiver
    }

    fn open_lease(self: &Arc<Self>, call: Call, lease: Lease) -> oneshot::Receiver<CallResult> {
        let (sender, receiver) = oneshot::channel();
        let (id, sink) = (lease.id().clone(), LeaseSink(lease.target().clone()));
        self.lock_leases().track(lease);
        let this = Arc::downgrade(self);
        let respond = move |returned: CallResult| {
            note_end(&this, &returned);
            match Weak::upgrade(&this) {
                None => drop(sender.send(returned)),
                Some(this) => {
                    let refused = returned.is_err();
                    this.lock_leases().opened(&id, refused, || drop(sender.send(returned)));
                    this.drop_later();
                }
            }
        };
        self.server.call(call, Some(Arc::new(sink)), Box::new(respond));
        receiver
    }

    /// Sends pending messages and drops `self` on a thread of the runtime.
    fn drop_later(self: Arc<Self>) {
        let runtime = self.runtime.clone();
        runtime.spawn(async move { self.send_outbound() });
    }

    pub(crate) fn lease_changed(&self, id: &LeaseId) {
        self.lock_leases().collect_outbound(id);
        self.send_outbound();
    }

    fn send_outbound(&self) {
        loop {
            // Not under the lock: the response may arrive immediately and take it.
            let message = self.lock_leases().poll_outbound();
            match message {
                None => return,
                Some(LeaseMessage::GiveUp(call)) => self.server.call(*call, None, Box::new(drop)),
                // In-process servers apply backpressure directly and need no acknowledgements.
                Some(LeaseMessage::Acknowledge(_)) => {}
            }
        }
    }

    /// Takes over the mirror of a process, if this client has it and the process has no handle.
    pub(crate) fn take_mirror(&self, key: &ProcessKey) -> Option<ProcessMirror> {
        let mirrors = self.lock_mirrors();
        let mirror = mirrors.get(key)?.upgrade()?;
        mirror.regain_handle().then_some(mirror)
    }

    fn lock_mirrors(&self) -> MutexGuard<'_, HashMap<ProcessKey, WeakMirror>> {
        let mut mirrors = self.mirrors.lock().unwrap_or_else(PoisonError::into_inner);
        // Only when the map is full: a scan at each access would be slow with many mirrors.
        if mirrors.len() == mirrors.capacity() {
            mirrors.retain(|_, mirror| mirror.upgrade().is_some());
        }
        mirrors
    }

    fn lock_leases(&self) -> MutexGuard<'_, Leases> {
        self.leases.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Sets the state to `Failed` if the error says that the session is over: it was closed, or the
/// server is shutting down.
fn note_end(this: &Weak<InProcess>, returned: &CallResult) {
    if let Err(error) = returned
        && matches!(error.kind(), Some(ErrorKind::SessionEnded | ErrorKind::ShuttingDown))
        && let Some(this) = Weak::upgrade(this)
    {
        this.state.send_replace(ConnectionState::Failed(ExecServerError::Server(error.clone())));
        this.drop_later();
    }
}

impl Drop for InProcess {
    fn drop(&mut self) {
        self.hang_up();
    }
}

#[derive(Debug)]
struct ProcessSink {
    mirror: ProcessMirror,
    is_observed: bool,
}

impl EventSink for ProcessSink {
    fn offer(&self, notification: ServerNotification) -> Offered {
        let mirror = &self.mirror;
        if self.is_gone() {
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
        // A failed mirror treats every event as a duplicate, so the process still runs to its end.
        match mirror.offer(seq, event.clone()) {
            Offer::Full => Offered::Full(notification),
            Offer::Accepted | Offer::Duplicate => Offered::Accepted,
            // A plain `process/read` call has confirmed the missing events, so the server skipped
            // them.
            Offer::Hole => {
                match mirror.skip_to(seq, 0) {
                    Ok(()) => drop(mirror.offer(seq, event)),
                    Err(gap) => mirror.fail(gap),
                }
                Offered::Accepted
            }
        }
    }

    fn room(&self) -> SinkFuture<'_> {
        Box::pin(self.mirror.has_room())
    }

    fn gone(&self) -> SinkFuture<'_> {
        Box::pin(self.mirror.wait_until(|| self.is_gone()))
    }

    /// Fails the mirror, so that no subscriber waits forever. Has no effect on a process that has
    /// closed.
    fn end(&self) {
        self.mirror.fail(ExecServerError::Closed);
    }
}

impl ProcessSink {
    /// Whether no events are wanted: the start was abandoned, or an observed process has neither a
    /// handle nor a subscriber. A started process without a handle still needs a reader.
    fn is_gone(&self) -> bool {
        self.mirror.is_unwanted() || (self.is_observed && self.mirror.is_unobserved())
    }
}

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
        // A length of 0: no text was sent, and the server waits for room.
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

/// Handles the requests of the server. Its tasks end when the client hangs up.
#[derive(Debug)]
struct Answers {
    network: NetworkHandlers,
    tasks: Mutex<JoinSet<()>>,
    runtime: runtime::Handle,
}

impl ServerRequestHandler for Answers {
    fn request(&self, call: ServerCall, respond: RespondToServer) {
        let mut tasks = self.lock_tasks();
        while tasks.try_join_next().is_some() {}
        if tasks.len() >= MAX_SERVER_REQUESTS {
            drop(tasks);
            return respond(Err(too_many_server_requests()));
        }
        let answer = self.network.clone().answer(call);
        tasks.spawn_on(async move { respond(Ok(answer.await)) }, &self.runtime);
    }

    fn notify(&self, notification: ServerNotification) {
        if let ServerNotification::NetworkPolicyDecision(decision) = notification {
            self.network.notify(decision);
        }
    }
}

impl Answers {
    fn lock_tasks(&self) -> MutexGuard<'_, JoinSet<()>> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

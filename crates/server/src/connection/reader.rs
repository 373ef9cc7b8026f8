//! Decodes the messages of a client, and runs each request in its turn.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use exec_server_protocol::{
    Call, ClientNotification, ErrorKind, InitializeParams, InitializeResponse, MAX_MESSAGE_BYTES,
    Message, Method, Notification, PROTOCOL_VERSION, Request, RpcError, Scheduling, TerminateMode,
    UNKNOWN_REQUEST_ID, decode, error_response, rpc,
};
use exec_server_transport::{Incoming, MemoryShare, Received};
use tokio::runtime;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep_until};

use super::outbox::Outbox;
use super::request_rate::RequestRate;
use super::scheduler::{MAX_QUEUED_BYTES, REQUEST_OVERHEAD, RequestRefused, RequestScheduler};
use crate::dispatch::{Dispatcher, Reply, RequestTexts, check_role};
use crate::feed::{CATCH_UP_TIMEOUT, ConfirmedBy};
use crate::sessions::{Resume, Session, SessionSettings};

/// A connection is closed after this many idle checks in a row, so that even work that has just
/// ended delays the close.
const IDLE_LOOKS: u32 = 4;

pub(super) struct Reader {
    dispatcher: Dispatcher,
    outbox: Arc<Outbox>,
    phase: Phase,
    scheduler: RequestScheduler,
    texts: Arc<RequestTexts>,
    rate: RequestRate,
    /// The task that releases the feeds if the client makes no catch-up read.
    catch_up: Option<AbortHandle>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReadEnd {
    Over,
    /// No message arrived for the idle timeout, and nothing is in progress.
    Idle,
}

/// The progress of the handshake.
enum Phase {
    Fresh,
    /// `initialize` was answered; `initialized` has not arrived.
    Greeted(Arc<Session>),
    Ready(Arc<Session>),
}

impl Reader {
    pub(super) fn new(dispatcher: Dispatcher, outbox: Arc<Outbox>, memory: &MemoryShare) -> Self {
        let (config, now) = (&dispatcher.state().config, Instant::now());
        Self {
            scheduler: RequestScheduler::new(config.concurrent_requests),
            rate: RequestRate::new(config.max_requests_per_second, now),
            texts: Arc::new(RequestTexts::new(memory.hold())),
            dispatcher,
            outbox,
            phase: Phase::Fresh,
            catch_up: None,
        }
    }

    pub(super) fn into_session(self) -> Option<Arc<Session>> {
        match self.phase {
            Phase::Fresh => None,
            Phase::Greeted(session) | Phase::Ready(session) => Some(session),
        }
    }

    /// Runs until the connection has ended or was idle for `idle_timeout`; zero disables the
    /// timeout.
    pub(super) async fn run(&mut self, incoming: &mut Incoming, idle_timeout: Duration) -> ReadEnd {
        let look_interval = idle_timeout / IDLE_LOOKS;
        let (mut next_look, mut idle_looks) = (Instant::now() + look_interval, 0);
        let permits = self.scheduler.permits();
        let outbox = Arc::clone(&self.outbox);
        loop {
            self.run_queued();
            let queued = self.scheduler.has_queued();
            tokio::select! {
                // Messages first: a waiting message shows that the connection is not idle.
                biased;
                received = incoming.recv() => match received {
                    Some(Received::Message(text)) => {
                        (next_look, idle_looks) = (Instant::now() + look_interval, 0);
                        if let Some(socket) = self.dispatcher.connection().socket() {
                            socket.note_heard();
                        }
                        let was_fresh = self.is_fresh();
                        self.message(&text).await;
                        if was_fresh && !self.is_fresh() {
                            let largest = self.dispatcher.state().memory.largest();
                            incoming.limit_messages(largest.min(MAX_MESSAGE_BYTES));
                        }
                    }
                    Some(Received::Malformed(malformed)) => self.refuse(&malformed.to_string()),
                    None => return ReadEnd::Over,
                },
                () = permits.freed(), if queued => {}
                () = outbox.room(), if queued && !outbox.has_room() => {
                    // Queued requests have nowhere to send their responses, so they never begin.
                    if outbox.is_closed() {
                        return ReadEnd::Over;
                    }
                }
                () = self.dispatcher.tasks().reap() => {}
                () = sleep_until(next_look), if !idle_timeout.is_zero() => {
                    idle_looks = if self.is_idle() { idle_looks + 1 } else { 0 };
                    if idle_looks >= IDLE_LOOKS {
                        return ReadEnd::Idle;
                    }
                    next_look = Instant::now() + look_interval;
                }
            }
        }
    }

    fn is_idle(&self) -> bool {
        let is_working = match &self.phase {
            Phase::Fresh => false,
            Phase::Greeted(session) | Phase::Ready(session) => session.is_working(),
        };
        let is_answered = self.texts.is_empty() && self.dispatcher.tasks().len() == 0;
        is_answered
            && self.outbox.is_idle()
            && !is_working
            && !self.dispatcher.connection().is_watching()
    }

    /// Begins all requests that wait for a permit. Called once no more input can follow.
    pub(super) async fn begin_all(&mut self) {
        let (permits, outbox) = (self.scheduler.permits(), Arc::clone(&self.outbox));
        loop {
            self.run_queued();
            if !self.scheduler.has_queued() || outbox.is_closed() {
                return;
            }
            tokio::select! {
                () = permits.freed() => {}
                () = outbox.room(), if !outbox.has_room() => {}
            }
        }
    }

    pub(super) fn end_processes(&self) {
        if let Phase::Greeted(session) | Phase::Ready(session) = &self.phase {
            for process in session.processes() {
                process.terminate(TerminateMode::Force);
            }
        }
    }

    /// Flushes all responses and last events.
    pub(super) async fn finish(&mut self) {
        if let Some(catch_up) = self.catch_up.take() {
            catch_up.abort();
            self.release_held_feeds().await;
        }
        if let Phase::Greeted(session) | Phase::Ready(session) = &self.phase {
            for process in session.processes() {
                process.log().wait_closed().await;
            }
        }
        self.dispatcher.tasks().finish().await;
        self.outbox.idle().await;
    }

    async fn message(&mut self, text: &[u8]) {
        match decode(text) {
            Ok(Message::Request(request)) => self.request(request, text.len()).await,
            Ok(Message::Notification(notification)) => self.notification(&notification),
            Ok(Message::Response { id, result, error }) => {
                self.dispatcher.connection().requests().handle_response(&id, result, error);
            }
            Err(error) => self.refuse(&error.to_string()),
        }
    }

    /// Sends an error for a message without a usable id.
    fn refuse(&self, why: &str) {
        self.refuse_with(&RpcError::invalid_request(why));
    }

    fn refuse_with(&self, error: &RpcError) {
        self.outbox.push(error_response(&UNKNOWN_REQUEST_ID, error));
    }

    async fn request(&mut self, request: Request<'_>, bytes: usize) {
        let bytes = bytes + REQUEST_OVERHEAD;
        let text = self.texts.count(bytes);
        let method = Method::from_name(&request.method);
        let record = self.dispatcher.record(method, request.trace.as_ref());
        let reply = Reply::over_socket(&self.outbox, request.id, text, record);
        let connection = self.dispatcher.connection().id().0;
        tracing::trace!(connection, method = &*request.method, "request");
        let decoded = Call::decode(&request.method, request.params).and_then(|call| match call {
            // The dispatcher checks the role for all other calls.
            Call::Initialize(_) => {
                check_role(self.dispatcher.connection().principal(), &call).map(|()| call)
            }
            call => Ok(call),
        });
        let is_control =
            decoded.as_ref().is_ok_and(|call| call.scheduling() == Scheduling::Control);
        if !self.rate.admit(Instant::now()) && !is_control {
            return reply.fail(self.too_many_requests());
        }
        let call = match decoded {
            Ok(Call::Initialize(params)) => {
                let result = self.initialize(params).await;
                let greeted = result.is_ok();
                reply.send::<rpc::Initialize>(result);
                if greeted {
                    self.release_feeds().await;
                }
                return;
            }
            Err(error) if request.method == Method::Initialize.name() => {
                return reply.fail(error);
            }
            // An incomplete handshake is reported before any other error of the call.
            decoded => match self.session().and(decoded) {
                Ok(call) => call,
                Err(error) => return reply.fail(error),
            },
        };
        match self.scheduler.submit(call, reply, bytes) {
            Ok(runnable) => {
                for (call, reply) in runnable {
                    self.begin(call, reply);
                }
            }
            Err(RequestRefused(reply)) => {
                let message = format!(
                    "the requests queued on this connection would exceed {MAX_QUEUED_BYTES} bytes; \
                     wait for responses"
                );
                reply.fail(RpcError::internal(message).with_kind(ErrorKind::Overloaded));
            }
        }
    }

    fn too_many_requests(&self) -> RpcError {
        let limit = self.dispatcher.state().config.max_requests_per_second;
        let message = format!(
            "more than {limit} requests per second on this connection (max_requests_per_second)"
        );
        RpcError::invalid_request(message).with_kind(ErrorKind::TooManyRequests)
    }

    fn run_queued(&mut self) {
        while self.outbox.has_room()
            && let Some((call, reply)) = self.scheduler.next()
        {
            self.begin(call, reply);
        }
    }

    fn begin(&mut self, call: Call, reply: Reply) {
        match self.session() {
            Ok(session) => self.dispatcher.call(session, call, reply),
            Err(error) => reply.fail(error),
        }
    }

    fn notification(&mut self, notification: &Notification<'_>) {
        match ClientNotification::decode(notification) {
            Ok(ClientNotification::Initialized(_)) => self.initialized(),
            Ok(ClientNotification::HttpAck(ack)) => match self.session() {
                Ok(_) => self
                    .dispatcher
                    .connection()
                    .resources
                    .bodies
                    .acknowledge(&ack.request_id, ack.seq),
                Err(error) => self.refuse_with(&error),
            },
            Ok(ClientNotification::ProcessAck(ack)) => match self.session() {
                Ok(session) => {
                    session.acknowledge(
                        self.dispatcher.connection().id(),
                        &ack.process_id,
                        ack.seq,
                    );
                }
                Err(error) => self.refuse_with(&error),
            },
            Err(error) => self.refuse_with(&error),
        }
    }

    fn initialized(&mut self) {
        match std::mem::replace(&mut self.phase, Phase::Fresh) {
            Phase::Fresh => self.refuse("initialized was sent before initialize succeeded"),
            // A repeated `initialized` is harmless.
            Phase::Greeted(session) | Phase::Ready(session) => {
                self.phase = Phase::Ready(session);
                self.dispatcher.connection().requests().set_ready();
            }
        }
    }

    fn is_fresh(&self) -> bool {
        matches!(self.phase, Phase::Fresh)
    }

    fn session(&self) -> Result<&Arc<Session>, RpcError> {
        match &self.phase {
            Phase::Ready(session) => Ok(session),
            Phase::Fresh => Err(RpcError::invalid_request(
                "initialize has not succeeded on this connection; call it first",
            )),
            Phase::Greeted(_) => Err(RpcError::invalid_request(
                "the notification initialized has not been sent; send it first",
            )),
        }
    }

    /// Completes before the next message is read, so that pipelined requests find a session.
    async fn initialize(
        &mut self,
        params: InitializeParams,
    ) -> Result<InitializeResponse, RpcError> {
        if !self.is_fresh() {
            return Err(RpcError::invalid_request(
                "initialize was already called on this connection",
            ));
        }
        let principal = self.dispatcher.connection().principal();
        if principal.has_expired(SystemTime::now()) {
            let message = "the token of this connection has expired; connect with a new one";
            return Err(RpcError::invalid_request(message).with_kind(ErrorKind::TokenExpired));
        }
        let confirmed_by = match params.acks {
            Some(true) => ConfirmedBy::Ack,
            _ => ConfirmedBy::Receipt,
        };
        let state = self.dispatcher.state();
        let (sessions, connection) = (&state.sessions, self.dispatcher.connection());
        let session = match params.resume_session_id {
            Some(id) => {
                let asked = params.detached_ttl_ms.is_some();
                let ttl = asked.then(|| state.granted_ttl(params.detached_ttl_ms));
                let positions = match confirmed_by {
                    ConfirmedBy::Ack => params.positions.clone().unwrap_or_default(),
                    ConfirmedBy::Receipt => BTreeMap::new(),
                };
                let resume = Resume { confirmed_by, detached_ttl: ttl, positions };
                sessions.resume(&id, &resume, connection).await?
            }
            None => {
                let detached_ttl = state.granted_ttl(params.detached_ttl_ms);
                let settings = SessionSettings { confirmed_by, detached_ttl };
                let (sandboxes, now) = (state.sandboxes.under(principal), Instant::now());
                sessions.open(params.client_name, settings, sandboxes, connection, now)?
            }
        };
        let granted = session.settings().detached_ttl.as_millis();
        let granted_ms = u64::try_from(granted).unwrap_or(u64::MAX);
        let response = InitializeResponse {
            session_id: session.id().to_owned(),
            protocol_version: PROTOCOL_VERSION.to_owned(),
            detached_ttl_ms: params.detached_ttl_ms.map(|_| granted_ms),
            acks: params.acks,
            positions: match confirmed_by {
                ConfirmedBy::Ack => params.positions.map(|known| session.last_events(known.keys())),
                ConfirmedBy::Receipt => None,
            },
        };
        self.phase = Phase::Greeted(session);
        Ok(response)
    }

    /// Releases the feeds of a resumed session: at once for a client that acks, since it ignores
    /// events that it already has; for others after their catch-up read, or a timeout.
    async fn release_feeds(&mut self) {
        let Phase::Greeted(session) = &self.phase else { return };
        match session.settings().confirmed_by {
            ConfirmedBy::Ack => self.release_held_feeds().await,
            ConfirmedBy::Receipt => {
                let connection = Arc::clone(self.dispatcher.connection());
                self.catch_up = Some(self.dispatcher.tasks().spawn_on(
                    &runtime::Handle::current(),
                    async move {
                        tokio::time::sleep(CATCH_UP_TIMEOUT).await;
                        if let Some(socket) = connection.socket() {
                            socket.release_feeds().await;
                        }
                    },
                ));
            }
        }
    }

    async fn release_held_feeds(&self) {
        if let Some(socket) = self.dispatcher.connection().socket() {
            socket.release_feeds().await;
        }
    }
}

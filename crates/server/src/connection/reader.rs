//! Decodes what a client sends, and runs it when its turn comes.

use std::sync::Arc;

use exec_server_protocol::{
    Call, ClientNotification, InitializeParams, InitializeResponse, MAX_MESSAGE_BYTES, Message,
    Method, Notification, PROTOCOL_VERSION, Request, RpcError, TerminateMode, UNKNOWN_REQUEST_ID,
    decode, error_response, rpc,
};
use exec_server_transport::{Incoming, Received};
use tokio::task::{AbortHandle, JoinSet};

use super::feed::Confirms;
use super::handle::ConnectionHandle;
use super::lanes::{Lanes, REQUEST_OVERHEAD, Refused};
use super::responder::{RequestTexts, Responder};
use crate::server::Shared;
use crate::sessions::{Holder, Resume, Session, SessionSettings};

/// Requests of one connection that may wait at once; one more is refused.
const MAX_WAITING: usize = 4096;

pub(super) struct Reader {
    pub(super) shared: Arc<Shared>,
    pub(super) connection: Arc<ConnectionHandle>,
    phase: Phase,
    lanes: Lanes,
    texts: Arc<RequestTexts>,
    /// Requests that are being worked on. They end with the connection.
    pub(super) tasks: JoinSet<()>,
    /// Waits for a client to ask for what it missed.
    patience: Option<AbortHandle>,
}

/// How far the handshake has come.
enum Phase {
    Fresh,
    /// `initialize` was answered, `initialized` has not come.
    Greeted(Arc<Session>),
    Ready(Arc<Session>),
}

impl Reader {
    pub(super) fn new(shared: Arc<Shared>, connection: Arc<ConnectionHandle>) -> Self {
        let lanes = Lanes::new(shared.config.concurrent_requests);
        let texts = Arc::new(RequestTexts::new(connection.memory().hold()));
        let (phase, tasks) = (Phase::Fresh, JoinSet::new());
        Self { shared, connection, phase, lanes, texts, tasks, patience: None }
    }

    pub(super) fn into_session(self) -> Option<Arc<Session>> {
        match self.phase {
            Phase::Fresh => None,
            Phase::Greeted(session) | Phase::Ready(session) => Some(session),
        }
    }

    /// Runs until the connection is over.
    pub(super) async fn run(&mut self, incoming: &mut Incoming) {
        let places = self.lanes.places();
        let outbox = Arc::clone(self.connection.outbox());
        loop {
            self.run_queued();
            let queued = self.lanes.has_queued();
            tokio::select! {
                received = incoming.recv() => match received {
                    Some(Received::Message(text)) => {
                        let was_fresh = self.is_fresh();
                        self.message(&text).await;
                        if was_fresh && !self.is_fresh() {
                            let largest = self.shared.memory.largest();
                            incoming.limit_messages(largest.min(MAX_MESSAGE_BYTES));
                        }
                    }
                    Some(Received::Malformed(malformed)) => self.refuse(&malformed.to_string()),
                    None => return,
                },
                () = places.freed(), if queued => {}
                () = outbox.room(), if queued && !outbox.has_room() => {
                    // What is queued has nowhere to send its response, so it never begins.
                    if outbox.is_closed() {
                        return;
                    }
                }
                Some(_) = self.tasks.join_next(), if !self.tasks.is_empty() => {}
            }
        }
    }

    /// Nothing more will come: begins what was asked for and waits for a place.
    pub(super) async fn begin_all(&mut self) {
        let (places, outbox) = (self.lanes.places(), Arc::clone(self.connection.outbox()));
        loop {
            self.run_queued();
            if !self.lanes.has_queued() || outbox.is_closed() {
                return;
            }
            tokio::select! {
                () = places.freed() => {}
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

    /// Lets every answer and last event go out.
    pub(super) async fn finish(&mut self) {
        if let Some(patience) = self.patience.take() {
            patience.abort();
            self.connection.release_feeds().await;
        }
        if let Phase::Greeted(session) | Phase::Ready(session) = &self.phase {
            for process in session.processes() {
                process.log().wait_closed().await;
            }
        }
        while self.tasks.join_next().await.is_some() {}
        self.connection.outbox().idle().await;
    }

    async fn message(&mut self, text: &[u8]) {
        match decode(text) {
            Ok(Message::Request(request)) => self.request(request, text.len()).await,
            Ok(Message::Notification(notification)) => self.notification(&notification),
            Ok(Message::Response { id, .. }) => {
                tracing::debug!(%id, "ignoring an answer to a question that was never asked");
            }
            Err(error) => self.refuse(&error.to_string()),
        }
    }

    /// Answers a message that has no id of its own.
    fn refuse(&self, why: &str) {
        self.refuse_with(&RpcError::invalid_request(why));
    }

    fn refuse_with(&self, error: &RpcError) {
        self.connection.outbox().push(error_response(&UNKNOWN_REQUEST_ID, error));
    }

    async fn request(&mut self, request: Request<'_>, bytes: usize) {
        let bytes = bytes + REQUEST_OVERHEAD;
        let text = self.texts.count(bytes);
        let responder = Responder::new(self.connection.outbox(), request.id, text);
        tracing::trace!(method = &*request.method, trace = ?request.trace, "request");
        let decoded = Call::decode(&request.method, request.params);
        let call = match decoded {
            Ok(Call::Initialize(params)) => {
                let result = self.initialize(params).await;
                let greeted = result.is_ok();
                responder.answer::<rpc::Initialize>(result);
                if greeted {
                    self.release_feeds().await;
                }
                return;
            }
            Err(error) if request.method == Method::Initialize.name() => {
                return responder.fail(&error);
            }
            // Whatever is wrong with it, what is missing first is said first.
            decoded => match self.session().and(decoded) {
                Ok(call) => call,
                Err(error) => return responder.fail(&error),
            },
        };
        match self.lanes.admit(call, responder, bytes) {
            Ok(runnable) => {
                for (call, responder) in runnable {
                    self.begin(call, responder);
                }
            }
            Err(Refused(responder)) => {
                let error = RpcError::internal("too many requests are queued on this connection");
                responder.fail(&error.with_kind("overloaded"));
            }
        }
    }

    fn run_queued(&mut self) {
        while self.connection.outbox().has_room()
            && let Some((call, responder)) = self.lanes.next()
        {
            self.begin(call, responder);
        }
    }

    /// Runs a call of an established session.
    fn begin(&mut self, call: Call, responder: Responder) {
        let session = match self.session() {
            Ok(session) => Arc::clone(session),
            Err(error) => return responder.fail(&error),
        };
        match session.check_attached(self.connection.id()) {
            Ok(()) => self.handle(&session, call, responder),
            Err(error) => responder.fail(&error),
        }
    }

    /// Works on a request beside the others, unless too many already wait.
    pub(super) fn work(&mut self, responder: Responder, work: impl Work) {
        if self.tasks.len() >= MAX_WAITING {
            let error = RpcError::internal("too many requests wait on this connection");
            return responder.fail(&error.with_kind("overloaded"));
        }
        self.tasks.spawn(work(responder));
    }

    fn notification(&mut self, notification: &Notification<'_>) {
        match ClientNotification::decode(notification) {
            Ok(ClientNotification::Initialized(_)) => self.initialized(),
            Ok(ClientNotification::HttpAck(ack)) => match self.session() {
                Ok(_) => self.connection.bodies.acknowledge(&ack.request_id, ack.seq),
                Err(error) => self.refuse_with(&error),
            },
            Ok(ClientNotification::ProcessAck(ack)) => match self.session() {
                Ok(session) => session.acknowledge(self.connection.id(), &ack.process_id, ack.seq),
                Err(error) => self.refuse_with(&error),
            },
            Err(error) => self.refuse_with(&error),
        }
    }

    fn initialized(&mut self) {
        match std::mem::replace(&mut self.phase, Phase::Fresh) {
            Phase::Fresh => self.refuse("initialized was sent before initialize"),
            // Sent twice: harmless, and old clients may.
            Phase::Greeted(session) | Phase::Ready(session) => self.phase = Phase::Ready(session),
        }
    }

    fn is_fresh(&self) -> bool {
        matches!(self.phase, Phase::Fresh)
    }

    fn session(&self) -> Result<&Arc<Session>, RpcError> {
        match &self.phase {
            Phase::Ready(session) => Ok(session),
            Phase::Fresh => Err(RpcError::invalid_request("initialize has not been called")),
            Phase::Greeted(_) => {
                Err(RpcError::invalid_request("the notification initialized has not been sent"))
            }
        }
    }

    /// Answered before the next message is read, so that what is pipelined behind it finds a session.
    async fn initialize(
        &mut self,
        params: InitializeParams,
    ) -> Result<InitializeResponse, RpcError> {
        if !self.is_fresh() {
            return Err(RpcError::invalid_request(
                "initialize was called before on this connection",
            ));
        }
        let confirms = match params.acks {
            Some(true) => Confirms::ByAck,
            _ => Confirms::ByReceipt,
        };
        let sessions = &self.shared.sessions;
        let session = match params.resume_session_id {
            Some(id) => {
                let asked = params.detached_ttl_ms.is_some();
                let ttl = asked.then(|| self.shared.granted_ttl(params.detached_ttl_ms));
                let resume = Resume { confirms, detached_ttl: ttl };
                sessions.resume(&id, resume, &self.connection).await?
            }
            None => {
                let detached_ttl = self.shared.granted_ttl(params.detached_ttl_ms);
                let settings = SessionSettings { confirms, detached_ttl };
                let holder = Holder::Connection(Arc::clone(&self.connection));
                sessions.open(params.client_name, settings, holder)?
            }
        };
        let granted = session.settings().detached_ttl.as_millis();
        let granted_ms = u64::try_from(granted).unwrap_or(u64::MAX);
        let response = InitializeResponse {
            session_id: session.id().to_owned(),
            protocol_version: PROTOCOL_VERSION.to_owned(),
            detached_ttl_ms: params.detached_ttl_ms.map(|_| granted_ms),
            acks: params.acks,
        };
        self.phase = Phase::Greeted(session);
        Ok(response)
    }

    /// Lets the processes of a resumed session speak: at once to a client that acks and ignores what it
    /// has; to others when they have asked for what they missed, or have had the time to.
    async fn release_feeds(&mut self) {
        let Phase::Greeted(session) = &self.phase else { return };
        let connection = Arc::clone(&self.connection);
        match session.settings().confirms {
            Confirms::ByAck => connection.release_feeds().await,
            Confirms::ByReceipt => {
                self.patience = Some(self.tasks.spawn(async move {
                    tokio::time::sleep(super::feed::CATCH_UP_PATIENCE).await;
                    connection.release_feeds().await;
                }));
            }
        }
    }
}

/// Work on a request that ends in its answer.
pub(super) trait Work: FnOnce(Responder) -> Self::Future {
    type Future: Future<Output = ()> + Send + 'static;
}

impl<F, R> Work for F
where
    F: FnOnce(Responder) -> R,
    R: Future<Output = ()> + Send + 'static,
{
    type Future = R;
}

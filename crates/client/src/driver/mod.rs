//! The task behind a client. It owns the connection, carries out the decisions of [`Recovery`], and
//! transfers calls, responses and events. Callers reach it through a bounded queue, which it drains
//! only while calls are admitted.

mod endings;
mod handshake;
mod server_requests;
mod waiting;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use exec_server_protocol::{
    Message, Notification, NotificationTopic, ServerNotification, UNKNOWN_REQUEST_ID,
    decode_unchecked, notification,
};
use exec_server_transport::{CloseCode, Connection, Incoming, Outgoing, Prober, Received};
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::time::Instant;

use crate::calls::{Answer, Call, PendingCalls, ReplyTo, read_error};
use crate::connector::{Connector, Dialing};
use crate::leases::{Lease, LeaseMessage, LeaseWakeups, Leases};
use crate::network::NetworkHandlers;
use crate::notified::{RoutedNotification, read_key, read_lease_id};
use crate::process_state::ProcessState;
use crate::processes::{OutboundMessage, Processes};
use crate::recovery::{Action, Generation, Recovery};
use crate::{
    ConnectError, ConnectionState, ExecServerClientConnectOptions, ExecServerError, Violation,
};
use server_requests::{Answered, ServerRequests};

/// Bytes that may be buffered for the socket before further calls wait.
const MAX_BUFFERED: usize = 1 << 20;
/// Maximum number of calls that may be in the queue of a server that does not report how far it has
/// read. Such a server may close a connection with more than 128 queued calls.
const MAX_QUEUED: i64 = 100;
/// How long to keep reading from a server that no longer accepts data.
const LAST_WORDS: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) struct Command {
    pub(crate) call: Call,
    pub(crate) opens: Option<OpenedResource>,
}

/// The resource that a call opens. It is registered before the call is sent, so that its first
/// notification has a recipient.
#[derive(Debug)]
pub(crate) enum OpenedResource {
    Process(ProcessState),
    Lease(Lease),
}

/// State shared by handles and driver.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) state: watch::Sender<ConnectionState>,
    /// Notified when the client is closed, when its last handle is dropped, or when the caller of
    /// `connect` is gone.
    pub(crate) hang_up: Notify,
    /// Notified when a mirror that refused an event has room again. Also when a mirror fails, or
    /// when its process will never have a handle.
    pub(crate) room: Arc<Notify>,
    pub(crate) lease_wakeups: LeaseWakeups,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct GrantedSession {
    pub(crate) session_id: String,
    pub(crate) detached_ttl: Option<Duration>,
}

pub(crate) struct Driver {
    pub(crate) shared: Arc<Shared>,
    connector: Box<dyn Connector>,
    options: ExecServerClientConnectOptions,
    commands: mpsc::Receiver<Command>,
    /// Gives `connect` the granted session, or the reason why there is none.
    opened: Option<oneshot::Sender<Result<GrantedSession, ExecServerError>>>,
    recovery: Recovery,
    dialing: Option<(Generation, Dialing)>,
    link: Option<Link>,
    session_id: Option<String>,
    detached_ttl: Option<Duration>,
    calls: PendingCalls,
    processes: Processes,
    leases: Leases,
    network: NetworkHandlers,
    requests: ServerRequests,
    last_failure: Option<ExecServerError>,
    /// Whether all waiting callers have received their error.
    settled: bool,
}

struct Link {
    generation: Generation,
    incoming: Incoming,
    outgoing: Outgoing,
    prober: Prober,
    /// Whether the server has answered `initialize`.
    is_initialized: bool,
    /// The peer no longer accepts data. Data that it has sent is still read, until the connection
    /// ends or this deadline passes.
    deaf_until: Option<Instant>,
    /// Processes whose missed events the server sends unasked, each with the sequence number of the
    /// last event that the server has.
    known_events: BTreeMap<String, u64>,
    /// The number of catch-up calls without a response.
    catching_up: usize,
}

impl Link {
    fn new(generation: Generation, connection: Connection) -> Self {
        let Connection { incoming, outgoing, prober, .. } = connection;
        Self {
            generation,
            incoming,
            outgoing,
            prober,
            is_initialized: false,
            deaf_until: None,
            known_events: BTreeMap::new(),
            catching_up: 0,
        }
    }
}

enum Event {
    Command(Command),
    Dialled(Generation, Box<Result<Connection, ConnectError>>),
    Received(Received),
    /// The connection ended.
    Ended,
    Written(std::io::Result<()>),
    /// A handler task has produced the response to a server request.
    Answered(Answered),
    Room,
    LeaseWoken,
    Timeout,
    HangUp,
}

impl Driver {
    pub(crate) fn new(
        shared: Arc<Shared>,
        connector: Box<dyn Connector>,
        options: ExecServerClientConnectOptions,
        commands: mpsc::Receiver<Command>,
        opened: oneshot::Sender<Result<GrantedSession, ExecServerError>>,
    ) -> Self {
        let first_attempt = options.initialize_timeout;
        let recovery =
            Recovery::new(options.recovery, first_attempt, Instant::now(), rand::random());
        Self {
            shared,
            connector,
            session_id: options.resume_session_id.clone(),
            network: NetworkHandlers::of(&options),
            options,
            commands,
            opened: Some(opened),
            recovery,
            dialing: None,
            link: None,
            detached_ttl: None,
            calls: PendingCalls::default(),
            processes: Processes::default(),
            leases: Leases::default(),
            requests: ServerRequests::default(),
            last_failure: None,
            settled: false,
        }
    }

    pub(crate) async fn run(mut self) {
        loop {
            while let Some(action) = self.recovery.poll_action() {
                if let Action::GiveUp(over) = action {
                    let error = self.final_error(over).await;
                    return self.end(&error, ConnectionState::Failed(error.clone())).await;
                }
                self.perform(action);
            }
            self.send_held();
            self.send_outbound();
            match self.next_event().await {
                Event::HangUp => {
                    self.end_unclaimed_starts();
                    if let Some(link) = &mut self.link {
                        link.outgoing.close(CloseCode::Normal, "").await;
                    }
                    return self.end(&ExecServerError::Closed, ConnectionState::Closed).await;
                }
                event => self.handle(event),
            }
        }
    }

    async fn next_event(&mut self) -> Event {
        let accepts_calls = self.recovery.is_connected()
            && !self.calls.has_held()
            && self.server_has_room()
            && self.link.as_ref().is_some_and(|link| link.outgoing.buffered() < MAX_BUFFERED);
        let deaf_until = self.link.as_ref().and_then(|link| link.deaf_until);
        let timeout = [self.recovery.poll_timeout(), self.processes.poll_timeout(), deaf_until];
        let timeout = timeout.into_iter().flatten().min();
        let (incoming, outgoing) = match &mut self.link {
            Some(Link { incoming, deaf_until: Some(_), .. }) => (Some(incoming), None),
            Some(Link { incoming, outgoing, .. }) => (Some(incoming), Some(outgoing)),
            None => (None, None),
        };
        tokio::select! {
            () = self.shared.hang_up.notified() => Event::HangUp,
            () = waiting::nobody_waits(&mut self.opened) => Event::HangUp,
            received = waiting::receive(incoming) => received.map_or(Event::Ended, Event::Received),
            written = waiting::write(outgoing) => Event::Written(written),
            Some(command) = self.commands.recv(), if accepts_calls => Event::Command(command),
            (generation, dialled) = waiting::dialled(&mut self.dialing) => Event::Dialled(generation, Box::new(dialled)),
            answered = self.requests.answered() => Event::Answered(answered),
            () = self.shared.room.notified() => Event::Room,
            () = self.shared.lease_wakeups.woken() => Event::LeaseWoken,
            () = waiting::sleep_until(timeout) => Event::Timeout,
        }
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Command(command) => self.start_call(command),
            Event::Dialled(generation, dialled) => self.dialled(generation, *dialled),
            Event::Received(Received::Message(message)) => self.receive(&message),
            Event::Received(Received::Malformed(malformed)) => {
                self.break_off(Violation::from(malformed).into());
            }
            Event::Ended => self.connection_lost(),
            Event::Written(Ok(())) => {}
            Event::Answered(answered) => self.answer(answered),
            Event::Room => self.processes.collect_outbound(),
            Event::LeaseWoken => {
                for id in self.shared.lease_wakeups.take_woken() {
                    self.leases.collect_outbound(&id);
                }
            }
            Event::Written(Err(error)) => {
                let session = self.session_id.as_deref();
                tracing::debug!(session, %error, "cannot write to the server");
                if let Some(link) = &mut self.link {
                    link.deaf_until = Some(Instant::now() + LAST_WORDS);
                }
            }
            Event::Timeout => {
                let now = Instant::now();
                if self
                    .link
                    .as_ref()
                    .is_some_and(|link| link.deaf_until.is_some_and(|at| now >= at))
                {
                    self.connection_lost();
                }
                self.recovery.handle_timeout(now);
                self.processes.handle_timeout(now);
            }
            Event::HangUp => unreachable!("`run` handles this event"),
        }
    }

    fn perform(&mut self, action: Action) {
        match action {
            Action::Dial(generation) => {
                self.dialing = Some((generation, self.connector.dial()));
                self.announce();
            }
            Action::HangUp(generation) => {
                let after = match self.opened {
                    Some(_) => self.options.initialize_timeout,
                    None => self.options.recovery.attempt,
                };
                let what = "connecting to the server, including the response to initialize,";
                self.last_failure = Some(ExecServerError::TimedOut { what, after });
                self.drop_connection(generation);
                self.announce();
            }
            Action::CatchUp(generation) => self.catch_up(generation),
            Action::Admit(_) => self.admit(),
            Action::GiveUp(_) => unreachable!("`run` handles this action"),
        }
    }

    fn start_call(&mut self, Command { call, opens }: Command) {
        if call.reply_to.is_gone() {
            return;
        }
        match opens {
            None => {}
            Some(OpenedResource::Lease(lease)) => self.leases.track(lease),
            Some(OpenedResource::Process(process)) => {
                if let Err(error) = self.processes.track(process) {
                    return call.reply_to.tell(Err(error));
                }
            }
        }
        self.send(call);
    }

    fn receive(&mut self, message: &Bytes) {
        match decode_unchecked(message) {
            Ok(Message::Response { id, result, error }) => match self.calls.answered(&id) {
                Some(call) => {
                    let answer = match (result, error) {
                        (_, Some(error)) => Err(ExecServerError::Server(read_error(error))),
                        (Some(result), None) => Ok(message.slice_ref(result.get().as_bytes())),
                        (None, None) => Ok(Bytes::from_static(b"null")),
                    };
                    self.answered(call, answer);
                }
                None if id == UNKNOWN_REQUEST_ID => {
                    let (session, error) = (self.session_id.as_deref(), error.map(read_error));
                    tracing::warn!(
                        session,
                        ?error,
                        "the server could not read a message from this client"
                    );
                }
                None => {
                    let session = self.session_id.as_deref();
                    tracing::debug!(session, %id, "ignoring a response to an unknown request");
                }
            },
            Ok(Message::Notification(notification)) => {
                if let Err(violation) = self.notified(&notification) {
                    self.break_off(violation.into());
                }
            }
            Ok(Message::Request(request)) => self.requested(request),
            Err(source) => self.break_off(Violation::message(message, source).into()),
        }
    }

    /// An unreadable notification of a process or lease fails only that process or lease; any other
    /// is ignored. Returns an error if even the id of the process or lease is unreadable: then
    /// nothing else from the server can be relied on.
    fn notified(&mut self, notification: &Notification<'_>) -> Result<(), Violation> {
        match ServerNotification::decode(notification) {
            Ok(Some(decoded)) => match RoutedNotification::from(decoded) {
                RoutedNotification::Process(event) => {
                    self.processes.happened(event, Instant::now());
                }
                RoutedNotification::Lease { id, notification: decoded } => {
                    let text_len = notification.params.map_or(0, |params| params.get().len());
                    self.leases.notified(&id, decoded, text_len);
                }
                RoutedNotification::Network(decision) => self.network.notify(decision),
                RoutedNotification::Legacy => {}
            },
            Ok(None) => {
                let (session, method) = (self.session_id.as_deref(), &*notification.method);
                tracing::debug!(session, method, "ignoring an unknown notification");
            }
            Err(source) => self.unreadable(notification, source)?,
        }
        Ok(())
    }

    fn unreadable(
        &mut self,
        notification: &Notification<'_>,
        source: serde_json::Error,
    ) -> Result<(), Violation> {
        let method = notification.method.clone().into_owned();
        let violation = Violation::Notification { method, source };
        match ServerNotification::topic(&notification.method) {
            Some(NotificationTopic::Process) => match read_key(notification) {
                Some(key) => self.processes.fail(&key, violation),
                None => return Err(violation),
            },
            Some(NotificationTopic::Lease) => match read_lease_id(notification) {
                Some(id) => self.leases.fail(&id, violation),
                None => return Err(violation),
            },
            Some(NotificationTopic::Network | NotificationTopic::Legacy) | None => {
                let session = self.session_id.as_deref();
                tracing::debug!(session, %violation, "ignoring an unreadable notification");
            }
        }
        Ok(())
    }

    fn answered(&mut self, call: Call, answer: Answer) {
        match call.reply_to {
            ReplyTo::Handshake(generation) => self.handshake_answered(generation, answer),
            ReplyTo::CatchUp(question) => self.caught_up(&question, answer),
            ReplyTo::Pull(question) => self.processes.pulled(&question, answer, Instant::now()),
            ReplyTo::Opening(key, sender) => self.processes.opened(&key, sender, answer),
            ReplyTo::Leasing(id, sender) => {
                let refused = answer.is_err();
                self.leases.opened(&id, refused, || drop(sender.send(answer)));
            }
            reply_to @ (ReplyTo::Caller(_) | ReplyTo::Nobody) => reply_to.tell(answer),
        }
    }

    /// Sends the pending messages of processes and leases, such as confirmations, reads of events
    /// that a mirror lacks, and cancellations.
    fn send_outbound(&mut self) {
        if !self.recovery.is_connected() {
            return;
        }
        while let Some(message) = self.processes.poll_outbound() {
            match message {
                OutboundMessage::Call(call) => self.send(call),
                OutboundMessage::Notify(text) => self.push(&text),
            }
        }
        while let Some(message) = self.leases.poll_outbound() {
            match message {
                LeaseMessage::GiveUp(call) => self.send(Call::internal(&call, ReplyTo::Nobody)),
                LeaseMessage::Acknowledge(ack) => self.push(&notification(&ack)),
            }
        }
    }

    /// Whether another call may be sent. Some deployed environments behind a relay have a queue
    /// that must not overflow; every other peer applies backpressure. A response shows that all
    /// earlier calls have left the queue. Until a response arrives, a hundred slow calls hold back
    /// all others.
    fn server_has_room(&self) -> bool {
        let holds_back = self.link.as_ref().is_some_and(|link| link.prober.can_ask());
        holds_back || self.calls.queued_at_most() < MAX_QUEUED
    }

    /// Terminates started processes that have no handle yet: the client ends, so they will never
    /// have a handle.
    fn end_unclaimed_starts(&mut self) {
        let starts: Vec<_> = self.calls.starts_in_flight().cloned().collect();
        for key in starts {
            self.processes.abandon(&key, &ExecServerError::Closed);
        }
        self.processes.collect_outbound();
        self.send_outbound();
    }

    fn send(&mut self, call: Call) {
        self.calls.hold(call);
        self.send_held();
    }

    fn send_held(&mut self) {
        while self.server_has_room()
            && let Some(call) = self.calls.next_held()
        {
            let text = self.calls.send(call);
            self.push(&text);
        }
    }

    fn push(&mut self, text: &[u8]) {
        if let Some(link) = &mut self.link {
            link.outgoing.push(text);
        }
    }

    fn announce(&self) {
        let state = match self.recovery.recovering() {
            Some((since, failed_attempts)) => {
                ConnectionState::Recovering { since: since.into_std(), failed_attempts }
            }
            None if self.recovery.is_connected() => ConnectionState::Connected,
            None => return,
        };
        self.shared.state.send_replace(state);
    }
}

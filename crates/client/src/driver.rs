//! The task behind a client: it owns the connection, performs what [`Recovery`] decides, and carries calls, answers and
//! events. Callers talk to it through a bounded queue that it only empties while calls may go through.

use std::future;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use exec_server_protocol::{
    Empty, InitializeParams, InitializeResponse, Message, Method, UNKNOWN_REQUEST_ID,
    decode_unchecked, notification,
};
use exec_server_transport::{CloseCode, Connection, Incoming, Outgoing, Received};
use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::time::Instant;

use crate::calls::{Answer, Asker, Call, Calls, Question, read_error};
use crate::connector::{Connector, Dialing};
use crate::processes::{Errand, Processes, Tracked};
use crate::recovery::{Action, Generation, Over, Recovery, Refusal};
use crate::{
    ConnectError, ConnectionState, ExecServerClientConnectOptions, ExecServerError, Lost, Violation,
};

/// Bytes that may wait for the socket before further calls have to.
const MAX_BUFFERED: usize = 1 << 20;
/// How long a server that takes nothing more may go on talking.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// What a handle asks of the driver.
#[derive(Debug)]
pub(crate) struct Command {
    pub(crate) call: Call,
    /// A process that this call starts, attaches or observes: known before the call is sent, so that its first
    /// output has a home.
    pub(crate) opens: Option<Tracked>,
}

/// What handles and driver share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) state: watch::Sender<ConnectionState>,
    /// Told when the last handle is gone or the client is closed.
    pub(crate) hang_up: Notify,
    /// Told when a process has room again for what it had to refuse.
    pub(crate) room: Arc<Notify>,
}

/// What the server gave us.
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
    /// Told the session's id, or why there is none.
    opened: Option<oneshot::Sender<Result<GrantedSession, ExecServerError>>>,
    recovery: Recovery,
    dialing: Option<(Generation, Dialing)>,
    link: Option<Link>,
    session_id: Option<String>,
    detached_ttl: Option<Duration>,
    calls: Calls,
    processes: Processes,
    /// Why the last connection or attempt failed.
    last_failure: Option<ExecServerError>,
    /// Whether everybody has been told that it is over.
    settled: bool,
}

struct Link {
    generation: Generation,
    incoming: Incoming,
    outgoing: Outgoing,
    /// The peer takes nothing more. What it has said is still read, and then, or at this moment, it is over.
    deaf_until: Option<Instant>,
    /// Catch-up calls that are not answered yet.
    catching_up: usize,
}

enum Event {
    Command(Command),
    Dialled(Generation, Result<Connection, ConnectError>),
    Received(Received),
    /// The connection ended.
    Ended,
    Written(std::io::Result<()>),
    Room,
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
            options,
            commands,
            opened: Some(opened),
            recovery,
            dialing: None,
            link: None,
            detached_ttl: None,
            calls: Calls::default(),
            processes: Processes::default(),
            last_failure: None,
            settled: false,
        }
    }

    pub(crate) async fn run(mut self) {
        loop {
            while let Some(action) = self.recovery.poll_action() {
                if let Action::GiveUp(over) = action {
                    let error = self.last_words(over).await;
                    return self.end(&error, ConnectionState::Failed(error.clone())).await;
                }
                self.perform(action);
            }
            self.tend_processes();
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
            () = nobody_waits(&mut self.opened) => Event::HangUp,
            received = receive(incoming) => received.map_or(Event::Ended, Event::Received),
            written = write(outgoing) => Event::Written(written),
            Some(command) = self.commands.recv(), if accepts_calls => Event::Command(command),
            (generation, dialled) = dialled(&mut self.dialing) => Event::Dialled(generation, dialled),
            () = self.shared.room.notified() => Event::Room,
            () = sleep_until(timeout) => Event::Timeout,
        }
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Command(command) => self.start_call(command),
            Event::Dialled(generation, dialled) => self.dialled(generation, dialled),
            Event::Received(Received::Message(message)) => self.receive(&message),
            Event::Received(Received::Malformed(malformed)) => {
                self.break_off(Violation::from(malformed).into());
            }
            Event::Ended => self.connection_lost(ConnectError::EndedEarly.into()),
            Event::Written(Ok(())) => {}
            Event::Room => self.processes.tend_all(),
            Event::Written(Err(error)) => {
                tracing::debug!(%error, "cannot write to the server");
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
                    self.connection_lost(ConnectError::EndedEarly.into());
                }
                self.recovery.handle_timeout(now);
                self.processes.handle_timeout(now);
            }
            Event::HangUp => unreachable!("the loop ends with it"),
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
                self.last_failure =
                    Some(ExecServerError::TimedOut { what: "the answer to initialize", after });
                self.drop_connection(generation);
                self.announce();
            }
            Action::CatchUp(generation) => self.catch_up(generation),
            Action::Admit(_) => self.admit(),
            Action::GiveUp(_) => unreachable!("the loop ends with it"),
        }
    }

    fn dialled(&mut self, generation: Generation, dialled: Result<Connection, ConnectError>) {
        match dialled {
            Ok(Connection { incoming, outgoing, .. }) => {
                self.link =
                    Some(Link { generation, incoming, outgoing, deaf_until: None, catching_up: 0 });
                let ttl = self.options.detached_ttl;
                let params = InitializeParams {
                    client_name: self.options.client_name.clone(),
                    resume_session_id: self.session_id.clone(),
                    detached_ttl_ms: ttl
                        .map(|ttl| u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX)),
                    acks: Some(true),
                };
                self.send(internal(Method::Initialize, &params, Asker::Handshake(generation)));
            }
            Err(error) => {
                let permanent = error.is_permanent();
                self.last_failure = Some(error.into());
                let refusal = if permanent { Refusal::Permanent } else { Refusal::Temporary };
                self.recovery.handle_lost(generation, refusal, Instant::now());
            }
        }
    }

    fn handshake_answered(&mut self, generation: Generation, answer: Answer) {
        let response = answer.and_then(|result| {
            let response: InitializeResponse = read_result(Method::Initialize, &result)?;
            match &self.session_id {
                Some(asked) if *asked != response.session_id => {
                    let (asked, given) = (asked.clone(), response.session_id);
                    Err(Violation::OtherSession { asked, given }.into())
                }
                _ => Ok(response),
            }
        });
        match response {
            Ok(response) => {
                self.session_id = Some(response.session_id);
                self.detached_ttl = response.detached_ttl_ms.map(Duration::from_millis);
                self.processes.confirm_output(response.acks == Some(true));
                self.push(&notification("initialized", &Empty {}));
                self.recovery.handle_initialized(generation, Instant::now());
            }
            Err(error) => {
                // The old connection may not know yet that it is dead.
                let attached = exec_server_protocol::ErrorCode::SessionAttached.value();
                let refusal = match &error {
                    ExecServerError::Server(error) if error.code == attached => Refusal::Temporary,
                    _ => Refusal::Permanent,
                };
                self.last_failure = Some(error);
                self.drop_connection(generation);
                self.recovery.handle_lost(generation, refusal, Instant::now());
            }
        }
    }

    /// Asks at once for what each process missed.
    fn catch_up(&mut self, generation: Generation) {
        let calls = self.processes.catch_up();
        let waiting = calls.iter().filter(|call| matches!(call.asker, Asker::CatchUp(_))).count();
        for call in calls {
            self.send(call);
        }
        if let Some(link) = &mut self.link {
            link.catching_up = waiting;
        }
        if waiting == 0 {
            self.recovery.handle_caught_up(generation, Instant::now());
        }
    }

    fn caught_up(&mut self, question: &Question, answer: Answer) {
        let now = Instant::now();
        self.processes.caught_up(question, answer, now);
        if let Some(link) = &mut self.link {
            link.catching_up = link.catching_up.saturating_sub(1);
            if link.catching_up == 0 {
                self.recovery.handle_caught_up(link.generation, now);
            }
        }
    }

    fn admit(&mut self) {
        self.last_failure = None;
        self.announce();
        if let Some(opened) = self.opened.take() {
            let session_id = self.session_id.clone().unwrap_or_default();
            let granted = GrantedSession { session_id, detached_ttl: self.detached_ttl };
            if opened.send(Ok(granted)).is_err() {
                self.shared.hang_up.notify_one();
            }
        }
        while let Some(call) = self.calls.next_lost() {
            self.send(call);
        }
    }

    fn start_call(&mut self, Command { call, opens }: Command) {
        if call.asker.is_gone() {
            return;
        }
        if let Some(process) = opens
            && let Err(error) = self.processes.track(process)
        {
            return call.asker.tell(Err(error));
        }
        self.send(call);
    }

    fn receive(&mut self, message: &Bytes) {
        match decode_unchecked(message) {
            Ok(Message::Response { id, result, error }) => match self.calls.answered(&id) {
                Some(call) => {
                    let answer = match (result, error) {
                        (_, Some(error)) => Err(ExecServerError::Server(read_error(error))),
                        (result, None) => Ok(result.map_or_else(null, RawValue::to_owned)),
                    };
                    self.answered(call, answer);
                }
                None if id == UNKNOWN_REQUEST_ID => {
                    let error = error.map(read_error);
                    tracing::warn!(?error, "the server could not read a message of ours");
                }
                None => tracing::debug!(%id, "an answer that nobody waits for"),
            },
            Ok(Message::Notification(notification)) => {
                if let Err(violation) = self.processes.notified(&notification, Instant::now()) {
                    self.break_off(violation.into());
                }
            }
            Ok(Message::Request(request)) => {
                tracing::debug!(method = %request.method, "a request from the server is ignored");
            }
            Err(error) => self.break_off(Violation::from(error).into()),
        }
    }

    fn answered(&mut self, call: Call, answer: Answer) {
        match call.asker {
            Asker::Handshake(generation) => self.handshake_answered(generation, answer),
            Asker::CatchUp(question) => self.caught_up(&question, answer),
            Asker::Pull(question) => self.processes.pulled(&question, answer, Instant::now()),
            Asker::Opening(key, sender) => self.processes.opened(&key, sender, answer),
            asker @ (Asker::Caller(_) | Asker::Nobody) => asker.tell(answer),
        }
    }

    /// What processes have to say after each event: confirmations, and requests for what they had no room for.
    fn tend_processes(&mut self) {
        if !self.recovery.is_connected() {
            return;
        }
        while let Some(errand) = self.processes.poll_errand() {
            match errand {
                Errand::Call(call) => self.send(call),
                Errand::Notify(text) => self.push(&text),
            }
        }
    }

    /// A start whose caller goes with the client has nobody who could end it.
    fn end_unclaimed_starts(&mut self) {
        let starts: Vec<_> = self.calls.starts_in_flight().cloned().collect();
        for key in starts {
            self.processes.abandon(&key);
        }
        self.processes.tend_all();
        self.tend_processes();
    }

    fn send(&mut self, call: Call) {
        let text = self.calls.send(call);
        self.push(&text);
    }

    fn push(&mut self, text: &[u8]) {
        if let Some(link) = &mut self.link {
            link.outgoing.push(text);
        }
    }

    /// The server broke the protocol; what it says next cannot be trusted either.
    fn break_off(&mut self, error: ExecServerError) {
        if let Some(link) = &self.link {
            let generation = link.generation;
            self.last_failure = Some(error);
            self.drop_connection(generation);
            self.recovery.handle_lost(generation, Refusal::Permanent, Instant::now());
        }
    }

    fn connection_lost(&mut self, error: ExecServerError) {
        let Some(link) = &self.link else { return };
        let generation = link.generation;
        // An answer may have said more than the end of the connection does.
        self.last_failure.get_or_insert(error);
        self.drop_connection(generation);
        let refusal = match self.connector.can_redial() {
            true => Refusal::Temporary,
            false => Refusal::Permanent,
        };
        self.recovery.handle_lost(generation, refusal, Instant::now());
        self.announce();
    }

    fn drop_connection(&mut self, generation: Generation) {
        self.dialing.take_if(|(dialing, _)| *dialing == generation);
        if self.link.take_if(|link| link.generation == generation).is_none() {
            return;
        }
        self.processes.connection_lost();
        for call in self.calls.lose() {
            if let Asker::Opening(key, _) = &call.asker {
                self.processes.abandon(key);
            }
            let method = call.method.name();
            call.asker.tell(Err(ExecServerError::Interrupted { method }));
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

    /// The one error that everybody gets who waits.
    async fn last_words(&mut self, over: Over) -> ExecServerError {
        let last = self.last_failure.take();
        match over {
            Over::NeverConnected => match last {
                // Whoever made the connection may know more about its end.
                Some(ExecServerError::ConnectFailed(error)) if self.ended_early(&error) => {
                    match self.connector.post_mortem().await {
                        Lost::CannotRedial => ExecServerError::ConnectFailed(error),
                        lost => lost.into(),
                    }
                }
                last => last.unwrap_or_else(|| ConnectError::EndedEarly.into()),
            },
            Over::Deadline(deadline) => {
                let last = last.map_or_else(|| "none".to_owned(), |error| error.to_string());
                Lost::Deadline { deadline, last }.into()
            }
            Over::Permanent if !self.connector.can_redial() => match last {
                Some(error @ ExecServerError::ProtocolViolation(_)) => error,
                _ => self.connector.post_mortem().await.into(),
            },
            Over::Permanent => match last {
                Some(error @ ExecServerError::ProtocolViolation(_)) => error,
                Some(error) => Lost::Refused(error).into(),
                None => Lost::CannotRedial.into(),
            },
        }
    }

    /// Whether a connection that cannot be made again ended before the handshake.
    fn ended_early(&self, error: &ConnectError) -> bool {
        matches!(error, ConnectError::EndedEarly) && !self.connector.can_redial()
    }

    async fn end(mut self, error: &ExecServerError, state: ConnectionState) {
        self.settle(error, state);
        self.link = None;
        // Not `try_recv`: a sender that has its place may still be putting its command there.
        while let Some(command) = self.commands.recv().await {
            command.call.asker.tell(Err(error.clone()));
        }
    }

    /// Tells everybody that it is over.
    fn settle(&mut self, error: &ExecServerError, state: ConnectionState) {
        // Before the queue is closed: who finds it closed looks here for the reason.
        self.shared.state.send_replace(state);
        self.commands.close();
        self.settled = true;
        if let Some(opened) = self.opened.take() {
            let _ = opened.send(Err(error.clone()));
        }
        for call in self.calls.take_all() {
            call.asker.tell(Err(error.clone()));
        }
        self.processes.fail_all(error);
    }
}

impl Drop for Driver {
    /// Also when the runtime ends or a defect panics: nobody waits for ever.
    fn drop(&mut self) {
        if !self.settled {
            let error = ExecServerError::from(Lost::TaskStopped);
            self.settle(&error, ConnectionState::Failed(error.clone()));
        }
    }
}

/// A call of the driver's own; what becomes of it when the connection is lost, the driver knows.
pub(crate) fn internal(method: Method, params: &impl Serialize, asker: Asker) -> Call {
    let params = to_raw_value(params).expect("params have only string keys");
    Call { method, params, replay: false, losses: 0, asker }
}

pub(crate) fn read_result<T: serde::de::DeserializeOwned>(
    method: Method,
    result: &RawValue,
) -> Result<T, ExecServerError> {
    serde_json::from_str(result.get())
        .map_err(|source| Violation::Result { method: method.name(), source }.into())
}

fn null() -> Box<RawValue> {
    RawValue::NULL.to_owned()
}

/// Resolves when whoever asked for the connection has gone before it was made.
async fn nobody_waits<T>(opened: &mut Option<oneshot::Sender<T>>) {
    match opened {
        Some(opened) => opened.closed().await,
        None => future::pending().await,
    }
}

async fn receive(incoming: Option<&mut Incoming>) -> Option<Received> {
    match incoming {
        Some(incoming) => incoming.recv().await,
        None => future::pending().await,
    }
}

/// Writes what waits, or what will have to be said (an answer to a ping). Cancel-safe.
async fn write(outgoing: Option<&mut Outgoing>) -> std::io::Result<()> {
    let Some(outgoing) = outgoing else { return future::pending().await };
    if outgoing.buffered() == 0 {
        outgoing.control_pending().await;
    }
    outgoing.flush().await
}

async fn dialled(
    dialing: &mut Option<(Generation, Dialing)>,
) -> (Generation, Result<Connection, ConnectError>) {
    let Some((generation, attempt)) = dialing else { return future::pending().await };
    let generation = *generation;
    let outcome = attempt.await;
    *dialing = None;
    (generation, outcome)
}

async fn sleep_until(moment: Option<Instant>) {
    match moment {
        Some(moment) => tokio::time::sleep_until(moment).await,
        None => future::pending().await,
    }
}

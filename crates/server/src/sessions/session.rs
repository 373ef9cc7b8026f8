//! One session: its processes, and whom it is attached to.
//!
//! Attachment and processes are under one lock: at every moment each process of an attached session has
//! exactly one live feed, on the connection that the session is attached to. The events of a client in this program go
//! to the sink that came with the start.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use exec_server_host::process::StartOutcome;
use exec_server_protocol::{ErrorKind, ErrorSubject, Principal, RpcError, SessionInfo};
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::attachment::{AttachError, Attachment, Resume};
use crate::adapter::{ManagedProcess, NotificationDialect, SandboxResolver, Started};
use crate::connection::{ClientConnection, ConnectionId};
use crate::feed::{ConfirmedBy, FeedReader};

#[derive(Debug)]
pub(crate) struct Session {
    id: String,
    client_name: String,
    /// Who made it. Only the same subject can have it, and nobody else learns of it.
    owner: Principal,
    /// Under the ceilings of the owner, whoever of the same subject has it now: what is started here must
    /// not be more than the owner may type into.
    sandboxes: Arc<SandboxResolver>,
    state: Mutex<State>,
    /// Told of every change of the attachment, after it.
    attachment_changed: watch::Sender<()>,
    /// Notifications that the client did not get because it was away or did not read.
    pub(super) dropped_notifications: AtomicU64,
}

#[derive(Debug)]
struct State {
    attachment: Attachment,
    settings: SessionSettings,
    /// The task that ends the session when nobody comes back.
    expiry: Option<AbortHandle>,
    processes: HashMap<String, Arc<ManagedProcess>>,
    /// How many of `processes` are not over.
    running: usize,
    /// Those of `processes` that are over, oldest first.
    finished: VecDeque<Weak<ManagedProcess>>,
}

/// What the client and the operator agreed on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SessionSettings {
    pub(crate) detached_ttl: Duration,
    pub(crate) confirmed_by: ConfirmedBy,
}

impl Session {
    /// A new session, attached to whoever asked for it.
    pub(crate) fn new(
        id: String,
        client_name: String,
        settings: SessionSettings,
        sandboxes: Arc<SandboxResolver>,
        connection: Arc<ClientConnection>,
    ) -> Self {
        let owner = connection.principal().clone();
        let state = State {
            attachment: Attachment::Attached(connection),
            settings,
            expiry: None,
            processes: HashMap::new(),
            running: 0,
            finished: VecDeque::new(),
        };
        Self {
            id,
            client_name,
            owner,
            sandboxes,
            state: Mutex::new(state),
            attachment_changed: watch::Sender::new(()),
            dropped_notifications: AtomicU64::new(0),
        }
    }

    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    pub(crate) fn owner(&self) -> &Principal {
        &self.owner
    }

    pub(crate) fn sandboxes(&self) -> &Arc<SandboxResolver> {
        &self.sandboxes
    }

    pub(crate) fn settings(&self) -> SessionSettings {
        self.lock().settings
    }

    pub(crate) fn info(&self) -> SessionInfo {
        let state = self.lock();
        let mut processes: Vec<_> = state.processes.keys().cloned().collect();
        processes.sort_unstable();
        SessionInfo {
            session_id: self.id.clone(),
            client_name: self.client_name.clone(),
            attached: matches!(state.attachment, Attachment::Attached(_)),
            processes,
            subject: None,
        }
    }

    /// Attaches a detached session, or one whose connection `instead_of` is known to be dead.
    pub(crate) fn attach(
        &self,
        connection: &Arc<ClientConnection>,
        &Resume { confirmed_by, detached_ttl, ref positions }: &Resume,
        instead_of: Option<ConnectionId>,
    ) -> Result<(), AttachError> {
        let mut state = self.lock();
        match &state.attachment {
            Attachment::Ended => return Err(AttachError::Ended),
            Attachment::Attached(other) if Some(other.id()) == instead_of => other.lose_session(),
            Attachment::Attached(other) => return Err(AttachError::Attached(Arc::clone(other))),
            Attachment::Detached { .. } => {}
        }
        state.attachment = Attachment::Attached(Arc::clone(connection));
        self.attachment_changed.send_replace(());
        state.stop_expiry();
        state.settings.confirmed_by = confirmed_by;
        if let Some(ttl) = detached_ttl {
            state.settings.detached_ttl = ttl;
        }
        for process in state.processes.values() {
            if let Some(seq) = positions.get(process.id()) {
                process.confirm(*seq);
            }
            if process.log().progress().closed && is_confirmed(process) {
                continue; // The client has all of it, and nothing more will come.
            }
            // Held until the client knows that it has its session back.
            if let Some(socket) = connection.socket() {
                socket.feed(process, owner(process, confirmed_by), true);
            }
        }
        Ok(())
    }

    /// Called when a connection is over. Returns when the session will expire, unless it has moved on.
    pub(crate) fn detach(&self, connection: ConnectionId, now: Instant) -> Option<Instant> {
        let mut state = self.lock();
        match &state.attachment {
            Attachment::Attached(current) if current.id() == connection => current.lose_session(),
            _ => return None,
        }
        let until = now.checked_add(state.settings.detached_ttl).unwrap_or(now + FAR_FUTURE);
        state.attachment = Attachment::Detached { since: now, until };
        self.attachment_changed.send_replace(());
        Some(until)
    }

    /// Keeps the task that will call [`Self::expire`], so that it ends when it has lost its purpose.
    pub(crate) fn expires_by(&self, at: Instant, task: AbortHandle) {
        let mut state = self.lock();
        match state.attachment {
            Attachment::Detached { until, .. } if until == at => state.expiry = Some(task),
            // The task itself may have been so quick, and is at work.
            Attachment::Ended => {}
            Attachment::Attached(_) | Attachment::Detached { .. } => task.abort(),
        }
    }

    /// Ends the session if it is still detached since then.
    pub(crate) fn expire(&self, at: Instant) -> bool {
        let mut state = self.lock();
        let expired = matches!(state.attachment, Attachment::Detached { until, .. } if until == at);
        if expired {
            state.attachment = Attachment::Ended;
            self.attachment_changed.send_replace(());
            // The caller is that task.
            state.expiry = None;
        }
        expired
    }

    /// Ends the session for good: no connection, no new process.
    pub(crate) fn end(&self) {
        let mut state = self.lock();
        if let Attachment::Attached(connection) = &state.attachment {
            connection.lose_session();
        }
        state.attachment = Attachment::Ended;
        self.attachment_changed.send_replace(());
        state.stop_expiry();
    }

    /// Since when it has been kept for the sake of finished processes only, and without a connection.
    pub(crate) fn idle_since(&self) -> Option<Instant> {
        let state = self.lock();
        match state.attachment {
            Attachment::Detached { since, .. } if state.running == 0 => Some(since),
            _ => None,
        }
    }

    /// The connection that it is attached to.
    pub(crate) fn connection(&self) -> Option<Arc<ClientConnection>> {
        match &self.lock().attachment {
            Attachment::Attached(connection) => Some(Arc::clone(connection)),
            Attachment::Detached { .. } | Attachment::Ended => None,
        }
    }

    /// Sees each change of the connection, and the end of the session.
    pub(super) fn subscribe_attachment(&self) -> watch::Receiver<()> {
        self.attachment_changed.subscribe()
    }

    /// Fails when the session is not attached to this connection any more.
    pub(crate) fn check_attached(&self, connection: ConnectionId) -> Result<(), RpcError> {
        self.lock().check_attached(&self.id, connection)
    }

    /// Adds what `start` starts, under an id that nobody else in the session has.
    pub(crate) fn start(
        &self,
        connection: ConnectionId,
        process_id: &str,
        limit: usize,
        start: impl FnOnce() -> Result<Started, RpcError>,
    ) -> Result<(Arc<ManagedProcess>, StartOutcome), RpcError> {
        let mut state = self.lock();
        state.check_attached(&self.id, connection)?;
        if state.processes.contains_key(process_id) {
            let message = format!("process {process_id:?} already exists in this session");
            return Err(RpcError::invalid_request(message).with_kind(ErrorKind::DuplicateProcess));
        }
        state.make_place(process_id, limit)?;
        let Started { process, outcome } = start()?;
        let process = Arc::new(process);
        state.processes.insert(process_id.to_owned(), Arc::clone(&process));
        state.running += 1;
        let confirmed_by = state.settings.confirmed_by;
        if let Attachment::Attached(connection) = &state.attachment
            && let Some(socket) = connection.socket()
        {
            socket.feed(&process, owner(&process, confirmed_by), false);
        }
        Ok((process, outcome))
    }

    pub(crate) fn find(&self, process_id: &str) -> Option<Arc<ManagedProcess>> {
        self.lock().processes.get(process_id).cloned()
    }

    pub(crate) fn processes(&self) -> Vec<Arc<ManagedProcess>> {
        self.lock().processes.values().cloned().collect()
    }

    /// Forgets a process; a newer one under the same id is not touched.
    pub(crate) fn forget(&self, process: &Arc<ManagedProcess>) {
        self.lock().forget(process);
    }

    /// A process has closed and left nothing running. It stays readable, but others may take its place.
    pub(crate) fn finished(&self, process: &Arc<ManagedProcess>) {
        let mut state = self.lock();
        let listed = state.processes.get(process.id());
        if listed.is_some_and(|other| Arc::ptr_eq(other, process)) && process.set_over() {
            state.running -= 1;
            state.finished.push_back(Arc::downgrade(process));
        }
    }

    /// Whether a finished process may be forgotten now: its client is here and has everything.
    pub(crate) fn has_delivered(&self, process: &ManagedProcess) -> bool {
        let attached = matches!(self.lock().attachment, Attachment::Attached(_));
        attached && process.is_delivered()
    }

    /// Processes that run, and finished ones that can still be read.
    pub(crate) fn process_counts(&self) -> (usize, usize) {
        let state = self.lock();
        (state.running, state.processes.len() - state.running)
    }

    /// Whether a process of it runs.
    pub(crate) fn is_working(&self) -> bool {
        self.lock().running > 0
    }

    pub(crate) fn is_ended(&self) -> bool {
        matches!(self.lock().attachment, Attachment::Ended)
    }

    /// Waits until it has ended.
    pub(crate) async fn ended(&self) {
        let mut changes = self.subscribe_attachment();
        // Not by `wait_for`, which asks under the lock of the channel: changes are sent while the
        // session is locked.
        while !self.is_ended() {
            // The sender lives in the session, so this cannot fail.
            let _ = changes.changed().await;
        }
    }

    /// Everything up to `seq` has reached the client on this connection.
    pub(crate) fn acknowledge(&self, connection: ConnectionId, process_id: &str, seq: u64) {
        let state = self.lock();
        if state.check_attached(&self.id, connection).is_ok()
            && let Some(process) = state.processes.get(process_id)
        {
            process.log().confirm(seq);
        }
    }

    /// The last event of each of these processes that the session has.
    pub(crate) fn last_events<'a>(
        &self,
        process_ids: impl IntoIterator<Item = &'a String>,
    ) -> BTreeMap<String, u64> {
        let state = self.lock();
        let known = process_ids.into_iter().filter_map(|id| state.processes.get(id));
        known
            .map(|process| (process.id().to_owned(), process.log().progress().next_seq - 1))
            .collect()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no code panics while it holds a session")
    }
}

/// Finished processes that a session keeps readable at most.
const MAX_FINISHED: usize = 4096;

const FAR_FUTURE: Duration = Duration::from_secs(365 * 24 * 60 * 60);

impl State {
    fn stop_expiry(&mut self) {
        if let Some(task) = self.expiry.take() {
            task.abort();
        }
    }

    fn check_attached(&self, id: &str, connection: ConnectionId) -> Result<(), RpcError> {
        match &self.attachment {
            Attachment::Attached(current) if current.id() == connection => Ok(()),
            Attachment::Ended => Err(RpcError::invalid_request(format!("session {id} has ended"))
                .with_kind(ErrorKind::SessionEnded)),
            Attachment::Attached(_) | Attachment::Detached { .. } => {
                let message = format!("session {id} has moved to another connection");
                Err(RpcError::invalid_request(message).with_kind(ErrorKind::SessionMoved))
            }
        }
    }

    /// Running processes are refused beyond the limit; finished ones are forgotten early.
    fn make_place(&mut self, process_id: &str, limit: usize) -> Result<(), RpcError> {
        let mut candidates = self.finished.len();
        while self.processes.len() - self.running >= MAX_FINISHED && candidates > 0 {
            candidates -= 1;
            match self.finished.pop_front().and_then(|finished| finished.upgrade()) {
                Some(process) if !process.is_delivered() => {
                    self.finished.push_back(Arc::downgrade(&process));
                }
                Some(process) => self.forget(&process),
                None => {}
            }
        }
        let full = self.processes.len() - self.running >= MAX_FINISHED;
        if self.running < limit && !full {
            return Ok(());
        }
        let what = if full { "finished processes that nobody has read" } else { "processes" };
        let count = if full { MAX_FINISHED } else { limit };
        let error = RpcError::invalid_request(format!("the session has {count} {what} already"));
        let subject = ErrorSubject::Process(process_id.to_owned());
        Err(error.with_kind(ErrorKind::TooManyProcesses).about(subject))
    }

    fn forget(&mut self, process: &Arc<ManagedProcess>) {
        if self.processes.get(process.id()).is_some_and(|other| Arc::ptr_eq(other, process)) {
            self.processes.remove(process.id());
            if !process.is_over() {
                self.running -= 1;
            }
        }
        // Now and then, and not each time: the list may be long.
        if self.finished.len() > 2 * (self.processes.len() - self.running) + 16 {
            self.finished.retain(|finished| finished.strong_count() > 0);
        }
    }
}

/// The v0 dialect has no numbers, so nothing of it can be acked.
fn owner(process: &ManagedProcess, confirmed_by: ConfirmedBy) -> FeedReader {
    match process.dialect() {
        NotificationDialect::Current => FeedReader::Owner { confirmed_by },
        NotificationDialect::Legacy => FeedReader::Owner { confirmed_by: ConfirmedBy::Receipt },
    }
}

fn is_confirmed(process: &ManagedProcess) -> bool {
    process.log().confirmed() + 1 == process.log().progress().next_seq
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ServerConfig;

    fn connection(id: u64) -> Arc<ClientConnection> {
        Arc::new(ClientConnection::in_process(ConnectionId(id)))
    }

    #[test]
    fn a_session_expires_at_the_moment_that_was_agreed_on() {
        let detached_ttl = Duration::from_secs(30);
        let settings = SessionSettings { detached_ttl, confirmed_by: ConfirmedBy::Ack };
        let sandboxes = Arc::new(SandboxResolver::new(&ServerConfig::default(), None));
        let session = Session::new("s".into(), "test".into(), settings, sandboxes, connection(1));
        let start = Instant::now();
        assert_eq!(session.detach(ConnectionId(2), start), None, "another connection has it");
        let first = session.detach(ConnectionId(1), start).unwrap();
        assert_eq!(first, start + detached_ttl);
        assert_eq!(session.idle_since(), Some(start));

        let (confirmed_by, positions) = (ConfirmedBy::Ack, BTreeMap::new());
        let resume = Resume { confirmed_by, detached_ttl: None, positions };
        session.attach(&connection(2), &resume, None).unwrap();
        assert!(!session.expire(first), "it was resumed in time");
        let later = start + Duration::from_secs(10);
        let second = session.detach(ConnectionId(2), later).unwrap();
        assert!(!session.expire(first), "an older agreement has no effect");
        assert!(session.expire(second) && session.is_ended());
    }
}

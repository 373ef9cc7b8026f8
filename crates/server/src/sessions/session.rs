//! One session: its processes, and its attachment to a connection.
//!
//! One lock covers attachment and processes, so a process has at most one live feed for its owner,
//! on the attached connection. Events for a client in this program go to the sink that came with
//! the start.

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
    /// The principal that opened the session. [`Principal::owns`] decides who can resume it,
    /// [`Principal::sees`] who sees it.
    owner: Principal,
    /// Applies the ceilings of the operator and the owner, whichever principal of the same subject
    /// is attached. The owner may write to the stdin of every process here, so no process may have
    /// more access than the owner.
    sandboxes: Arc<SandboxResolver>,
    state: Mutex<State>,
    attachment_changed: watch::Sender<()>,
    /// Notifications that [`Self::notify`] could not send at once.
    pub(super) dropped_notifications: AtomicU64,
}

#[derive(Debug)]
struct State {
    attachment: Attachment,
    settings: SessionSettings,
    /// The task that ends the session if no client resumes it.
    expiry: Option<AbortHandle>,
    processes: HashMap<String, Arc<ManagedProcess>>,
    /// How many of `processes` have not finished.
    running: usize,
    /// The finished ones of `processes`, in the order in which they may make room. Some may already
    /// be forgotten.
    finished: VecDeque<Weak<ManagedProcess>>,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct SessionSettings {
    pub(crate) detached_ttl: Duration,
    pub(crate) confirmed_by: ConfirmedBy,
}

impl Session {
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
                continue; // The client has everything, and nothing more will come.
            }
            // The feed is held (`true`), so that the response to the resume is sent before any
            // event.
            if let Some(socket) = connection.socket() {
                socket.feed(process, owner(process, confirmed_by), true);
            }
        }
        Ok(())
    }

    /// Detaches the session from a connection that has ended. Returns the time at which the session
    /// will expire, or `None` if it was not attached to this connection.
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

    /// Keeps the task that will call [`Self::expire`], so that it is aborted when it is no longer
    /// needed.
    pub(crate) fn expires_by(&self, at: Instant, task: AbortHandle) {
        let mut state = self.lock();
        match state.attachment {
            Attachment::Detached { until, .. } if until == at => state.expiry = Some(task),
            // The task itself may have ended the session already, and must finish its work.
            Attachment::Ended => {}
            Attachment::Attached(_) | Attachment::Detached { .. } => task.abort(),
        }
    }

    /// Ends the session if the detachment that expires at `at` still lasts.
    pub(crate) fn expire(&self, at: Instant) -> bool {
        let mut state = self.lock();
        let expired = matches!(state.attachment, Attachment::Detached { until, .. } if until == at);
        if expired {
            state.attachment = Attachment::Ended;
            self.attachment_changed.send_replace(());
            // The caller is the expiry task, which must not be aborted.
            state.expiry = None;
        }
        expired
    }

    /// Ends the session for good: it accepts no connection and no new process.
    pub(crate) fn end(&self) {
        let mut state = self.lock();
        if let Attachment::Attached(connection) = &state.attachment {
            connection.lose_session();
        }
        state.attachment = Attachment::Ended;
        self.attachment_changed.send_replace(());
        state.stop_expiry();
    }

    /// Returns the time at which the session was detached, if all its processes have finished.
    pub(crate) fn idle_since(&self) -> Option<Instant> {
        let state = self.lock();
        match state.attachment {
            Attachment::Detached { since, .. } if state.running == 0 => Some(since),
            _ => None,
        }
    }

    pub(crate) fn connection(&self) -> Option<Arc<ClientConnection>> {
        match &self.lock().attachment {
            Attachment::Attached(connection) => Some(Arc::clone(connection)),
            Attachment::Detached { .. } | Attachment::Ended => None,
        }
    }

    /// Subscribes to changes of the connection and to the end of the session.
    pub(super) fn subscribe_attachment(&self) -> watch::Receiver<()> {
        self.attachment_changed.subscribe()
    }

    pub(crate) fn check_attached(&self, connection: ConnectionId) -> Result<(), RpcError> {
        self.lock().check_attached(&self.id, connection)
    }

    /// Runs `start` and adds its process under an id that must be unused in the session.
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

    /// A newer process under the same id is not touched.
    pub(crate) fn forget(&self, process: &Arc<ManagedProcess>) {
        self.lock().forget(process);
    }

    /// Marks a process as finished: it has closed and left nothing running. It stays readable, but
    /// no longer counts as running.
    pub(crate) fn finished(&self, process: &Arc<ManagedProcess>) {
        let mut state = self.lock();
        let listed = state.processes.get(process.id());
        if listed.is_some_and(|other| Arc::ptr_eq(other, process)) && process.set_over() {
            state.running -= 1;
            state.finished.push_back(Arc::downgrade(process));
        }
    }

    /// Returns whether a finished process may be forgotten: its client is attached and has
    /// everything.
    pub(crate) fn has_delivered(&self, process: &ManagedProcess) -> bool {
        let attached = matches!(self.lock().attachment, Attachment::Attached(_));
        attached && process.is_delivered()
    }

    /// Counts running processes, and finished ones that can still be read.
    pub(crate) fn process_counts(&self) -> (usize, usize) {
        let state = self.lock();
        (state.running, state.processes.len() - state.running)
    }

    pub(crate) fn is_working(&self) -> bool {
        self.lock().running > 0
    }

    pub(crate) fn is_ended(&self) -> bool {
        matches!(self.lock().attachment, Attachment::Ended)
    }

    pub(crate) async fn ended(&self) {
        let mut changes = self.subscribe_attachment();
        // Not `wait_for`, which evaluates its condition under the lock of the channel: changes are
        // sent while the session is locked, so the locks could deadlock.
        while !self.is_ended() {
            // The sender lives in the session, so this cannot fail.
            let _ = changes.changed().await;
        }
    }

    /// Confirms all events up to `seq`, if the session is attached to this connection.
    pub(crate) fn acknowledge(&self, connection: ConnectionId, process_id: &str, seq: u64) {
        let state = self.lock();
        if state.check_attached(&self.id, connection).is_ok()
            && let Some(process) = state.processes.get(process_id)
        {
            process.log().confirm(seq);
        }
    }

    /// Returns the number of the last event of each of these processes. Leaves out processes that
    /// the session does not have.
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

/// Maximum number of finished processes that a session keeps readable.
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

    /// Fails if too many processes run, or too many finished ones are unread. To make room, forgets
    /// finished processes whose output has been read.
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
        let (count, what) = match full {
            true => (
                MAX_FINISHED,
                "finished processes that were not read to the end; read some of them first",
            ),
            false => (limit, "running processes (max_processes_per_session)"),
        };
        let error = RpcError::invalid_request(format!("the session already has {count} {what}"));
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
        // Not every time: the list may be long.
        if self.finished.len() > 2 * (self.processes.len() - self.running) + 16 {
            self.finished.retain(|finished| finished.strong_count() > 0);
        }
    }
}

/// Returns the reader for the owner's feed. The v0 dialect has no sequence numbers, so its events
/// cannot be acknowledged.
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
    fn a_session_expires_at_its_deadline() {
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
        assert!(!session.expire(first), "an older deadline has no effect");
        assert!(session.expire(second) && session.is_ended());
    }
}

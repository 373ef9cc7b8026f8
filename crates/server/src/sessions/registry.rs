//! All sessions of a server.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use exec_server_protocol::{ErrorCode, ErrorKind, Principal, RpcError, Subject};
use exec_server_telemetry::short;
use tokio::time::Instant;
use uuid::Uuid;

use super::attachment::{AttachError, Resume};
use super::session::{Session, SessionSettings};
use crate::adapter::{ManagedProcess, SandboxResolver, check_name};
use crate::connection::ClientConnection;
use crate::telemetry::{SessionEvent, Telemetry};

/// How long the old connection of a session has to answer a probe.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub(crate) struct SessionRegistry {
    limit: usize,
    limit_per_subject: usize,
    by_id: Mutex<Table>,
    telemetry: Arc<Telemetry>,
}

#[derive(Debug, Default)]
struct Table {
    sessions: HashMap<String, Arc<Session>>,
    /// The server is shutting down: no session is opened or resumed, and no process started.
    draining: bool,
}

impl SessionRegistry {
    pub(crate) fn new(limit: usize, limit_per_subject: usize, telemetry: Arc<Telemetry>) -> Self {
        Self { limit, limit_per_subject, by_id: Mutex::default(), telemetry }
    }

    pub(crate) fn open(
        &self,
        client_name: String,
        settings: SessionSettings,
        sandboxes: Arc<SandboxResolver>,
        connection: &Arc<ClientConnection>,
        now: Instant,
    ) -> Result<Arc<Session>, RpcError> {
        check_name("clientName", &client_name)?;
        self.telemetry.begin_session(connection)?;
        let mut table = self.lock();
        let ended = self.make_room(&mut table, connection, now)?;
        let id = Uuid::new_v4().to_string();
        let owner = Arc::clone(connection);
        let session = Arc::new(Session::new(id.clone(), client_name, settings, sandboxes, owner));
        table.sessions.insert(id, Arc::clone(&session));
        drop(table);
        for session in ended {
            self.telemetry.session(SessionEvent::Ended, &session, None);
        }
        self.telemetry.session(SessionEvent::Opened, &session, Some(connection));
        Ok(session)
    }

    /// Fails if a session limit is reached and no session can be ended to make room, or if the
    /// server is shutting down. Returns the sessions that were ended.
    fn make_room(
        &self,
        table: &mut Table,
        connection: &ClientConnection,
        now: Instant,
    ) -> Result<Vec<Arc<Session>>, RpcError> {
        table.check_draining()?;
        let mut ended = Vec::new();
        let subject = &connection.principal().subject;
        if table.count(subject) >= self.limit_per_subject {
            let is_own = |session: &Session| session.owner().subject == *subject;
            ended.push(table.end_idle(now, is_own).ok_or_else(|| {
                let (subject, limit) = (short(&subject.to_string()), self.limit_per_subject);
                too_many(format!(
                    "subject {subject:?} already has {limit} sessions (max_sessions_per_subject)"
                ))
            })?);
        }
        if table.sessions.len() >= self.limit {
            ended.push(table.end_idle(now, |_| true).ok_or_else(|| {
                too_many(format!("the server already has {} sessions (max_sessions)", self.limit))
            })?);
        }
        Ok(ended)
    }

    /// Attaches a session to a new connection of its owner. The current connection is probed first:
    /// if it died silently, it must not lock out the client that reconnects.
    pub(crate) async fn resume(
        &self,
        id: &str,
        resume: &Resume,
        connection: &Arc<ClientConnection>,
    ) -> Result<Arc<Session>, RpcError> {
        self.check_draining()?;
        // A resume changes nothing, and refusing it would lose output, so its audit record is not
        // required.
        let session = self.find(id, |owner| connection.principal().owns(owner))?;
        self.attach(&session, resume, connection).await?;
        self.telemetry.session(SessionEvent::Resumed, &session, Some(connection));
        Ok(session)
    }

    async fn attach(
        &self,
        session: &Session,
        resume: &Resume,
        connection: &Arc<ClientConnection>,
    ) -> Result<(), RpcError> {
        let id = session.id();
        let current = match session.attach(connection, resume, None) {
            Ok(()) => return Ok(()),
            Err(AttachError::Ended) => return Err(unknown(id)),
            Err(AttachError::Attached(current)) => current,
        };
        if current.is_alive(PROBE_TIMEOUT).await {
            return Err(still_attached(id));
        }
        match session.attach(connection, resume, Some(current.id())) {
            Ok(()) => {
                current.give_up();
                Ok(())
            }
            Err(AttachError::Ended) => Err(unknown(id)),
            // Another client was faster.
            Err(AttachError::Attached(_)) => Err(still_attached(id)),
        }
    }

    /// Returns a session by the id that a client sent, if the client may see it.
    pub(crate) fn named(&self, id: &str, by: &Principal) -> Result<Arc<Session>, RpcError> {
        self.find(id, |owner| by.sees(owner))
    }

    /// Reports a hidden session as unknown, like one that does not exist.
    fn find(
        &self,
        id: &str,
        is_visible: impl FnOnce(&Principal) -> bool,
    ) -> Result<Arc<Session>, RpcError> {
        let session = self.lock().sessions.get(id).cloned();
        session.filter(|session| is_visible(session.owner())).ok_or_else(|| unknown(id))
    }

    pub(crate) fn all(&self) -> Vec<Arc<Session>> {
        self.lock().sessions.values().cloned().collect()
    }

    pub(crate) fn visible_to(&self, principal: &Principal) -> Vec<Arc<Session>> {
        let mut sessions = self.all();
        sessions.retain(|session| principal.sees(session.owner()));
        sessions
    }

    pub(crate) fn find_process(
        &self,
        process_id: &str,
        by: &Principal,
    ) -> Option<Arc<ManagedProcess>> {
        self.visible_to(by).iter().find_map(|session| session.find(process_id))
    }

    /// `by`: the connection that requested the end, if any.
    pub(crate) fn end(&self, session: &Session, by: Option<&ClientConnection>) {
        session.end();
        let removed = self.lock().sessions.remove(session.id());
        if removed.is_some() {
            self.telemetry.session(SessionEvent::Ended, session, by);
        }
    }

    pub(crate) fn drain(&self) {
        self.lock().draining = true;
    }

    pub(crate) fn check_draining(&self) -> Result<(), RpcError> {
        self.lock().check_draining()
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.by_id.lock().expect("no code panics while it holds the sessions")
    }
}

/// A client that lost its connection has this long to reconnect, however full the server is.
const RECONNECT_GRACE: Duration = Duration::from_secs(30);

impl Table {
    fn count(&self, subject: &Subject) -> usize {
        self.sessions.values().filter(|session| session.owner().subject == *subject).count()
    }

    /// Ends the session that has been detached longest, among those that `may_go`, whose processes
    /// have all finished and whose [`RECONNECT_GRACE`] is over. Without this, abandoned sessions
    /// would lock out every client, including those that want to clean up.
    fn end_idle(
        &mut self,
        now: Instant,
        may_go: impl Fn(&Session) -> bool,
    ) -> Option<Arc<Session>> {
        let candidates = self.sessions.values().filter(|session| may_go(session));
        let idle = candidates.filter_map(|session| {
            let since = session.idle_since().filter(|since| now >= *since + RECONNECT_GRACE)?;
            Some((since, Arc::clone(session)))
        });
        let (_, oldest) = idle.min_by_key(|(since, _)| *since)?;
        oldest.end();
        self.sessions.remove(oldest.id())
    }

    fn check_draining(&self) -> Result<(), RpcError> {
        if self.draining {
            let error = RpcError::invalid_request("the server is shutting down");
            return Err(error.with_kind(ErrorKind::ShuttingDown));
        }
        Ok(())
    }
}

fn too_many(message: String) -> RpcError {
    RpcError::invalid_request(message).with_kind(ErrorKind::TooManySessions)
}

fn unknown(id: &str) -> RpcError {
    RpcError::invalid_request(format!("session {id:?} is unknown or has ended"))
        .with_kind(ErrorKind::UnknownSession)
}

fn still_attached(id: &str) -> RpcError {
    let message = format!(
        "session {id:?} is still attached to another connection; retry once that connection has \
         ended"
    );
    RpcError::new(ErrorCode::SessionAttached, message).with_kind(ErrorKind::SessionAttached)
}

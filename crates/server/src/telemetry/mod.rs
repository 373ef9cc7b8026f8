//! The operator's view of a server: metrics, traces of requests, an audit log of who did what, and
//! the listeners and recent refusals of `server/status`.
//!
//! The rest of the server reports each event here, once. Metrics and traces never hold a name that
//! a client chose; the audit log holds command lines and paths only if the operator enabled them.

mod metrics;
mod record;
mod refusals;
mod request;
mod trace;

use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::{Instant, SystemTime};

use exec_server_host::network::gate::{DecisionRecord, Verdict};
use exec_server_host::process::LogTotals;
use exec_server_host::process::launch::{EndedBy, ExitRecord};
use exec_server_protocol::{ErrorKind, LimitName, Method, RecentRefusal, RpcError};
use exec_server_telemetry::otlp::Tracer;
use exec_server_telemetry::{
    AuditLog, MetricsRegistry, MetricsSnapshot, RefusalLine, RefusalLines,
};
use exec_server_transport::Refusal;

use crate::blocking::allow_blocking;
use crate::connection::ClientConnection;
use crate::sessions::Session;
use metrics::ServerMetrics;
use record::{Event, Record};
use refusals::RecentRefusals;

pub(crate) use request::RequestRecord;
pub(crate) use trace::LaunchSpan;

/// The audit log of a server, and its settings.
#[derive(Debug, Clone)]
pub struct Audit {
    pub log: Arc<AuditLog>,
    /// Records include command lines and paths.
    pub commands: bool,
    /// A request that changes something is refused if it cannot be recorded first.
    pub required: bool,
}

/// Shared by a server and its listeners.
#[derive(Debug)]
pub struct Telemetry {
    pub(crate) metrics: ServerMetrics,
    audit: Option<Audit>,
    /// Bounds the audit records about refused clients.
    refusal_lines: Mutex<RefusalLines>,
    refusals: RecentRefusals,
    /// URLs of the listeners, once they are known.
    listeners: OnceLock<Vec<String>>,
    tracer: Option<Tracer>,
}

impl Default for Telemetry {
    fn default() -> Self {
        Self::new(None)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SessionEvent {
    Opened,
    Resumed,
    Detached,
    Ended,
}

impl Telemetry {
    #[must_use]
    pub fn new(audit: Option<Audit>) -> Self {
        Self {
            metrics: ServerMetrics::new(),
            audit,
            refusal_lines: Mutex::default(),
            refusals: RecentRefusals::default(),
            listeners: OnceLock::new(),
            tracer: None,
        }
    }

    /// Enables the tracing of requests.
    pub fn set_tracer(&mut self, tracer: Tracer) {
        self.tracer = Some(tracer);
    }

    /// Sets the URLs that the server listens on. Only the first call counts.
    pub fn listens_on(&self, urls: Vec<String>) {
        let _ = self.listeners.set(urls);
    }

    pub(crate) fn listeners(&self) -> &[String] {
        self.listeners.get().map_or(&[], Vec::as_slice)
    }

    pub(crate) fn recent_refusals(&self) -> Vec<RecentRefusal> {
        self.refusals.list()
    }

    /// Returns the registry, for metrics of the program around the server.
    #[must_use]
    pub fn registry(&self) -> &MetricsRegistry {
        self.metrics.registry()
    }

    /// Reports a client that was refused before its first message, by a listener or by the check
    /// for sandboxed peers.
    pub fn connection_refused(&self, refusal: &Refusal) {
        self.metrics.refused_connections.of(refusal.reason.label()).inc();
        self.refusals.connection(refusal, SystemTime::now());
        let line = self.refusal_lines().next(Instant::now());
        match line {
            RefusalLine::LeaveOut => return,
            RefusalLine::WriteWithSummary { left_out } => self.summarize_refusals(left_out),
            RefusalLine::Write => {}
        }
        self.write(|| Record {
            outcome: refusal.reason.label(),
            address: refusal.address.map(|address| address.to_string()),
            ..Record::new(Event::Connection)
        });
    }

    fn summarize_refusals(&self, left_out: u64) {
        self.write(|| Record {
            outcome: "refused",
            count: Some(left_out),
            ..Record::new(Event::Connection)
        });
    }

    pub(crate) fn connection_opened(&self, connection: &ClientConnection) {
        self.metrics.connections.inc();
        self.metrics.connections_total.inc();
        self.write(|| Record { outcome: "opened", ..Record::of(Event::Connection, connection) });
    }

    pub(crate) fn connection_closed(&self, connection: &ClientConnection) {
        self.metrics.connections.dec();
        self.write(|| Record { outcome: "closed", ..Record::of(Event::Connection, connection) });
    }

    /// Records that a session is about to be opened. Fails if the record is required and cannot be
    /// written.
    pub(crate) fn begin_session(&self, connection: &ClientConnection) -> Result<(), RpcError> {
        self.write_ahead(|| Record {
            outcome: "begun",
            method: Some(Method::Initialize.name()),
            ..Record::of(Event::Begun, connection)
        })
    }

    /// `connection` is the one that caused the event, if any.
    pub(crate) fn session(
        &self,
        event: SessionEvent,
        session: &Session,
        connection: Option<&ClientConnection>,
    ) {
        let outcome = match event {
            SessionEvent::Opened => "opened",
            SessionEvent::Resumed => "resumed",
            SessionEvent::Detached => "detached",
            SessionEvent::Ended => "ended",
        };
        self.metrics.session_events.of(outcome).inc();
        self.write(|| {
            let owner = &session.owner().subject;
            let record = match connection {
                Some(connection) => Record {
                    owner: (connection.principal().subject != *owner).then(|| owner.to_string()),
                    ..Record::of(Event::Session, connection)
                },
                None => Record { subject: Some(owner.to_string()), ..Record::new(Event::Session) },
            };
            Record { outcome, session: Some(session.id().to_owned()), ..record }
        });
    }

    /// `exit`: `None` if it was lost with the keeper of the process.
    pub(crate) fn process_exited(
        &self,
        session: &Session,
        process_id: &str,
        exit: Option<&ExitRecord>,
        limits_hit: Vec<LimitName>,
    ) {
        let cause = match exit {
            None => "lost",
            Some(ExitRecord { ended_by: Some(EndedBy::Deadline), .. }) => "deadline",
            Some(ExitRecord { ended_by: Some(EndedBy::Shutdown), .. }) => "shutdown",
            Some(ExitRecord { signal: Some(_), .. }) => "signal",
            Some(ExitRecord { signal: None, code: 0, .. }) => "success",
            Some(ExitRecord { .. }) => "failure",
        };
        self.metrics.exits.of(cause).inc();
        limits_hit.iter().for_each(|limit| self.metrics.process_limit_hit(*limit));
        self.write(|| Record {
            outcome: cause,
            subject: Some(session.owner().subject.to_string()),
            session: Some(session.id().to_owned()),
            process: Some(exec_server_telemetry::short(process_id)),
            exit_code: exit.map(|exit| exit.code),
            signal: exit.and_then(|exit| exit.signal),
            limits_hit,
            ..Record::new(Event::Exit)
        });
    }

    pub(crate) fn network_decision(
        &self,
        session: Option<&Session>,
        process_id: &str,
        decision: &DecisionRecord,
    ) {
        let verdict = match decision.verdict {
            Verdict::Allow => "allow",
            Verdict::Deny => "deny",
            Verdict::Ask => "ask",
        };
        self.metrics.network_decisions.of(verdict).inc();
        self.write(|| Record {
            outcome: verdict,
            subject: session.map(|session| session.owner().subject.to_string()),
            session: session.map(|session| session.id().to_owned()),
            process: Some(exec_server_telemetry::short(process_id)),
            host: Some(exec_server_telemetry::short(&decision.host)),
            port: Some(decision.port),
            ..Record::new(Event::Network)
        });
    }

    /// Records a change before it is made. Fails if records are required and this one cannot be
    /// written.
    fn write_ahead(&self, record: impl FnOnce() -> Record) -> Result<(), RpcError> {
        let Some(Audit { log, required: true, .. }) = &self.audit else { return Ok(()) };
        allow_blocking(|| log.write_and_wait(&record())).map_err(|_| {
            let message =
                "this request must be recorded in the audit log, which the server cannot write";
            RpcError::internal(message).with_kind(ErrorKind::AuditFailed)
        })
    }

    fn write(&self, record: impl FnOnce() -> Record) {
        if let Some(Audit { log, .. }) = &self.audit {
            log.write(&record());
        }
    }

    /// Writes the last records of a server that shuts down.
    pub fn flush(&self) {
        let left_out = self.refusal_lines().take_left_out();
        if left_out > 0 {
            self.summarize_refusals(left_out);
        }
        if let Some(Audit { log, .. }) = &self.audit {
            log.flush();
        }
    }

    fn refusal_lines(&self) -> MutexGuard<'_, RefusalLines> {
        self.refusal_lines.lock().expect("no code panics while it holds the refusals")
    }

    fn shows_commands(&self) -> bool {
        self.audit.as_ref().is_some_and(|audit| audit.commands)
    }

    fn requires_audit(&self) -> bool {
        self.audit.as_ref().is_some_and(|audit| audit.required)
    }

    fn is_audited(&self) -> bool {
        self.audit.is_some()
    }

    /// Updates the totals of logs and the gauges, and returns a snapshot of all metrics.
    pub(crate) fn snapshot(&self, logs: &LogTotals, now: &ServerGauges) -> MetricsSnapshot {
        self.metrics.update(logs, now, self.audit.as_ref().map(|audit| &*audit.log));
        self.metrics.snapshot()
    }
}

/// Values that are counted when metrics or the status of the server are requested.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ServerGauges {
    pub(crate) attached_sessions: usize,
    pub(crate) detached_sessions: usize,
    pub(crate) running_processes: usize,
    pub(crate) finished_processes: usize,
    pub(crate) buffered_bytes: usize,
    pub(crate) file_jobs: usize,
}

fn now() -> exec_server_telemetry::Timestamp {
    exec_server_telemetry::Timestamp(SystemTime::now())
}

//! One request, from its arrival to its response.

use std::path::Path;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use exec_server_protocol::{Call, Effect, ErrorKind, Method, PathUri, RpcError, TraceContext};
use exec_server_telemetry::short;

use super::Telemetry;
use super::metrics::kind_of;
use super::record::{Event, Record};
use super::trace::{LaunchSpan, RequestSpans};
use crate::connection::ClientConnection;
use crate::sessions::Session;

/// Maximum size of a command in a record, so that a record always fits into a journal datagram.
const MAX_COMMAND_BYTES: usize = 8 << 10;

/// Kinds of errors that count as refusals: the request was not allowed, or exceeded a limit.
const REFUSALS: &[ErrorKind] = &[
    ErrorKind::Forbidden,
    ErrorKind::ModeForbidden,
    ErrorKind::Overloaded,
    ErrorKind::SandboxDenied,
    ErrorKind::TokenExpired,
    ErrorKind::TooManyObserved,
    ErrorKind::TooManyOpen,
    ErrorKind::TooManyProcesses,
    ErrorKind::TooManyRequests,
    ErrorKind::TooManySessions,
    ErrorKind::UnknownSession,
];

/// Counts a request when it is answered, traces it, and writes its audit records.
#[derive(Debug)]
pub(crate) struct RequestRecord {
    telemetry: Arc<Telemetry>,
    connection: Arc<ClientConnection>,
    method: Option<Method>,
    began: Instant,
    /// Present only if there is an audit log, or the request is traced.
    details: Option<Box<RequestDetails>>,
}

#[derive(Debug, Default)]
struct RequestDetails {
    /// For the audit log.
    subject: RequestSubject,
    spans: Option<RequestSpans>,
}

#[derive(Debug, Clone, Default)]
struct RequestSubject {
    session: Option<String>,
    process: Option<String>,
    command: Vec<String>,
    paths: Vec<String>,
    /// The audit log has a record that announces the request.
    was_announced: bool,
    changes_file: bool,
}

impl RequestRecord {
    /// `method`: `None` if unknown. `trace`: the client's trace context, whose span becomes the
    /// parent.
    pub(crate) fn begin(
        telemetry: &Arc<Telemetry>,
        connection: &Arc<ClientConnection>,
        method: Option<Method>,
        trace: Option<&TraceContext>,
    ) -> Self {
        let (telemetry, connection) = (Arc::clone(telemetry), Arc::clone(connection));
        telemetry.metrics.requests_in_flight().inc();
        let tracer = telemetry.tracer.as_ref();
        let spans = tracer.and_then(|tracer| RequestSpans::begin(tracer, method, trace));
        let details = spans.map(|spans| {
            Box::new(RequestDetails { spans: Some(spans), ..RequestDetails::default() })
        });
        Self { telemetry, connection, method, began: Instant::now(), details }
    }

    #[cfg(test)]
    pub(crate) fn unobserved() -> Self {
        let connection = ClientConnection::in_process(crate::connection::ConnectionId(1));
        Self::begin(&Arc::default(), &Arc::new(connection), None, None)
    }

    /// Records the call before it runs. Fails if the record is required and cannot be written.
    pub(crate) fn run(&mut self, session: &Session, call: &Call) -> Result<(), RpcError> {
        if !self.telemetry.is_audited() {
            return Ok(());
        }
        let shows_commands = self.telemetry.shows_commands();
        let mut subject = RequestSubject {
            session: Some(session.id().to_owned()),
            process: call.process().map(short),
            was_announced: self.telemetry.requires_audit() && is_announced(call, &self.connection),
            changes_file: changes_files(call.method()),
            ..RequestSubject::default()
        };
        if shows_commands {
            subject.command = command(call);
            subject.paths = changed_paths(call).into_iter().map(show_path).collect();
        }
        let was_announced = subject.was_announced;
        self.details.get_or_insert_default().subject = subject;
        match was_announced {
            true => self.telemetry.write_ahead(|| self.record(Event::Begun, "begun")),
            false => Ok(()),
        }
    }

    pub(crate) fn changes_file(&mut self, path: &Path) {
        if !self.telemetry.is_audited() {
            return;
        }
        let shows_paths = self.telemetry.shows_commands();
        if let Some(details) = &mut self.details {
            let paths = shows_paths.then(|| short(&path.to_string_lossy()));
            details.subject.changes_file = true;
            details.subject.paths = paths.into_iter().collect();
        }
    }

    pub(crate) fn begin_file_work(&mut self) {
        if let Some(spans) = self.spans() {
            spans.begin_file_work();
        }
    }

    pub(crate) fn pause_file_work(&mut self) {
        if let Some(spans) = self.spans() {
            spans.end_file_work(None);
        }
    }

    pub(crate) fn launch(&mut self) -> LaunchSpan {
        self.spans().map(|spans| spans.launch()).unwrap_or_default()
    }

    pub(crate) fn answered(mut self, error: Option<&RpcError>) {
        let kind = error.map(kind_of);
        let spans = self.details.as_mut().and_then(|details| details.spans.take());
        if let Some(spans) = spans {
            spans.end(kind.as_ref().map(known_word));
        }
        let seconds = self.began.elapsed().as_secs_f64();
        self.telemetry.metrics.answered(self.method, kind.as_ref(), seconds);
        let refusal = kind.as_ref().filter(|kind| REFUSALS.contains(kind));
        if let Some(kind) = refusal {
            let (reason, now) = (known_word(kind), SystemTime::now());
            self.telemetry.refusals.request(reason, self.method, &self.connection, now);
        }
        if !self.telemetry.is_audited() {
            return;
        }
        let (changes_file, was_announced) = match &self.details {
            Some(details) => (details.subject.changes_file, details.subject.was_announced),
            None => (false, false),
        };
        let event = match (self.method, refusal) {
            (_, Some(_)) => Event::Refused,
            (Some(Method::ProcessStart | Method::CommandExec), _) => Event::Start,
            _ if changes_file => Event::File,
            _ if was_announced => Event::Request,
            _ => return,
        };
        let outcome = match kind {
            None => "ok",
            Some(kind) => known_word(&kind),
        };
        self.telemetry.write(|| self.record(event, outcome));
    }

    fn spans(&mut self) -> Option<&mut RequestSpans> {
        self.details.as_mut()?.spans.as_mut()
    }

    fn record(&self, event: Event, outcome: &'static str) -> Record {
        let subject = self.details.as_ref().map(|details| details.subject.clone());
        let RequestSubject { session, process, command, paths, .. } = subject.unwrap_or_default();
        let method = self.method.map(Method::name);
        let record = Record::of(event, &self.connection);
        Record { outcome, session, method, process, command, paths, ..record }
    }
}

impl Drop for RequestRecord {
    fn drop(&mut self) {
        self.telemetry.metrics.requests_in_flight().dec();
    }
}

/// Returns whether a required audit log gets a record of this call before it runs. Closing a handle
/// counts if that commits an upload.
fn is_announced(call: &Call, connection: &ClientConnection) -> bool {
    match call {
        Call::FsClose(params) => {
            let commits = !params.discard && !params.keep;
            commits && connection.resources.files.writing(&params.handle_id).is_ok()
        }
        call => call.effect() == Effect::Changes,
    }
}

pub(super) fn is_refusal(kind: &ErrorKind) -> bool {
    REFUSALS.contains(kind)
}

fn changes_files(method: Method) -> bool {
    matches!(
        method,
        Method::FsWriteFile
            | Method::FsCreateDirectory
            | Method::FsRemove
            | Method::FsCopy
            | Method::FsRename
            | Method::FsSymlink
            | Method::FsSetPermissions
            | Method::FsCreate
    )
}

fn changed_paths(call: &Call) -> Vec<&PathUri> {
    match call {
        Call::FsWriteFile(params) => vec![&params.path],
        Call::FsCreateDirectory(params) => vec![&params.path],
        Call::FsRemove(params) => vec![&params.path],
        Call::FsCopy(params) => vec![&params.source_path, &params.destination_path],
        Call::FsRename(params) => vec![&params.source_path, &params.destination_path],
        Call::FsSymlink(params) => vec![&params.path],
        Call::FsSetPermissions(params) => vec![&params.path],
        Call::FsCreate(params) => vec![&params.path],
        Call::ProcessStart(params) => vec![&params.cwd],
        Call::CommandExec(params) => vec![&params.cwd],
        _ => Vec::new(),
    }
}

fn command(call: &Call) -> Vec<String> {
    let argv = match call {
        Call::ProcessStart(params) => &params.argv,
        Call::CommandExec(params) => &params.argv,
        _ => return Vec::new(),
    };
    let mut command = Vec::new();
    let mut bytes = 0;
    for argument in argv {
        let shown = short(argument);
        bytes += shown.len() + 1;
        if bytes > MAX_COMMAND_BYTES {
            command.push(format!("… ({} arguments)", argv.len()));
            break;
        }
        command.push(shown);
    }
    command
}

fn show_path(path: &PathUri) -> String {
    short(&path.as_path().to_string_lossy())
}

/// Returns the name of a known kind of error, and `error` for any other.
pub(super) fn known_word(kind: &ErrorKind) -> &'static str {
    let known = ErrorKind::ALL.iter().find(|known| *known == kind);
    known.map_or("error", ErrorKind::as_str)
}

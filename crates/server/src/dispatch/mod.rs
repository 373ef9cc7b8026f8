//! The implementation of each method but `initialize`, and the single entry point for calls of any
//! transport.
//!
//! A call that has to wait is handed to [`Dispatcher::spawn`], and work on files to a pool. Only a
//! required audit record and the first probe of the limits block, in `allow_blocking`.

use std::sync::Arc;
use std::time::Duration;

use exec_server_protocol::{
    Call, CloseStdinResponse, Effect, Empty, Enforcement, EnvironmentStatus, ErrorKind,
    ErrorSubject, ExecParams, ExecResponse, ExecWriteResponse, ListParams, Method, ObserveParams,
    Principal, ReadParams, ResizeParams, Role, RpcError, SandboxType, SessionCloseParams,
    SessionInfo, SessionListResponse, SignalParams, StartParams, StartResponse, Status,
    TerminalSize, TerminateParams, TerminateResponse, TraceContext, WaitParams, WriteParams,
    WriteResponse, WriteStatus, rpc,
};

mod events;
mod files;
mod http;
mod observing;
mod reply;
mod resources;
mod tasks;

use tokio::runtime;

pub(crate) use events::{EventStream, Sent};
pub(crate) use reply::{Reply, RequestTexts};
pub(crate) use resources::Resources;

use crate::adapter::{
    Counted, FileExecutors, ManagedProcess, Started, Written, environment_info, start_error,
};
use crate::connection::ClientConnection;
use crate::feed::{FeedReader, feed_in_process};
use crate::server::ServerState;
use crate::sessions::Session;
use crate::telemetry::RequestRecord;
use tasks::TaskSet;

/// Maximum number of waiting calls on one socket. Further calls are refused.
const MAX_WAITING: usize = 4096;

/// The environment is ready for every client whose request arrives here.
const READY: EnvironmentStatus = EnvironmentStatus { status: Status::Ready };

#[derive(Debug)]
pub(crate) struct Dispatcher {
    state: Arc<ServerState>,
    connection: Arc<ClientConnection>,
    /// Calls that wait. They are aborted when the connection ends.
    tasks: TaskSet,
    runtime: runtime::Handle,
}

impl Dispatcher {
    /// Must be called within a runtime, which then runs the waiting calls.
    pub(crate) fn new(state: Arc<ServerState>, connection: Arc<ClientConnection>) -> Self {
        let runtime = runtime::Handle::current();
        Self { state, connection, tasks: TaskSet::default(), runtime }
    }

    pub(crate) fn state(&self) -> &Arc<ServerState> {
        &self.state
    }

    pub(crate) fn connection(&self) -> &Arc<ClientConnection> {
        &self.connection
    }

    pub(crate) fn runtime(&self) -> &runtime::Handle {
        &self.runtime
    }

    /// `method`: `None` if unknown.
    pub(crate) fn record(
        &self,
        method: Option<Method>,
        trace: Option<&TraceContext>,
    ) -> RequestRecord {
        RequestRecord::begin(&self.state.telemetry, &self.connection, method, trace)
    }

    pub(crate) fn tasks(&self) -> &TaskSet {
        &self.tasks
    }

    /// Runs a call of a session, which must be attached to this connection.
    pub(crate) fn call(&self, session: &Arc<Session>, call: Call, mut reply: Reply) {
        if let Err(error) = check_role(self.connection.principal(), &call) {
            return reply.fail(error);
        }
        match session.check_attached(self.connection.id()) {
            Ok(()) => match reply.begin(session, &call) {
                Ok(()) => self.run(session, call, reply),
                Err(error) => reply.fail(error),
            },
            // A shutdown ends all sessions; report the shutdown, not the end of the session.
            Err(error) => reply.fail(self.state.sessions.check_draining().err().unwrap_or(error)),
        }
    }

    fn file_executors(&self, session: &Session) -> FileExecutors {
        FileExecutors::new(self.state.files.clone(), Arc::clone(session.sandboxes()))
    }

    /// Runs a waiting call as a task. Refuses the call if too many are waiting already.
    fn spawn<F: Future<Output = ()> + Send + 'static>(
        &self,
        reply: Reply,
        wait: impl FnOnce(Reply) -> F,
    ) {
        if self.connection.socket().is_some() && self.tasks.len() >= MAX_WAITING {
            let error = RpcError::internal(format!(
                "{MAX_WAITING} requests are already waiting on this connection; wait for responses"
            ));
            return reply.fail(error.with_kind(ErrorKind::Overloaded));
        }
        self.tasks.spawn_on(&self.runtime, wait(reply));
    }

    fn run(&self, session: &Arc<Session>, call: Call, to: Reply) {
        match call {
            Call::Initialize(_) => to.fail(has_session()),
            Call::SessionClose(params) => self.session_close(session, &params, to),
            Call::SessionList(_) => to.send::<rpc::SessionList>(Ok(self.session_list())),
            Call::EnvironmentInfo(_) => self.environment_info(to),
            Call::ServerStatus(_) => to.send::<rpc::ServerStatus>(Ok(self.state.status())),
            Call::EnvironmentStatus(_) => to.send::<rpc::EnvironmentStatus>(Ok(READY)),
            Call::ProcessStart(params) => self.start(session, params, to),
            Call::ProcessRead(params) => self.read(session, params, to),
            Call::ProcessWrite(params) => self.write(session, params, to),
            Call::ProcessCloseStdin(params) => {
                to.send::<rpc::ProcessCloseStdin>(close_stdin(session, &params.process_id));
            }
            Call::ProcessResize(params) => {
                to.send::<rpc::ProcessResize>(resize(session, &params));
            }
            Call::ProcessSignal(params) => {
                to.send::<rpc::ProcessSignal>(self.signal(session, &params));
            }
            Call::ProcessTerminate(params) => {
                to.send::<rpc::ProcessTerminate>(self.terminate(session, &params));
            }
            Call::ProcessWait(params) => self.wait(session, params, to),
            Call::ProcessSnapshot(params) => self.snapshot(session, &params.process_id, to),
            Call::ProcessList(params) => self.list(session, &params, to),
            Call::ProcessObserve(params) => self.observe(&params, to),
            Call::FsReadFile(params) => self.read_file(session, params, to),
            Call::FsWriteFile(params) => self.file_call::<rpc::FsWriteFile>(session, params, to),
            Call::FsCreateDirectory(params) => {
                self.file_call::<rpc::FsCreateDirectory>(session, params, to);
            }
            Call::FsGetMetadata(params) => {
                self.file_call::<rpc::FsGetMetadata>(session, params, to);
            }
            Call::FsCanonicalize(params) => {
                self.file_call::<rpc::FsCanonicalize>(session, params, to);
            }
            Call::FsReadDirectory(params) => {
                self.large_file_call::<rpc::FsReadDirectory>(session, params, to);
            }
            Call::FsWalk(params) => self.large_file_call::<rpc::FsWalk>(session, params, to),
            Call::FsGlob(params) => self.large_file_call::<rpc::FsGlob>(session, params, to),
            Call::FsRemove(params) => self.file_call::<rpc::FsRemove>(session, params, to),
            Call::FsCopy(params) => self.file_call::<rpc::FsCopy>(session, params, to),
            Call::FsRename(params) => self.file_call::<rpc::FsRename>(session, params, to),
            Call::FsSymlink(params) => self.file_call::<rpc::FsSymlink>(session, params, to),
            Call::FsReadLink(params) => self.file_call::<rpc::FsReadLink>(session, params, to),
            Call::FsSetPermissions(params) => {
                self.file_call::<rpc::FsSetPermissions>(session, params, to);
            }
            Call::FsOpen(params) => self.open_file(session, params, to),
            Call::FsReadBlock(params) => self.read_block(&params, to),
            Call::FsCreate(params) => self.create_file(session, params, to),
            Call::FsWriteBlock(params) => self.write_block(params, to),
            Call::FsClose(params) => self.close_file(&params, to),
            Call::FsWatch(params) => self.watch(session, params, to),
            Call::FsUnwatch(params) => self.unwatch(&params, to),
            Call::FsSearch(params) => self.search(session, params, to),
            Call::FsCancelSearch(params) => self.cancel_search(&params, to),
            Call::HttpRequest(params) => self.http_request(session, params, to),
            Call::HttpCancel(params) => self.http_cancel(&params.request_id, to),
            Call::CommandExec(params) => self.start_legacy(session, params, to),
            Call::CommandExecWrite(params) => self.write_legacy(session, params, to),
            Call::CommandExecTerminate(params) => {
                to.send::<rpc::CommandExecTerminate>(self.terminate(session, &params));
            }
        }
    }

    fn environment_info(&self, reply: Reply) {
        let state = Arc::clone(&self.state);
        let info = move |state: &ServerState| {
            environment_info(&state.launcher, state.sandboxes.can_manage_network())
        };
        if self.state.sandboxes.is_machine_probed() {
            return reply.send::<rpc::EnvironmentInfo>(info(&state));
        }
        // Probing the machine blocks, so it runs on a file thread.
        self.state.files.run_or_tell(move |thread| {
            reply.send::<rpc::EnvironmentInfo>(thread.and_then(|()| info(&state)));
        });
    }

    fn session_list(&self) -> SessionListResponse {
        let principal = self.connection.principal();
        let told_subject = |session: &Arc<Session>| {
            let is_admin = principal.role == Role::Admin;
            is_admin.then(|| session.owner().subject.to_string())
        };
        let sessions = self.state.sessions.visible_to(principal);
        let sessions = sessions
            .iter()
            .map(|session| SessionInfo { subject: told_subject(session), ..session.info() });
        SessionListResponse { sessions: sessions.collect() }
    }

    fn session_close(&self, own: &Arc<Session>, params: &SessionCloseParams, reply: Reply) {
        let session = match self.session_named(own, params.session_id.as_deref()) {
            Ok(session) => session,
            Err(error) => return reply.fail(error),
        };
        let attached = session.connection();
        // Ended synchronously, so that the session ends even if the client hangs up at once.
        let ended = self.state.end_session(&session, Some(&self.connection));
        // Close the connection of an attached client, which would wait for events that never
        // arrive. A client that closes its own session over a socket disconnects itself.
        let hangs_up_itself = |connection: &ClientConnection| {
            connection.id() == self.connection.id() && connection.socket().is_some()
        };
        if let Some(connection) = attached.filter(|connection| !hangs_up_itself(connection)) {
            connection.give_up();
        }
        self.spawn(reply, |reply| async move {
            ended.await;
            reply.send::<rpc::SessionClose>(Ok(Empty {}));
        });
    }

    fn start(&self, session: &Arc<Session>, params: StartParams, reply: Reply) {
        let (id, claim_name) = (params.process_id.clone(), params.claim_name);
        let state = Arc::clone(&self.state);
        let client = session.network_client(&self.state.telemetry);
        let start = || ManagedProcess::start(state.start_context(session, &client), params);
        self.start_with(session, (id, claim_name), start, reply, move |process, reply| {
            let enforcement = process.enforcement();
            let response = StartResponse {
                process_id: process.id().to_owned(),
                sandbox_type: sandbox_type(enforcement.as_ref()),
                enforcement,
                timeout_ms: process.limits().timeout_ms(),
                limits: process.limits().reported().map(Box::new),
            };
            reply.send::<rpc::ProcessStart>(Ok(response));
        });
    }

    fn start_legacy(&self, session: &Arc<Session>, params: ExecParams, reply: Reply) {
        let id = params.process_id.clone();
        let state = Arc::clone(&self.state);
        let client = session.network_client(&self.state.telemetry);
        let start = || ManagedProcess::start_legacy(state.start_context(session, &client), params);
        self.start_with(session, (id, false), start, reply, |process, reply| {
            let process_id = process.id().to_owned();
            let (exit_code, stdout, stderr) = (None, None, None);
            let response = ExecResponse { process_id, running: true, exit_code, stdout, stderr };
            reply.send::<rpc::CommandExec>(Ok(response));
        });
    }

    /// Starts a process. The supervising task sends the response: it outlives this connection, and
    /// so does the cleanup after a failed start.
    fn start_with(
        &self,
        session: &Arc<Session>,
        (process_id, claim_name): (String, bool),
        start: impl FnOnce() -> Result<Started, RpcError>,
        mut reply: Reply,
        answer: impl FnOnce(&ManagedProcess, Reply) + Send + 'static,
    ) {
        let (connection, sink) = (&self.connection, reply.take_sink());
        let launch = reply.launch();
        match self.state.start_process(session, connection, &process_id, claim_name, start) {
            Err(error) => reply.fail(error),
            Ok((process, outcome, permit)) => {
                let started = Arc::clone(&process);
                if let Some(sink) = sink {
                    let reader =
                        FeedReader::Owner { confirmed_by: session.settings().confirmed_by };
                    let feeding = self.state.in_process_feeds.begin();
                    let feed = feed_in_process(Arc::clone(&process), reader, sink);
                    self.state.spawn(async move {
                        feed.await;
                        drop(feeding);
                    });
                }
                let running = (process, outcome, permit);
                self.state.supervise(Arc::clone(session), running, move |outcome| match outcome {
                    Ok(()) => {
                        launch.end(None);
                        answer(&started, reply);
                    }
                    Err(error) => {
                        let error = start_error(&process_id, &error);
                        launch.end(Some(&error));
                        reply.fail(error);
                    }
                });
            }
        }
    }

    fn read(&self, session: &Arc<Session>, params: ReadParams, reply: Reply) {
        let process = match find(session, &params.process_id) {
            Ok(process) => process,
            Err(error) => return reply.fail(error),
        };
        if let Some(seen) = params.after_seq
            && seen < process.log().progress().next_seq
        {
            session.acknowledge(self.connection.id(), &params.process_id, seen);
        }
        let connection = Arc::clone(&self.connection);
        self.spawn(reply, |reply| async move {
            process.wait_for_news(&params).await;
            let _reserved = connection.reserve_all().await;
            let response = process.read_now(&params).await;
            let next_seq = response.next_seq;
            let feed = connection.socket().and_then(|socket| socket.own_feed(&process));
            match feed {
                // A position beyond the log does not show which events the client has.
                Some(feed) if params.after_seq.unwrap_or(0) < next_seq => {
                    let seq = next_seq - 1;
                    reply.send_events::<rpc::ProcessRead>(response, Arc::clone(&feed), seq);
                    feed.release(Some(next_seq)).await;
                }
                _ => reply.send::<rpc::ProcessRead>(Ok(response)),
            }
        });
    }

    fn write(&self, session: &Arc<Session>, params: WriteParams, reply: Reply) {
        let answer = |status, reply: Reply| {
            reply.send::<rpc::ProcessWrite>(Ok(WriteResponse { status }));
        };
        match session.find(&params.process_id) {
            Some(process) => self.write_with(&process, params, reply, answer),
            None => answer(WriteStatus::UnknownProcess, reply),
        }
    }

    fn write_legacy(&self, session: &Arc<Session>, params: WriteParams, reply: Reply) {
        let id = params.process_id.clone();
        let process = match find(session, &id) {
            Ok(process) => process,
            Err(error) => return reply.fail(error),
        };
        self.write_with(&process, params, reply, move |status, reply| {
            let closed = || {
                let message = format!("stdin of process {id:?} is closed");
                RpcError::invalid_request(message).about(ErrorSubject::Process(id))
            };
            reply.send::<rpc::CommandExecWrite>(match status {
                WriteStatus::Accepted => Ok(ExecWriteResponse { accepted: true }),
                _ => Err(closed()),
            });
        });
    }

    /// Queues the bytes synchronously, in the order of the requests; only the response may have to
    /// wait.
    fn write_with(
        &self,
        process: &Arc<ManagedProcess>,
        params: WriteParams,
        mut reply: Reply,
        answer: impl FnOnce(WriteStatus, Reply) + Send + 'static,
    ) {
        match process.offer(params) {
            Err(error) => reply.fail(error),
            Ok(Written::Done(status)) => answer(status, reply),
            Ok(Written::Waiting(ticket)) => {
                reply.release_permit();
                let process = Arc::clone(process);
                self.spawn(reply, |reply| async move {
                    answer(process.accepted(ticket).await, reply);
                });
            }
        }
    }

    fn signal(&self, own: &Arc<Session>, params: &SignalParams) -> Result<Empty, RpcError> {
        let session = self.session_named(own, params.session_id.as_deref())?;
        if let Some(process) = session.find(&params.process_id) {
            process.signal(params.signal);
        }
        Ok(Empty {})
    }

    fn terminate(
        &self,
        own: &Arc<Session>,
        params: &TerminateParams,
    ) -> Result<TerminateResponse, RpcError> {
        let session = self.session_named(own, params.session_id.as_deref())?;
        let process = session.find(&params.process_id);
        let running = process.is_some_and(|process| process.terminate(params.mode));
        Ok(TerminateResponse { running })
    }

    fn wait(&self, session: &Arc<Session>, params: WaitParams, reply: Reply) {
        match find(session, &params.process_id) {
            Err(error) => reply.fail(error),
            Ok(process) => self.spawn(reply, |reply| async move {
                let response = process.wait(&params).await;
                reply.send::<rpc::ProcessWait>(Ok(response));
            }),
        }
    }

    fn snapshot(&self, session: &Arc<Session>, process_id: &str, reply: Reply) {
        let connection = Arc::clone(&self.connection);
        match find(session, process_id) {
            Err(error) => reply.fail(error),
            Ok(process) => self.spawn(reply, |reply| async move {
                let _reserved = connection.reserve_all().await;
                reply.send::<rpc::ProcessSnapshot>(Ok(process.snapshot()));
            }),
        }
    }

    fn list(&self, own: &Arc<Session>, params: &ListParams, reply: Reply) {
        let within = params.within_ms.map(Duration::from_millis);
        let processes = match self.session_named(own, params.session_id.as_deref()) {
            Ok(session) => session.processes(),
            Err(error) => return reply.fail(error),
        };
        let connection = Arc::clone(&self.connection);
        self.spawn(reply, |reply| async move {
            // Count descendants before reserving: a keeper that does not respond must not hold up
            // response budget.
            let counted = Counted::new(processes).await;
            let _reserved = connection.reserve_all().await;
            reply.send::<rpc::ProcessList>(counted.list(within));
        });
    }

    fn observe(&self, params: &ObserveParams, mut reply: Reply) {
        let sink = reply.take_sink();
        let observed = self.named(&params.session_id).and_then(|session| {
            let process = find(&session, &params.process_id)?;
            let after = params.after_seq.unwrap_or(0);
            if let Some(socket) = self.connection.socket() {
                socket.observe(&process, &params.session_id, after)?;
            } else {
                let sink = sink.ok_or_else(no_events)?;
                let session_id = params.session_id.clone();
                let reader = FeedReader::Observer { session_id, after };
                self.tasks.spawn_on(&self.runtime, feed_in_process(process, reader, sink));
            }
            Ok(Empty {})
        });
        reply.send::<rpc::ProcessObserve>(observed);
    }

    fn session_named(
        &self,
        own: &Arc<Session>,
        other: Option<&str>,
    ) -> Result<Arc<Session>, RpcError> {
        other.map_or_else(|| Ok(Arc::clone(own)), |id| self.named(id))
    }

    fn named(&self, id: &str) -> Result<Arc<Session>, RpcError> {
        self.state.sessions.named(id, self.connection.principal())
    }
}

/// Applies to every call, including `initialize`.
pub(crate) fn check_role(principal: &Principal, call: &Call) -> Result<(), RpcError> {
    if principal.may(call.effect()) {
        return Ok(());
    }
    let method = call.method().name();
    let message = match call.effect() {
        Effect::Administers => format!(
            "{method} is for the operator: use a token with the role admin, or connect as the \
             server's user to a listener without credentials"
        ),
        _ => format!("{method} is not allowed: the role of this client is observer"),
    };
    Err(RpcError::invalid_request(message).with_kind(ErrorKind::Forbidden))
}

/// Returns the error of a call in the same program that has no sink.
fn no_events() -> RpcError {
    RpcError::internal("the call needs an event sink for its notifications")
}

/// Returns the error of an `initialize` in the same program. Over a socket, the connection's reader
/// handles the method.
fn has_session() -> RpcError {
    RpcError::invalid_request("this client has had a session from the start; omit initialize")
}

fn close_stdin(session: &Session, process_id: &str) -> Result<CloseStdinResponse, RpcError> {
    let process = session.find(process_id);
    let status = process.map_or(Ok(WriteStatus::UnknownProcess), |process| process.close_stdin());
    status.map(|status| CloseStdinResponse { status })
}

fn resize(session: &Session, params: &ResizeParams) -> Result<Empty, RpcError> {
    let size = TerminalSize { rows: params.rows, cols: params.cols };
    find(session, &params.process_id)?.resize(size)?;
    Ok(Empty {})
}

fn find(session: &Session, process_id: &str) -> Result<Arc<ManagedProcess>, RpcError> {
    session.find(process_id).ok_or_else(|| {
        RpcError::invalid_request(format!("process {process_id:?} does not exist in this session"))
            .with_kind(ErrorKind::UnknownProcess)
    })
}

fn sandbox_type(enforcement: Option<&Enforcement>) -> SandboxType {
    match enforcement {
        None => SandboxType::None,
        Some(_) if cfg!(target_os = "macos") => SandboxType::MacosSeatbelt,
        Some(_) => SandboxType::LinuxSeccomp,
    }
}

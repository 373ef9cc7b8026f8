//! What each method does. Nothing here blocks: what has to wait is handed to [`Reader::work`], and work on files to its
//! pool.

use std::sync::Arc;
use std::time::Duration;

use exec_server_protocol::{
    Call, CloseStdinResponse, Empty, Enforcement, EnvironmentInfo, EnvironmentStatus, ExecParams,
    ExecResponse, ExecWriteResponse, ListParams, ObserveParams, ReadParams, ResizeParams, RpcError,
    SandboxType, SessionCloseParams, SessionListResponse, SignalParams, StartParams, StartResponse,
    Status, TerminalSize, TerminateParams, TerminateResponse, WaitParams, WriteParams,
    WriteResponse, WriteStatus, rpc,
};

mod files;
mod http;
mod observing;

use super::reader::Reader;
use super::responder::Responder;
use crate::local::{Counted, LocalProcess, Started, Written, environment_info, start_error};
use crate::sessions::Session;

/// Whoever can ask has been let in.
const READY: EnvironmentStatus = EnvironmentStatus { status: Status::Ready };

impl Reader {
    pub(super) fn handle(&mut self, session: &Arc<Session>, call: Call, to: Responder) {
        match call {
            Call::Initialize(_) => to.fail(&initialized_before()),
            Call::SessionClose(params) => self.session_close(session, &params, to),
            Call::SessionList(_) => to.answer::<rpc::SessionList>(Ok(self.session_list())),
            Call::EnvironmentInfo(_) => to.answer::<rpc::EnvironmentInfo>(self.environment_info()),
            Call::EnvironmentStatus(_) => to.answer::<rpc::EnvironmentStatus>(Ok(READY)),
            Call::ProcessStart(params) => self.start(session, params, to),
            Call::ProcessRead(params) => self.read(session, params, to),
            Call::ProcessWrite(params) => self.write(session, params, to),
            Call::ProcessCloseStdin(params) => {
                to.answer::<rpc::ProcessCloseStdin>(close_stdin(session, &params.process_id));
            }
            Call::ProcessResize(params) => {
                to.answer::<rpc::ProcessResize>(resize(session, &params));
            }
            Call::ProcessSignal(params) => {
                to.answer::<rpc::ProcessSignal>(self.signal(session, &params));
            }
            Call::ProcessTerminate(params) => {
                to.answer::<rpc::ProcessTerminate>(self.terminate(session, &params));
            }
            Call::ProcessWait(params) => self.wait(session, params, to),
            Call::ProcessSnapshot(params) => self.snapshot(session, &params.process_id, to),
            Call::ProcessList(params) => self.list(session, &params, to),
            Call::ProcessObserve(params) => to.answer::<rpc::ProcessObserve>(self.observe(&params)),
            Call::FsReadFile(params) => self.read_file(params, to),
            Call::FsWriteFile(params) => self.file_call::<rpc::FsWriteFile>(params, to),
            Call::FsCreateDirectory(params) => self.file_call::<rpc::FsCreateDirectory>(params, to),
            Call::FsGetMetadata(params) => self.file_call::<rpc::FsGetMetadata>(params, to),
            Call::FsCanonicalize(params) => self.file_call::<rpc::FsCanonicalize>(params, to),
            Call::FsReadDirectory(params) => {
                self.large_file_call::<rpc::FsReadDirectory>(params, to);
            }
            Call::FsWalk(params) => self.large_file_call::<rpc::FsWalk>(params, to),
            Call::FsGlob(params) => self.large_file_call::<rpc::FsGlob>(params, to),
            Call::FsRemove(params) => self.file_call::<rpc::FsRemove>(params, to),
            Call::FsCopy(params) => self.file_call::<rpc::FsCopy>(params, to),
            Call::FsRename(params) => self.file_call::<rpc::FsRename>(params, to),
            Call::FsSymlink(params) => self.file_call::<rpc::FsSymlink>(params, to),
            Call::FsReadLink(params) => self.file_call::<rpc::FsReadLink>(params, to),
            Call::FsSetPermissions(params) => self.file_call::<rpc::FsSetPermissions>(params, to),
            Call::FsOpen(params) => self.open_file(params, to),
            Call::FsReadBlock(params) => self.read_block(&params, to),
            Call::FsCreate(params) => self.create_file(params, to),
            Call::FsWriteBlock(params) => self.write_block(params, to),
            Call::FsClose(params) => self.close_file(&params, to),
            Call::FsWatch(params) => self.watch(params, to),
            Call::FsUnwatch(params) => self.unwatch(&params, to),
            Call::FsSearch(params) => self.search(params, to),
            Call::FsCancelSearch(params) => self.cancel_search(&params, to),
            Call::HttpRequest(params) => self.http_request(params, to),
            Call::HttpCancel(params) => self.http_cancel(&params.request_id, to),
            Call::CommandExec(params) => self.start_legacy(session, params, to),
            Call::CommandExecWrite(params) => self.write_legacy(session, params, to),
            Call::CommandExecTerminate(params) => {
                to.answer::<rpc::CommandExecTerminate>(self.terminate(session, &params));
            }
        }
    }

    fn environment_info(&self) -> Result<EnvironmentInfo, RpcError> {
        environment_info(&self.shared.launcher)
    }

    fn session_list(&self) -> SessionListResponse {
        let sessions = self.shared.sessions.all().iter().map(|session| session.info()).collect();
        SessionListResponse { sessions }
    }

    fn session_close(
        &mut self,
        own: &Arc<Session>,
        params: &SessionCloseParams,
        responder: Responder,
    ) {
        let session = match self.session_named(own, params.session_id.as_deref()) {
            Ok(session) => session,
            Err(error) => return responder.fail(&error),
        };
        let holder = session.connection();
        // Ended here and now; a client that hangs up right away has closed the session all the same.
        let ended = self.shared.end_session(&session);
        // Whoever had it would wait for events that never come.
        if let Some(holder) = holder.filter(|holder| holder.id() != self.connection.id()) {
            holder.give_up();
        }
        self.work(responder, |responder| async move {
            ended.await;
            responder.answer::<rpc::SessionClose>(Ok(Empty {}));
        });
    }

    fn start(&mut self, session: &Arc<Session>, params: StartParams, responder: Responder) {
        let (id, claim_name) = (params.process_id.clone(), params.claim_name);
        let timeout_ms = params.timeout_ms;
        let shared = Arc::clone(&self.shared);
        let start = || LocalProcess::start(shared.start_context(), params);
        self.start_with(session, (id, claim_name), start, responder, move |process, responder| {
            let enforcement = process.enforcement();
            let response = StartResponse {
                process_id: process.id().to_owned(),
                sandbox_type: sandbox_type(enforcement.as_ref()),
                enforcement,
                timeout_ms,
            };
            responder.answer::<rpc::ProcessStart>(Ok(response));
        });
    }

    fn start_legacy(&mut self, session: &Arc<Session>, params: ExecParams, responder: Responder) {
        let id = params.process_id.clone();
        let shared = Arc::clone(&self.shared);
        let start = || LocalProcess::start_legacy(shared.start_context(), params);
        self.start_with(session, (id, false), start, responder, |process, responder| {
            let process_id = process.id().to_owned();
            let (exit_code, stdout, stderr) = (None, None, None);
            let response = ExecResponse { process_id, running: true, exit_code, stdout, stderr };
            responder.answer::<rpc::CommandExec>(Ok(response));
        });
    }

    /// The session's own task answers: it outlives this connection, and so does the clean-up of a
    /// start that fails.
    fn start_with(
        &mut self,
        session: &Arc<Session>,
        (process_id, claim_name): (String, bool),
        start: impl FnOnce() -> Result<Started, RpcError>,
        responder: Responder,
        answer: impl FnOnce(&LocalProcess, Responder) + Send + 'static,
    ) {
        let holder = self.connection.id();
        match self.shared.admit(session, holder, &process_id, claim_name, start) {
            Err(error) => responder.fail(&error),
            Ok((process, outcome)) => {
                let started = Arc::clone(&process);
                self.shared.look_after(Arc::clone(session), process, outcome, move |outcome| {
                    match outcome {
                        Ok(()) => answer(&started, responder),
                        Err(error) => responder.fail(&start_error(&process_id, &error)),
                    }
                });
            }
        }
    }

    fn read(&mut self, session: &Arc<Session>, params: ReadParams, responder: Responder) {
        let process = match find(session, &params.process_id) {
            Ok(process) => process,
            Err(error) => return responder.fail(&error),
        };
        if let Some(seen) = params.after_seq
            && seen < process.log().progress().next_seq
        {
            session.acknowledge(self.connection.id(), &params.process_id, seen);
        }
        let connection = Arc::clone(&self.connection);
        self.work(responder, |responder| async move {
            process.wait_for_news(&params).await;
            let _room = connection.all_room().await;
            let response = process.read_now(&params).await;
            let next_seq = response.next_seq;
            let feed = connection.own_feed(&process);
            match feed {
                // A place that the log has not reached says nothing about what the client has.
                Some(feed) if params.after_seq.unwrap_or(0) < next_seq => {
                    let feed_too = Arc::clone(&feed);
                    responder.answer_events::<rpc::ProcessRead>(&response, feed_too, next_seq - 1);
                    feed.release(Some(next_seq)).await;
                }
                _ => responder.answer::<rpc::ProcessRead>(Ok(response)),
            }
        });
    }

    fn write(&mut self, session: &Arc<Session>, params: WriteParams, responder: Responder) {
        let answer = |status, responder: Responder| {
            responder.answer::<rpc::ProcessWrite>(Ok(WriteResponse { status }));
        };
        match session.find(&params.process_id) {
            Some(process) => self.write_with(&process, params, responder, answer),
            None => answer(WriteStatus::UnknownProcess, responder),
        }
    }

    fn write_legacy(&mut self, session: &Arc<Session>, params: WriteParams, responder: Responder) {
        let id = params.process_id.clone();
        let process = match find(session, &id) {
            Ok(process) => process,
            Err(error) => return responder.fail(&error),
        };
        self.write_with(&process, params, responder, move |status, responder| {
            let closed = || RpcError::invalid_request(format!("process {id:?}: stdin is closed"));
            responder.answer::<rpc::CommandExecWrite>(match status {
                WriteStatus::Accepted => Ok(ExecWriteResponse { accepted: true }),
                _ => Err(closed()),
            });
        });
    }

    /// The bytes are queued here and now, in the order of the requests; only the answer may wait.
    fn write_with(
        &mut self,
        process: &Arc<LocalProcess>,
        params: WriteParams,
        mut responder: Responder,
        answer: impl FnOnce(WriteStatus, Responder) + Send + 'static,
    ) {
        match process.offer(params) {
            Err(error) => responder.fail(&error),
            Ok(Written::Done(status)) => answer(status, responder),
            Ok(Written::Waiting(ticket)) => {
                responder.release_place();
                let process = Arc::clone(process);
                self.work(responder, |responder| async move {
                    answer(process.accepted(ticket).await, responder);
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

    fn wait(&mut self, session: &Arc<Session>, params: WaitParams, responder: Responder) {
        match find(session, &params.process_id) {
            Err(error) => responder.fail(&error),
            Ok(process) => self.work(responder, |responder| async move {
                let response = process.wait(&params).await;
                responder.answer::<rpc::ProcessWait>(Ok(response));
            }),
        }
    }

    fn snapshot(&mut self, session: &Arc<Session>, process_id: &str, responder: Responder) {
        let connection = Arc::clone(&self.connection);
        match find(session, process_id) {
            Err(error) => responder.fail(&error),
            Ok(process) => self.work(responder, |responder| async move {
                let _room = connection.all_room().await;
                responder.answer::<rpc::ProcessSnapshot>(Ok(process.snapshot()));
            }),
        }
    }

    fn list(&mut self, own: &Arc<Session>, params: &ListParams, responder: Responder) {
        let within = params.within_ms.map(Duration::from_millis);
        let processes = match self.session_named(own, params.session_id.as_deref()) {
            Ok(session) => session.processes(),
            Err(error) => return responder.fail(&error),
        };
        let connection = Arc::clone(&self.connection);
        self.work(responder, |responder| async move {
            // Whoever does not answer the question holds up nobody's room.
            let counted = Counted::new(processes).await;
            let _room = connection.all_room().await;
            responder.answer::<rpc::ProcessList>(counted.list(within));
        });
    }

    fn observe(&self, params: &ObserveParams) -> Result<Empty, RpcError> {
        let session = self.shared.sessions.named(&params.session_id)?;
        let process = find(&session, &params.process_id)?;
        let after = params.after_seq.unwrap_or(0);
        self.connection.observe(&process, &params.session_id, after)?;
        Ok(Empty {})
    }

    fn session_named(
        &self,
        own: &Arc<Session>,
        other: Option<&str>,
    ) -> Result<Arc<Session>, RpcError> {
        other.map_or_else(|| Ok(Arc::clone(own)), |id| self.shared.sessions.named(id))
    }
}

fn initialized_before() -> RpcError {
    RpcError::invalid_request("initialize was called before")
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

fn find(session: &Session, process_id: &str) -> Result<Arc<LocalProcess>, RpcError> {
    session.find(process_id).ok_or_else(|| {
        RpcError::invalid_request(format!("process {process_id:?} is not known in this session"))
            .with_kind("unknownProcess")
    })
}

fn sandbox_type(enforcement: Option<&Enforcement>) -> SandboxType {
    match enforcement {
        None => SandboxType::None,
        Some(_) if cfg!(target_os = "macos") => SandboxType::MacosSeatbelt,
        Some(_) => SandboxType::LinuxSeccomp,
    }
}

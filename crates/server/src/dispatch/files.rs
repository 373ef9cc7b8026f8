//! File content and file names. All work on storage runs in the pool, which also builds the
//! response, since that may be large. Work that has not begun when its connection ends is dropped.
//! Writes to an upload and its close are not dropped, since the client may resume the upload.

use std::sync::Arc;

use exec_server_protocol::{
    Empty, FsCloseParams, FsCloseResponse, FsCreateParams, FsHandleResponse, FsOpenParams,
    FsReadBlockParams, FsReadFileParams, FsWriteBlockParams, RpcError, rpc,
};
use tokio::runtime;

use super::resources::FileHandle;
use super::{Dispatcher, Reply};
use crate::adapter::{
    FileCall, LargeFileCall, PolicyScoped, Reading, Upload, check_block_len, open, read_block,
};
use crate::connection::{ClientConnection, Reservation};
use crate::server::ServerState;
use crate::sessions::Session;

/// Larger blocks reserve response budget first.
const SMALL_BYTES: usize = 64 << 10;

impl Dispatcher {
    pub(super) fn file_call<M: FileCall>(
        &self,
        session: &Session,
        params: M::Params,
        mut reply: Reply,
    ) {
        let connection = Arc::clone(&self.connection);
        self.file_executors(session).run(params, move |scoped| {
            if !reply.is_wanted() {
                return;
            }
            reply.begin_file_work();
            let done = scoped.and_then(|scoped| M::run(scoped, &connection.resources.files.stop));
            reply.send::<M>(done);
        });
    }

    /// Sends a small response at once. A large one reserves budget for names before they are
    /// collected, and response budget before it is sent. So a call that hangs on dead storage takes
    /// no response budget from others, and a client that does not read its responses costs bounded
    /// memory.
    pub(super) fn large_file_call<M: LargeFileCall>(
        &self,
        session: &Session,
        params: M::Params,
        mut reply: Reply,
    ) {
        let (state, connection) = (Arc::clone(&self.state), Arc::clone(&self.connection));
        let runtime = self.runtime.clone();
        self.file_executors(session).run(params, move |scoped| {
            if !reply.is_wanted() {
                return;
            }
            reply.begin_file_work();
            let scoped = match scoped {
                Ok(scoped) => scoped,
                Err(error) => return reply.fail(error),
            };
            match M::run_bounded(&scoped.params, &connection.resources.files.stop) {
                Ok(Some(small)) => return reply.send::<M>(Ok(small)),
                Err(error) => return reply.fail(error),
                Ok(None) => {}
            }
            let call = LargeCall::<M> { state, connection, runtime, scoped, reply };
            match call.connection.try_reserve_names(M::LARGEST_ANSWER) {
                Some(reserved) => call.run(reserved),
                None => call.wait_for_budget(),
            }
        });
    }

    /// A large file is read at once if there is budget for its response; otherwise the request
    /// waits for budget.
    pub(super) fn read_file(&self, session: &Session, params: FsReadFileParams, mut reply: Reply) {
        let (state, connection) = (Arc::clone(&self.state), Arc::clone(&self.connection));
        let runtime = self.runtime.clone();
        self.file_executors(session).run(params, move |scoped| {
            if !reply.is_wanted() {
                return;
            }
            reply.begin_file_work();
            let begun = scoped.and_then(|scoped| {
                let reading = Reading::begin(&scoped)?;
                Ok((reading, scoped.executor))
            });
            let (file, executor) = match begun {
                Ok((Reading::Done(content), _)) => return reply.send_file(content),
                Ok((Reading::Large(file), executor)) => match reply.check_bytes(file.size()) {
                    Ok(()) => (file, executor),
                    Err(error) => return reply.fail(error),
                },
                Err(error) => return reply.fail(error),
            };
            if let Some(reserved) = connection.try_reserve(file.expected_bytes()) {
                reply.send_large_file(file);
                return drop(reserved);
            }
            let coming = executor.expect_job();
            reply.pause_file_work();
            state.spawn_on(&runtime, async move {
                let reserved = connection.reserve(file.expected_bytes()).await;
                executor.run(move |kept| {
                    reply.begin_file_work();
                    match kept {
                        Ok(()) if reply.is_wanted() => reply.send_large_file(file),
                        Ok(()) => {}
                        Err(error) => reply.fail(error),
                    }
                    drop(reserved);
                });
                drop(coming);
            });
        });
    }

    pub(super) fn open_file(&self, session: &Session, params: FsOpenParams, mut reply: Reply) {
        let claim = match self.connection.resources.files.handles.claim(params.handle_id.clone()) {
            Ok(claim) => claim,
            Err(error) => return reply.fail(error),
        };
        self.file_executors(session).run(params, move |scoped| {
            if !reply.is_wanted() {
                return;
            }
            reply.begin_file_work();
            let response = scoped.and_then(|scoped| {
                let (file, metadata) = open(&scoped)?;
                let params = scoped.params;
                claim
                    .fill(FileHandle::Reading(Arc::new(file)))
                    .map_err(|_| closed("handleId", &params.handle_id))?;
                claim.keep();
                let metadata = params.details.then_some(metadata);
                Ok(FsHandleResponse { handle_id: params.handle_id, metadata, size: None })
            });
            reply.send::<rpc::FsOpen>(response);
        });
    }

    pub(super) fn read_block(&self, params: &FsReadBlockParams, reply: Reply) {
        let asked = self.connection.resources.files.reading(&params.handle_id);
        let (file, len) = match asked.and_then(|file| Ok((file, check_block_len(params.len)?))) {
            Ok(asked) => asked,
            Err(error) => return reply.fail(error),
        };
        let offset = params.offset;
        let read = move |mut reply: Reply, thread: Result<(), RpcError>| {
            if !reply.is_wanted() {
                return;
            }
            reply.begin_file_work();
            match thread.and_then(|()| read_block(&file, offset, len)) {
                Ok((bytes, eof)) => reply.send_block(bytes, eof),
                Err(error) => reply.fail(error),
            }
        };
        let pool = self.state.files.clone();
        let reserved = match len <= SMALL_BYTES {
            true => Some(Reservation::default()),
            false => self.connection.try_reserve(len),
        };
        if let Some(reserved) = reserved {
            return pool.run_or_tell(move |thread| {
                read(reply, thread);
                drop(reserved);
            });
        }
        let (connection, coming) = (Arc::clone(&self.connection), pool.expect_job());
        self.spawn(reply, move |reply| async move {
            let reserved = connection.reserve(len).await;
            pool.run_or_tell(move |thread| {
                read(reply, thread);
                drop(reserved);
            });
            drop(coming);
        });
    }

    pub(super) fn create_file(&self, session: &Session, params: FsCreateParams, mut reply: Reply) {
        let claim = match self.connection.resources.files.handles.claim(params.handle_id.clone()) {
            Ok(claim) => claim,
            Err(error) => return reply.fail(error),
        };
        let handle_id = params.handle_id.clone();
        self.file_executors(session).run(params, move |scoped| {
            if !reply.is_wanted() {
                return;
            }
            reply.begin_file_work();
            let response = scoped.and_then(Upload::create).and_then(|upload| {
                let size = Some(upload.written_before());
                claim
                    .fill(FileHandle::Writing(Arc::new(upload)))
                    .map_err(|_| closed("handleId", &handle_id))?;
                claim.keep();
                Ok(FsHandleResponse { handle_id, metadata: None, size })
            });
            reply.send::<rpc::FsCreate>(response);
        });
    }

    pub(super) fn write_block(&self, params: FsWriteBlockParams, mut reply: Reply) {
        match self.connection.resources.files.writing(&params.handle_id) {
            Err(error) => reply.fail(error),
            Ok(upload) => {
                let executor = upload.executor().clone();
                let block = upload.expect_block();
                executor.run(move |kept| {
                    reply.begin_file_work();
                    let written = kept.and_then(|()| block.write(params.offset, &params.chunk));
                    reply.send::<rpc::FsWriteBlock>(written.map(|()| Empty {}));
                });
            }
        }
    }

    /// A read handle closes immediately; the close of an upload is answered once the file has been
    /// committed, discarded or kept for a resume.
    pub(super) fn close_file(&self, params: &FsCloseParams, mut reply: Reply) {
        let (discard, keep) = (params.discard, params.keep);
        match self.connection.resources.files.handles.remove(&params.handle_id) {
            Some(FileHandle::Writing(upload)) => {
                if !discard && !keep {
                    reply.note_file_change(upload.path());
                }
                let executor = upload.executor().clone();
                executor.run(move |kept| {
                    reply.begin_file_work();
                    let ended = kept.and_then(|()| {
                        if discard {
                            upload.discard();
                        } else if keep {
                            upload.abandon();
                        } else {
                            return upload.commit();
                        }
                        Ok(FsCloseResponse::default())
                    });
                    reply.send::<rpc::FsClose>(ended);
                });
            }
            Some(FileHandle::Reading(file)) => {
                self.state.files.run(move || drop(file));
                reply.send::<rpc::FsClose>(Ok(FsCloseResponse::default()));
            }
            None => reply.send::<rpc::FsClose>(Ok(FsCloseResponse::default())),
        }
    }
}

struct LargeCall<M: LargeFileCall> {
    state: Arc<ServerState>,
    connection: Arc<ClientConnection>,
    runtime: runtime::Handle,
    scoped: PolicyScoped<M::Params>,
    reply: Reply,
}

impl<M: LargeFileCall> LargeCall<M> {
    fn wait_for_budget(mut self) {
        self.reply.pause_file_work();
        let executor = self.scoped.executor.clone();
        let coming = executor.expect_job();
        let (state, runtime) = (Arc::clone(&self.state), self.runtime.clone());
        state.spawn_on(&runtime, async move {
            let reserved = self.connection.reserve_names(M::LARGEST_ANSWER).await;
            executor.run(move |kept| match kept {
                Ok(()) if !self.reply.is_wanted() => {}
                Ok(()) => {
                    self.reply.begin_file_work();
                    self.run(reserved);
                }
                Err(error) => self.reply.fail(error),
            });
            drop(coming);
        });
    }

    /// The budget is released when the response is handed over.
    fn run(self, mut names: Reservation) {
        let Self { state, connection, runtime, scoped, reply } = self;
        let response = reply.prepare::<M>(M::run(scoped, &connection.resources.files.stop));
        names.set_bytes(response.len());
        let coming = state.files.expect_job();
        state.spawn_on(&runtime, async move {
            let permit = connection.reserve_to_send(response.len()).await;
            // From here on the outbox accounts for the response.
            names.set_bytes(0);
            response.send();
            drop((permit, names, coming));
        });
    }
}

pub(super) fn closed(member: &str, id: &str) -> RpcError {
    RpcError::invalid_request(format!("{member} {id:?} was closed while it was being opened"))
}

//! Content and names of files. Whatever touches storage is given to the pool, and the answer is made there too: it may be
//! large. Work that has not begun when its connection ends is dropped; only the blocks and the end of an upload are not,
//! since its client may come back for it.

use std::sync::Arc;

use exec_server_protocol::{
    Empty, FsCloseParams, FsCloseResponse, FsCreateParams, FsHandleResponse, FsOpenParams,
    FsReadBlockParams, FsReadFileParams, FsWriteBlockParams, RpcError, rpc,
};
use tokio::runtime;

use super::super::files::Handle;
use super::super::handle::{ConnectionHandle, Room};
use super::super::reader::Reader;
use super::super::responder::Responder;
use crate::local::{
    Admitted, FileCall, LargeFileCall, NoThread, Reading, Upload, check_block_len, no_thread, open,
    read_block,
};
use crate::server::Shared;

/// What is answered without asking whether there is room for it.
const SMALL_BYTES: usize = 64 << 10;

impl Reader {
    pub(super) fn file_call<M: FileCall>(&mut self, params: M::Params, responder: Responder) {
        let connection = Arc::clone(&self.connection);
        self.shared.file_work.run(params, move |admitted| {
            if !responder.is_wanted() {
                return;
            }
            let done = admitted.and_then(|admitted| M::run(admitted, &connection.files.stop));
            responder.answer::<M>(done);
        });
    }

    /// For what may have a large answer. As far as a small one goes it is done at once; the rest waits for room. So what hangs on dead
    /// storage takes no room from others, and a client that asks and does not read costs a bounded memory.
    pub(super) fn large_file_call<M: LargeFileCall>(
        &mut self,
        params: M::Params,
        responder: Responder,
    ) {
        let (shared, connection) = (Arc::clone(&self.shared), Arc::clone(&self.connection));
        let runtime = runtime::Handle::current();
        self.shared.file_work.run(params, move |admitted| {
            if !responder.is_wanted() {
                return;
            }
            let admitted = match admitted {
                Ok(admitted) => admitted,
                Err(error) => return responder.fail(&error),
            };
            match M::run_if_small(&admitted.params, &connection.files.stop) {
                Ok(Some(small)) => return responder.answer::<M>(Ok(small)),
                Err(error) => return responder.fail(&error),
                Ok(None) => {}
            }
            let call = LargeCall::<M> { shared, connection, runtime, admitted, responder };
            match call.connection.room_for_names_now(M::LARGEST_ANSWER) {
                Some(room) => call.run(room),
                None => call.wait_for_room(),
            }
        });
    }

    pub(super) fn read_file(&mut self, params: FsReadFileParams, responder: Responder) {
        let (shared, connection) = (Arc::clone(&self.shared), Arc::clone(&self.connection));
        let runtime = runtime::Handle::current();
        self.shared.file_work.run(params, move |admitted| {
            if !responder.is_wanted() {
                return;
            }
            let begun = admitted.and_then(|admitted| {
                let reading = Reading::begin(&admitted)?;
                Ok((reading, admitted.lane))
            });
            let (file, lane) = match begun {
                Ok((Reading::Done(content), _)) => {
                    return responder.answer_bytes("dataBase64", &content, "");
                }
                Ok((Reading::Large(file), lane)) => match responder.check_bytes(file.size()) {
                    Ok(()) => (file, lane),
                    Err(error) => return responder.fail(&error),
                },
                Err(error) => return responder.fail(&error),
            };
            let coming = lane.announce();
            shared.spawn_on(&runtime, async move {
                let room = connection.room_for(file.expected_bytes()).await;
                lane.run(move |kept| {
                    if let Err(error) = kept {
                        return responder.fail(&error);
                    }
                    if !responder.is_wanted() {
                        return;
                    }
                    let expected = file.expected_bytes();
                    responder.answer_pieces("dataBase64", expected, |take| file.finish(take));
                    drop(room);
                });
                drop(coming);
            });
        });
    }

    pub(super) fn open_file(&mut self, params: FsOpenParams, responder: Responder) {
        let claim = match self.connection.files.handles.claim(params.handle_id.clone()) {
            Ok(claim) => claim,
            Err(error) => return responder.fail(&error),
        };
        self.shared.file_work.run(params, move |admitted| {
            if !responder.is_wanted() {
                return;
            }
            let response = admitted.and_then(|admitted| {
                let (file, metadata) = open(&admitted)?;
                let params = admitted.params;
                claim
                    .fill(Handle::Reading(Arc::new(file)))
                    .map_err(|_| closed(&params.handle_id))?;
                claim.keep();
                let metadata = params.details.then_some(metadata);
                Ok(FsHandleResponse { handle_id: params.handle_id, metadata, size: None })
            });
            responder.answer::<rpc::FsOpen>(response);
        });
    }

    pub(super) fn read_block(&mut self, params: &FsReadBlockParams, responder: Responder) {
        let asked = self.connection.files.reading(&params.handle_id);
        let (file, len) = match asked.and_then(|file| Ok((file, check_block_len(params.len)?))) {
            Ok(asked) => asked,
            Err(error) => return responder.fail(&error),
        };
        let offset = params.offset;
        let read = move |responder: Responder, thread: Result<(), NoThread>| {
            if !responder.is_wanted() {
                return;
            }
            match thread.map_err(no_thread).and_then(|()| read_block(&file, offset, len)) {
                Ok((bytes, eof)) => {
                    let more = if eof { r#","eof":true"# } else { r#","eof":false"# };
                    responder.answer_bytes("chunk", &bytes, more);
                }
                Err(error) => responder.fail(&error),
            }
        };
        let pool = self.shared.files.clone();
        if len <= SMALL_BYTES {
            return pool.run_or_tell(move |thread| read(responder, thread));
        }
        let (connection, coming) = (Arc::clone(&self.connection), pool.announce());
        self.work(responder, move |responder| async move {
            let room = connection.room_for(len).await;
            pool.run_or_tell(move |thread| {
                read(responder, thread);
                drop(room);
            });
            drop(coming);
        });
    }

    pub(super) fn create_file(&mut self, params: FsCreateParams, responder: Responder) {
        let claim = match self.connection.files.handles.claim(params.handle_id.clone()) {
            Ok(claim) => claim,
            Err(error) => return responder.fail(&error),
        };
        let handle_id = params.handle_id.clone();
        self.shared.file_work.run(params, move |admitted| {
            if !responder.is_wanted() {
                return;
            }
            let response = admitted.and_then(Upload::create).and_then(|upload| {
                let size = Some(upload.written_before());
                claim.fill(Handle::Writing(Arc::new(upload))).map_err(|_| closed(&handle_id))?;
                claim.keep();
                Ok(FsHandleResponse { handle_id, metadata: None, size })
            });
            responder.answer::<rpc::FsCreate>(response);
        });
    }

    pub(super) fn write_block(&mut self, params: FsWriteBlockParams, responder: Responder) {
        match self.connection.files.writing(&params.handle_id) {
            Err(error) => responder.fail(&error),
            Ok(upload) => {
                let lane = upload.lane().clone();
                let block = upload.expect_block();
                lane.run(move |kept| {
                    let written = kept.and_then(|()| block.write(params.offset, &params.chunk.0));
                    responder.answer::<rpc::FsWriteBlock>(written.map(|()| Empty {}));
                });
            }
        }
    }

    /// Closing what is read can be waited for by nobody; the end of what was written is the answer.
    pub(super) fn close_file(&mut self, params: &FsCloseParams, responder: Responder) {
        let (discard, keep) = (params.discard, params.keep);
        match self.connection.files.handles.remove(&params.handle_id) {
            Some(Handle::Writing(upload)) => {
                let lane = upload.lane().clone();
                lane.run(move |kept| {
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
                    responder.answer::<rpc::FsClose>(ended);
                });
            }
            Some(Handle::Reading(file)) => {
                self.shared.files.run(move || drop(file));
                responder.answer::<rpc::FsClose>(Ok(FsCloseResponse::default()));
            }
            None => responder.answer::<rpc::FsClose>(Ok(FsCloseResponse::default())),
        }
    }
}

/// A call that will have a large answer.
struct LargeCall<M: LargeFileCall> {
    shared: Arc<Shared>,
    connection: Arc<ConnectionHandle>,
    runtime: runtime::Handle,
    admitted: Admitted<M::Params>,
    responder: Responder,
}

impl<M: LargeFileCall> LargeCall<M> {
    fn wait_for_room(self) {
        let lane = self.admitted.lane.clone();
        let coming = lane.announce();
        let (shared, runtime) = (Arc::clone(&self.shared), self.runtime.clone());
        shared.spawn_on(&runtime, async move {
            let room = self.connection.room_for_names(M::LARGEST_ANSWER).await;
            lane.run(move |kept| match kept {
                Ok(()) if !self.responder.is_wanted() => {}
                Ok(()) => self.run(room),
                Err(error) => self.responder.fail(&error),
            });
            drop(coming);
        });
    }

    /// The room is free again when the answer is handed over.
    fn run(self, mut names: Room) {
        let Self { shared, connection, runtime, admitted, responder } = self;
        let answer = responder.encode::<M>(M::run(admitted, &connection.files.stop));
        names.set_bytes(answer.len());
        let coming = shared.files.announce();
        shared.spawn_on(&runtime, async move {
            let room = connection.room_to_send(answer.len()).await;
            // From here on the outbox counts it.
            names.set_bytes(0);
            answer.send();
            drop((room, names, coming));
        });
    }
}

pub(super) fn closed(name: &str) -> RpcError {
    RpcError::invalid_request(format!("{name:?} was closed before it was open"))
}

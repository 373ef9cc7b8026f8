//! `fs/*`. Whatever touches storage is given to the pool, and the answer is made there too: it may be large.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use exec_server_protocol::{
    ChangedNotification, Empty, FileChange, FsCloseParams, FsCloseResponse, FsCreateParams,
    FsHandleResponse, FsOpenParams, FsPathResponse, FsReadBlockParams, FsReadFileParams,
    FsSearchParams, FsWatchParams, FsWriteBlockParams, PathUri, RpcError,
    SearchResultsNotification, notification, rpc,
};
use tokio::runtime;
use tokio::sync::oneshot;

use super::super::files::Handle;
use super::super::handle::ConnectionHandle;
use super::super::reader::Reader;
use super::super::responder::Responder;
use crate::local::{
    FileCall, FilePool, LocalChanges, Reading, Searching, Upload, Watching, check_block_len, open,
    read_block,
};

/// Blocks that are read without asking whether there is room for them.
const SMALL_BLOCK: usize = 64 << 10;

impl Reader {
    pub(super) fn file_call<M: FileCall>(&mut self, params: M::Params, responder: Responder) {
        self.shared.files.run(move || responder.answer::<M>(M::run(params)));
    }

    pub(super) fn read_file(&mut self, params: FsReadFileParams, responder: Responder) {
        let (shared, connection) = (Arc::clone(&self.shared), Arc::clone(&self.connection));
        let runtime = runtime::Handle::current();
        self.shared.files.run(move || {
            let file = match Reading::begin(&params) {
                Ok(Reading::Done(content)) => return answer_file(responder, Ok(content)),
                Ok(Reading::Large(file)) => file,
                Err(error) => return responder.fail(&error),
            };
            let pool = shared.files.clone();
            shared.spawn_on(&runtime, async move {
                let room = connection.room_for(file.expected_bytes()).await;
                pool.run(move || {
                    answer_file(responder, file.finish());
                    drop(room);
                });
            });
        });
    }

    pub(super) fn open_file(&mut self, params: FsOpenParams, responder: Responder) {
        let claim = match self.connection.files.handles.claim(params.handle_id.clone()) {
            Ok(claim) => claim,
            Err(error) => return responder.fail(&error),
        };
        self.shared.files.run(move || {
            let response = open(&params).and_then(|(file, metadata)| {
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
        let read = move |responder: Responder| match read_block(&file, offset, len) {
            Ok((bytes, eof)) => {
                let more = if eof { r#","eof":true"# } else { r#","eof":false"# };
                responder.answer_bytes("chunk", &bytes, more);
            }
            Err(error) => responder.fail(&error),
        };
        let pool = self.shared.files.clone();
        if len <= SMALL_BLOCK {
            return pool.run(move || read(responder));
        }
        let connection = Arc::clone(&self.connection);
        self.work(responder, move |responder| async move {
            let room = connection.room_for(len).await;
            pool.run(move || {
                read(responder);
                drop(room);
            });
        });
    }

    pub(super) fn create_file(&mut self, params: FsCreateParams, responder: Responder) {
        let claim = match self.connection.files.handles.claim(params.handle_id.clone()) {
            Ok(claim) => claim,
            Err(error) => return responder.fail(&error),
        };
        self.shared.files.run(move || {
            let handle_id = params.handle_id.clone();
            let response = Upload::create(params).and_then(|upload| {
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
            Ok(upload) => self.shared.files.run(move || {
                let written = upload.write_block(params.offset, &params.chunk.0);
                responder.answer::<rpc::FsWriteBlock>(written.map(|()| Empty {}));
            }),
        }
    }

    /// Closing what is read can be waited for by nobody; the end of what was written is the answer.
    pub(super) fn close_file(&mut self, params: &FsCloseParams, responder: Responder) {
        let discard = params.discard;
        match self.connection.files.handles.remove(&params.handle_id) {
            Some(Handle::Writing(upload)) => self.shared.files.run(move || {
                let response = if discard {
                    upload.discard();
                    Ok(FsCloseResponse::default())
                } else {
                    upload.commit()
                };
                responder.answer::<rpc::FsClose>(response);
            }),
            Some(Handle::Reading(file)) => {
                self.shared.files.run(move || drop(file));
                responder.answer::<rpc::FsClose>(Ok(FsCloseResponse::default()));
            }
            None => responder.answer::<rpc::FsClose>(Ok(FsCloseResponse::default())),
        }
    }

    pub(super) fn watch(&mut self, params: FsWatchParams, responder: Responder) {
        let claim = match self.connection.files.watch_names.claim(params.watch_id.clone()) {
            Ok(claim) => claim,
            Err(error) => return responder.fail(&error),
        };
        let (shared, connection) = (Arc::clone(&self.shared), Arc::clone(&self.connection));
        let runtime = runtime::Handle::current();
        self.shared.files.run(move || {
            let (stop, stopped) = oneshot::channel();
            let watching = connection.files.watches.watch(&params).and_then(|watching| {
                claim.fill(stop).map_err(|_| closed(&params.watch_id))?;
                claim.keep();
                Ok(watching)
            });
            match watching {
                Err(error) => responder.fail(&error),
                Ok(watching) => {
                    let path = watching.path().clone();
                    responder.answer::<rpc::FsWatch>(Ok(FsPathResponse { path }));
                    let pool = shared.files.clone();
                    let report = report(watching, params.watch_id, connection, stopped, pool);
                    shared.spawn_on(&runtime, report);
                }
            }
        });
    }

    pub(super) fn search(&mut self, params: FsSearchParams, responder: Responder) {
        let search_id = params.search_id.clone();
        let claimed = self.connection.files.searches.claim(search_id.clone());
        let claim = match claimed {
            Ok(claim) => claim,
            Err(error) => return responder.fail(&error),
        };
        let cancelled = Arc::new(AtomicBool::new(false));
        // The name was taken just now.
        let _ = claim.fill(Arc::clone(&cancelled));
        let connection = Arc::clone(&self.connection);
        let runtime = runtime::Handle::current();
        self.shared.files.run(move || {
            let send = |results| {
                let found = SearchResultsNotification { search_id: search_id.clone(), results };
                // Whoever does not read holds the search back, on its own thread.
                runtime.block_on(connection.outbox().room());
                connection.outbox().push(notification("fs/searchResults", &found));
                match connection.outbox().is_closed() {
                    true => ControlFlow::Break(()),
                    false => ControlFlow::Continue(()),
                }
            };
            let ended = Searching::new(params).and_then(|search| search.run(&cancelled, send));
            drop(claim);
            responder.answer::<rpc::FsSearch>(ended);
        });
    }
}

/// Tells a client what happens below a path, until it unwatches or is gone. A client that does not read gets, later, one
/// change that says that some were lost.
async fn report(
    mut watching: Watching,
    watch_id: String,
    connection: Arc<ConnectionHandle>,
    mut stopped: oneshot::Receiver<()>,
    pool: FilePool,
) {
    loop {
        let changes = tokio::select! {
            changes = watching.next() => changes,
            _ = &mut stopped => None,
        };
        let Some(LocalChanges { changes, rescan }) = changes else { break };
        let changed_paths = changed_paths(&changes);
        let watch_id = watch_id.clone();
        let changed = ChangedNotification { watch_id, changed_paths, changes, rescan };
        let text = notification("fs/changed", &changed);
        tokio::select! {
            () = connection.outbox().room() => connection.outbox().push(text),
            _ = &mut stopped => break,
        }
    }
    pool.run(move || drop(watching));
}

fn changed_paths(changes: &[FileChange]) -> Vec<PathUri> {
    let mut paths: Vec<_> = changes
        .iter()
        .flat_map(|change| change.from.iter().chain([&change.path]))
        .cloned()
        .collect();
    paths.sort();
    paths.dedup();
    paths
}

fn answer_file(responder: Responder, content: Result<Vec<u8>, RpcError>) {
    match content {
        Ok(content) => responder.answer_bytes("dataBase64", &content, ""),
        Err(error) => responder.fail(&error),
    }
}

fn closed(name: &str) -> RpcError {
    RpcError::invalid_request(format!("{name:?} was closed before it was open"))
}

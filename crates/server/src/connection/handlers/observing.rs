//! `fs/watch` and `fs/search`: what is told before, or long after, the answer.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use exec_server_protocol::{
    ChangedNotification, Empty, FileChange, FsCancelSearchParams, FsPathResponse, FsSearchParams,
    FsUnwatchParams, FsWatchParams, PathUri, RpcError, SearchResultsNotification, notification,
    rpc,
};
use tokio::runtime;
use tokio::sync::oneshot;

use super::super::files::WatchTask;
use super::super::handle::ConnectionHandle;
use super::super::reader::Reader;
use super::super::responder::Responder;
use super::files::closed;
use crate::local::no_thread;
use crate::local::{Admitted, LocalChanges, LocalWatch, Searching};

/// How long a search waits for a client that does not read. It has a thread, and there are only so many.
const READER_PATIENCE: Duration = Duration::from_secs(60);
/// Paths in one `fs/changed`, which has each of them twice.
const MAX_CHANGED_BYTES: usize = 4 << 20;

impl Reader {
    pub(super) fn watch(&mut self, params: FsWatchParams, responder: Responder) {
        let claim = match self.connection.files.watch_names.claim(params.watch_id.clone()) {
            Ok(claim) => claim,
            Err(error) => return responder.fail(&error),
        };
        let (shared, connection) = (Arc::clone(&self.shared), Arc::clone(&self.connection));
        let runtime = runtime::Handle::current();
        let watch_id = params.watch_id.clone();
        let watches = Arc::clone(&connection.files.watches);
        let work = self.shared.file_work.clone();
        let watch = move |admitted: Result<Admitted<FsWatchParams>, RpcError>| {
            let (stop, stopped) = oneshot::channel();
            let (end, ended) = oneshot::channel();
            let watching = admitted.and_then(|admitted| {
                let watching = connection.files.watches.watch(admitted)?;
                let task = WatchTask { stop, ended };
                claim.fill(task).map_err(|_| closed(&watch_id))?;
                claim.keep();
                Ok(watching)
            });
            match watching {
                Err(error) => responder.fail(&error),
                Ok(watching) => {
                    let path = watching.path().clone();
                    responder.answer::<rpc::FsWatch>(Ok(FsPathResponse { path }));
                    shared.spawn_on(&runtime, async move {
                        report(watching, watch_id, &connection, stopped).await;
                        // Whoever unwatches waits for it.
                        drop(end);
                    });
                }
            }
        };
        self.shared.files.run_or_tell(move |thread| {
            match thread.map_err(no_thread).and_then(|()| watches.prepare()) {
                Ok(()) => work.run(params, watch),
                Err(error) => watch(Err(error)),
            }
        });
    }

    /// What was found until then is told, and the search answered.
    pub(super) fn cancel_search(&self, params: &FsCancelSearchParams, responder: Responder) {
        if let Some(cancelled) = self.connection.files.searches.get(&params.search_id) {
            cancelled.store(true, Ordering::Relaxed);
        }
        responder.answer::<rpc::FsCancelSearch>(Ok(Empty {}));
    }

    /// Answered when nothing more will be told.
    pub(super) fn unwatch(&mut self, params: &FsUnwatchParams, responder: Responder) {
        match self.connection.files.watch_names.remove(&params.watch_id) {
            None => responder.answer::<rpc::FsUnwatch>(Ok(Empty {})),
            Some(WatchTask { stop, ended }) => {
                drop(stop);
                self.work(responder, |responder| async move {
                    let _ = ended.await;
                    responder.answer::<rpc::FsUnwatch>(Ok(Empty {}));
                });
            }
        }
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
        self.shared.searches.run(params, move |admitted| {
            if !responder.is_wanted() {
                return;
            }
            let send = |results| {
                let found = SearchResultsNotification { search_id: search_id.clone(), results };
                let text = notification(&found);
                let room = runtime.block_on(async {
                    tokio::time::timeout(READER_PATIENCE, connection.room_for(text.len())).await
                });
                let Ok(_room) = room else { return ControlFlow::Break(()) };
                connection.outbox().push(text);
                match connection.outbox().is_closed() {
                    true => ControlFlow::Break(()),
                    false => ControlFlow::Continue(()),
                }
            };
            let ended =
                admitted.and_then(Searching::new).and_then(|search| search.run(&cancelled, send));
            drop(claim);
            responder.answer::<rpc::FsSearch>(ended);
        });
    }
}

/// Tells a client what happens below a path, until it unwatches or is gone. A client that does not read gets, later, one
/// change that says that some were lost.
async fn report(
    mut watching: LocalWatch,
    watch_id: String,
    connection: &ConnectionHandle,
    mut stopped: oneshot::Receiver<()>,
) {
    loop {
        let changes = tokio::select! {
            changes = watching.next() => changes,
            _ = &mut stopped => None,
        };
        let Some(LocalChanges { changes, rescan }) = changes.map(within_bounds) else { return };
        let changed_paths = changed_paths(&changes);
        let watch_id = watch_id.clone();
        let changed = ChangedNotification { watch_id, changed_paths, changes, rescan };
        let text = notification(&changed);
        let _room = tokio::select! {
            room = connection.room_for(text.len()) => room,
            _ = &mut stopped => return,
        };
        connection.outbox().push(text);
    }
}

/// Thousands of long paths may not fit into one message; then what happened is told as too much to be told.
fn within_bounds(told: LocalChanges) -> LocalChanges {
    let paths = told.changes.iter().flat_map(|change| change.from.iter().chain([&change.path]));
    let bytes: usize = paths.map(PathUri::encoded_len).sum();
    if bytes <= MAX_CHANGED_BYTES {
        return told;
    }
    LocalChanges { changes: Vec::new(), rescan: true }
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

#[cfg(test)]
mod tests {
    use super::*;
    use exec_server_protocol::ChangeKind;

    #[test]
    fn changes_that_are_too_much_for_a_message_are_told_as_such() {
        let change = |len: usize| FileChange {
            path: format!("/{}", "資".repeat(len)).parse().unwrap(),
            kind: ChangeKind::Created,
            from: None,
        };
        let few = LocalChanges { changes: vec![change(1_000); 10], rescan: false };
        assert_eq!(within_bounds(few.clone()), few);
        let many = LocalChanges { changes: vec![change(1_000); 4_096], rescan: false };
        assert_eq!(within_bounds(many), LocalChanges { changes: Vec::new(), rescan: true });
    }
}

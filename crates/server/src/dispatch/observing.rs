//! `fs/watch` and `fs/search`: calls with notifications before, or long after, the response.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use exec_server_protocol::{
    ChangedNotification, Empty, FsCancelSearchParams, FsPathResponse, FsSearchParams,
    FsUnwatchParams, FsWatchParams, RpcError, SearchResultsNotification, rpc,
};
use tokio::sync::oneshot;

use super::events::{EventStream, Sent};
use super::files::closed;
use super::resources::WatchTask;
use super::{Dispatcher, Reply, no_events};
use crate::adapter::{ChangeWatch, FileExecutors, PolicyScoped, Searching};
use crate::sessions::Session;

/// How long a search waits for a client that does not read. A waiting search occupies one of a
/// limited number of threads.
const READER_TIMEOUT: Duration = Duration::from_secs(60);

impl Dispatcher {
    pub(super) fn watch(&self, session: &Session, params: FsWatchParams, mut reply: Reply) {
        let Some(events) = reply.events(&self.connection) else {
            return reply.fail(no_events());
        };
        let claim = match self.connection.resources.files.watch_tasks.claim(params.watch_id.clone())
        {
            Ok(claim) => claim,
            Err(error) => return reply.fail(error),
        };
        let (state, connection) = (Arc::clone(&self.state), Arc::clone(&self.connection));
        let runtime = self.runtime.clone();
        let watch_id = params.watch_id.clone();
        let watches = Arc::clone(&connection.resources.files.watches);
        let work = self.file_executors(session);
        let watch = move |scoped: Result<PolicyScoped<FsWatchParams>, RpcError>| {
            reply.begin_file_work();
            let (stop, stopped) = oneshot::channel();
            let (end, ended) = oneshot::channel();
            let watching = scoped.and_then(|scoped| {
                let watching = connection.resources.files.watches.watch(scoped)?;
                let task = WatchTask { stop, ended };
                claim.fill(task).map_err(|_| closed("watchId", &watch_id))?;
                claim.keep();
                Ok(watching)
            });
            match watching {
                Err(error) => reply.fail(error),
                Ok(watching) => {
                    let path = watching.path().clone();
                    reply.send::<rpc::FsWatch>(Ok(FsPathResponse { path }));
                    state.spawn_on(&runtime, async move {
                        report(watching, &events, stopped).await;
                        // `fs/unwatch` waits for this.
                        drop(end);
                    });
                }
            }
        };
        self.state.files.run_or_tell(move |thread| match thread.and_then(|()| watches.prepare()) {
            Ok(()) => work.run(params, watch),
            Err(error) => watch(Err(error)),
        });
    }

    /// The results so far are sent, and the search gets its response.
    pub(super) fn cancel_search(&self, params: &FsCancelSearchParams, reply: Reply) {
        if let Some(cancelled) = self.connection.resources.files.searches.get(&params.search_id) {
            cancelled.store(true, Ordering::Relaxed);
        }
        reply.send::<rpc::FsCancelSearch>(Ok(Empty {}));
    }

    /// Responds once no further notification can follow.
    pub(super) fn unwatch(&self, params: &FsUnwatchParams, reply: Reply) {
        match self.connection.resources.files.watch_tasks.remove(&params.watch_id) {
            None => reply.send::<rpc::FsUnwatch>(Ok(Empty {})),
            Some(WatchTask { stop, ended }) => {
                drop(stop);
                self.spawn(reply, |reply| async move {
                    let _ = ended.await;
                    reply.send::<rpc::FsUnwatch>(Ok(Empty {}));
                });
            }
        }
    }

    pub(super) fn search(&self, session: &Session, params: FsSearchParams, mut reply: Reply) {
        let Some(events) = reply.events(&self.connection) else {
            return reply.fail(no_events());
        };
        let search_id = params.search_id.clone();
        let cancelled = Arc::new(AtomicBool::new(false));
        let searches = &self.connection.resources.files.searches;
        let claim = match searches.insert(search_id.clone(), Arc::clone(&cancelled)) {
            Ok(claim) => claim,
            Err(error) => return reply.fail(error),
        };
        let runtime = self.runtime.clone();
        let timeout = self.connection.socket().map(|_| READER_TIMEOUT);
        let executors =
            FileExecutors::new(self.state.searches.clone(), Arc::clone(session.sandboxes()));
        executors.run(params, move |scoped| {
            if !reply.is_wanted() {
                return;
            }
            reply.begin_file_work();
            let send = |results| {
                let found = SearchResultsNotification { search_id: search_id.clone(), results };
                let sent = runtime.block_on(async {
                    match timeout {
                        Some(timeout) => tokio::time::timeout(timeout, events.send(found)).await,
                        None => Ok(events.send(found).await),
                    }
                });
                match sent {
                    Ok(Sent::Yes) => ControlFlow::Continue(()),
                    Ok(Sent::Gone) | Err(_) => ControlFlow::Break(()),
                }
            };
            let ended =
                scoped.and_then(Searching::new).and_then(|search| search.run(&cancelled, send));
            drop(claim);
            reply.send::<rpc::FsSearch>(ended);
        });
    }
}

/// Reports changes below a path until the client unwatches or disconnects. If the client reads too
/// slowly, changes are dropped and a rescan is reported.
async fn report(
    mut watching: ChangeWatch,
    events: &EventStream,
    mut stopped: oneshot::Receiver<()>,
) {
    loop {
        let sent = tokio::select! {
            sent = report_next(&mut watching, events) => sent,
            _ = &mut stopped => return,
        };
        if sent != Some(Sent::Yes) {
            return;
        }
    }
}

/// Sends the next changes. Waits for room before it takes them from the watch, because only the
/// watch combines pending changes.
async fn report_next(watching: &mut ChangeWatch, events: &EventStream) -> Option<Sent> {
    watching.changed().await?;
    events.room().await;
    let changed: ChangedNotification = watching.next().await?;
    Some(events.send(changed).await)
}

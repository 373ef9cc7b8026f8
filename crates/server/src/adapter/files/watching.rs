//! Watches in the words of the wire.

use std::sync::{Arc, Mutex, PoisonError};

use exec_server_host::fs::watch::{self, WatchDepth, Watcher};
use exec_server_protocol::{ChangeKind, FileChange, FsWatchParams, PathUri, RpcError};

use super::errors::to_rpc_error;
use super::executor::PolicyScoped;
use super::operations::uri;

/// One queue of the kernel, made at the first watch: a user has few of them.
#[derive(Debug, Default)]
pub(crate) struct Watches {
    watcher: Mutex<Option<Arc<Watcher>>>,
}

impl Watches {
    /// Opens the queue, which takes a thread that is free: what it starts listens for everybody.
    pub(crate) fn prepare(&self) -> Result<(), RpcError> {
        self.watcher().map(drop)
    }

    /// Blocks while it looks through the tree.
    pub(crate) fn watch(
        &self,
        PolicyScoped { params, executor }: PolicyScoped<FsWatchParams>,
    ) -> Result<ChangeWatch, RpcError> {
        let depth = if params.recursive { WatchDepth::Tree } else { WatchDepth::Single };
        let threads = move |job: watch::Job| {
            executor.run(move |kept| {
                if kept.is_ok() {
                    job();
                }
            });
        };
        let watch =
            self.watcher()?.watch(params.path.as_path(), depth, threads).map_err(to_rpc_error)?;
        Ok(ChangeWatch { path: uri(watch.path())?, watch })
    }

    /// Ends all watches, and those that are just being set.
    pub(crate) fn close(&self) {
        let watcher = self.watcher.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(watcher) = &*watcher {
            watcher.close();
        }
    }

    fn watcher(&self) -> Result<Arc<Watcher>, RpcError> {
        let mut watcher = self.watcher.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(watcher) = &*watcher {
            return Ok(Arc::clone(watcher));
        }
        let new = Arc::new(Watcher::new().map_err(to_rpc_error)?);
        *watcher = Some(Arc::clone(&new));
        Ok(new)
    }
}

/// What happens below one path, until it is dropped.
#[derive(Debug)]
pub(crate) struct ChangeWatch {
    path: PathUri,
    watch: watch::Watch,
}

/// Several changes together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct WatchedChanges {
    pub(crate) changes: Vec<FileChange>,
    /// Changes were lost: anything may have changed.
    pub(crate) rescan: bool,
}

impl ChangeWatch {
    /// The canonical form of what is watched.
    pub(crate) fn path(&self) -> &PathUri {
        &self.path
    }

    /// `None` when no more can come. Cancel-safe.
    pub(crate) async fn next(&mut self) -> Option<WatchedChanges> {
        let watch::Changes { changes, rescan } = self.watch.next().await?;
        let changes = changes.into_iter().filter_map(wire_change).collect();
        Some(WatchedChanges { changes, rescan })
    }
}

fn wire_change(change: watch::Change) -> Option<FileChange> {
    let kind = match change.kind {
        watch::ChangeKind::Created => ChangeKind::Created,
        watch::ChangeKind::Modified => ChangeKind::Modified,
        watch::ChangeKind::Removed => ChangeKind::Removed,
        watch::ChangeKind::Renamed => ChangeKind::Renamed,
    };
    let from = change.from.and_then(PathUri::from_path);
    Some(FileChange { path: PathUri::from_path(change.path)?, kind, from })
}

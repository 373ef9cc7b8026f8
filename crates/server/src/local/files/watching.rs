//! Watches in the words of the wire.

use std::sync::{Arc, Mutex, PoisonError};

use exec_server_host::fs::watch::{self, WatchDepth, Watcher};
use exec_server_protocol::{ChangeKind, FileChange, FsWatchParams, PathUri, RpcError};

use super::errors::{check_sandbox, refusal};
use super::operations::uri;
use super::pool::FilePool;

/// One queue of the kernel, made at the first watch: a user has few of them.
#[derive(Debug, Default)]
pub(crate) struct Watches {
    watcher: Mutex<Option<Arc<Watcher>>>,
}

impl Watches {
    /// Blocks while it looks through the tree.
    pub(crate) fn watch(&self, params: &FsWatchParams) -> Result<Watching, RpcError> {
        check_sandbox(params.sandbox.as_ref())?;
        let depth = if params.recursive { WatchDepth::Tree } else { WatchDepth::Single };
        let watch = self.watcher()?.watch(params.path.as_path(), depth).map_err(refusal)?;
        Ok(Watching { path: uri(watch.path())?, watch })
    }

    fn watcher(&self) -> Result<Arc<Watcher>, RpcError> {
        let mut watcher = self.watcher.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(watcher) = &*watcher {
            return Ok(Arc::clone(watcher));
        }
        let new = Arc::new(Watcher::new().map_err(refusal)?);
        *watcher = Some(Arc::clone(&new));
        Ok(new)
    }
}

/// What happens below one path. Dropping it may block.
#[derive(Debug)]
pub(crate) struct Watching {
    path: PathUri,
    watch: watch::Watch,
}

/// Several changes together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalChanges {
    pub changes: Vec<FileChange>,
    /// Changes were lost: anything may have changed.
    pub rescan: bool,
}

impl Watching {
    /// The canonical form of what is watched.
    pub(crate) fn path(&self) -> &PathUri {
        &self.path
    }

    /// `None` when no more can come. Cancel-safe.
    pub(crate) async fn next(&mut self) -> Option<LocalChanges> {
        let watch::Changes { changes, rescan } = self.watch.next().await?;
        let changes = changes.into_iter().filter_map(wire_change).collect();
        Some(LocalChanges { changes, rescan })
    }
}

/// A watch of this program.
#[derive(Debug)]
pub struct LocalWatch {
    /// Taken when it is dropped.
    watching: Option<Watching>,
    pool: FilePool,
}

impl LocalWatch {
    pub(super) fn new(watching: Watching, pool: FilePool) -> Self {
        Self { watching: Some(watching), pool }
    }

    /// The canonical form of what is watched.
    #[must_use]
    pub fn path(&self) -> &PathUri {
        self.watching.as_ref().expect("it is there until it is dropped").path()
    }

    /// `None` when no more can come. Cancel-safe.
    pub async fn next(&mut self) -> Option<LocalChanges> {
        self.watching.as_mut()?.next().await
    }
}

impl Drop for LocalWatch {
    fn drop(&mut self) {
        let watching = self.watching.take();
        self.pool.run(move || drop(watching));
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

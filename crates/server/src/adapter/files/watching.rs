//! Watches, and their changes converted to wire types.

use std::sync::{Arc, Mutex, PoisonError};

use exec_server_host::fs::watch::{self, WatchDepth, Watcher};
use exec_server_protocol::{
    ChangeKind, ChangedNotification, FileChange, FsWatchParams, PathUri, RpcError,
};

use super::errors::to_rpc_error;
use super::executor::PolicyScoped;
use super::operations::uri;

/// Maximum size of the paths in one `fs/changed`, which contains each of them twice.
const MAX_CHANGED_BYTES: usize = 4 << 20;

/// One inotify instance for all watches of a connection, created with the first watch: a user may
/// have only a few instances.
#[derive(Debug, Default)]
pub(crate) struct Watches {
    watcher: Mutex<Option<Arc<Watcher>>>,
}

impl Watches {
    /// Creates the watcher, which starts the thread that serves all watches. Must be called on an
    /// unconfined thread.
    pub(crate) fn prepare(&self) -> Result<(), RpcError> {
        self.watcher().map(drop)
    }

    /// Blocks while it scans the tree.
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
        Ok(ChangeWatch { watch_id: params.watch_id, path: uri(watch.path())?, watch })
    }

    /// Ends all watches, including those that are being set up.
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

/// The changes below one path. The watch ends when this is dropped.
#[derive(Debug)]
pub(crate) struct ChangeWatch {
    watch_id: String,
    path: PathUri,
    watch: watch::Watch,
}

impl ChangeWatch {
    /// Returns the canonical path of the watch.
    pub(crate) fn path(&self) -> &PathUri {
        &self.path
    }

    /// Waits until there is a change to report, but leaves it for [`Self::next`]. Returns `None`
    /// when no change can follow. Cancel-safe.
    pub(crate) async fn changed(&mut self) -> Option<()> {
        self.watch.changed().await
    }

    /// Returns the next changes, or `None` when no change can follow. Cancel-safe.
    pub(crate) async fn next(&mut self) -> Option<ChangedNotification> {
        let watch::Changes { changes, rescan } = self.watch.next().await?;
        let changes = changes.into_iter().filter_map(wire_change).collect();
        Some(notification(self.watch_id.clone(), changes, rescan))
    }
}

/// Thousands of long paths may not fit into one message; then the notification asks for a rescan
/// instead.
fn notification(watch_id: String, changes: Vec<FileChange>, rescan: bool) -> ChangedNotification {
    let mut paths: Vec<&PathUri> =
        changes.iter().flat_map(|change| change.from.iter().chain([&change.path])).collect();
    let bytes: usize = paths.iter().map(|path| path.encoded_len()).sum();
    if bytes > MAX_CHANGED_BYTES {
        let (changed_paths, changes) = (Vec::new(), Vec::new());
        return ChangedNotification { watch_id, changed_paths, changes, rescan: true };
    }
    paths.sort();
    paths.dedup();
    let changed_paths = paths.into_iter().cloned().collect();
    ChangedNotification { watch_id, changed_paths, changes, rescan }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_that_exceed_a_message_are_reported_as_a_rescan() {
        let change = |len: usize| FileChange {
            path: format!("/{}", "資".repeat(len)).parse().unwrap(),
            kind: ChangeKind::Created,
            from: None,
        };
        let told = |changes: &[FileChange]| {
            let told = notification("w".to_owned(), changes.to_vec(), false);
            (told.changes, told.rescan)
        };
        let few = vec![change(1_000); 10];
        assert_eq!(told(&few), (few, false));
        assert_eq!(told(&vec![change(1_000); 4_096]), (Vec::new(), true));
    }

    #[test]
    fn every_path_is_named_once() {
        let path = |name: &str| PathUri::from_path(format!("/{name}")).unwrap();
        let renamed =
            FileChange { path: path("a"), kind: ChangeKind::Renamed, from: Some(path("b")) };
        let modified = FileChange { path: path("a"), kind: ChangeKind::Modified, from: None };
        let told = notification("w".to_owned(), vec![renamed, modified], false);
        assert_eq!(told.changed_paths, ["a", "b"].map(path));
    }
}

//! One watch: the paths that it covers, and the window that holds its changes.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard};

use tokio::sync::Notify;

use super::window::{ChangeWindow, FsEvent, PendingScan, RootState, Settled};
use super::{Changes, WatchDepth};
use crate::sandbox::{Access, Policy};

#[derive(Debug)]
pub(super) struct WatchTarget {
    pub(super) root: PathBuf,
    pub(super) scope: Scope,
    /// The directory that must be watched: the root, or for a file its parent.
    pub(super) directory: PathBuf,
    /// The policy of the watch's owner, who must not learn of paths that the policy hides.
    policy: Option<Policy>,
    /// `None` once it is closed.
    window: Mutex<Option<ChangeWindow>>,
    news: Notify,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scope {
    /// The root, which is not a directory. Its parent is watched: a watch on the file itself would
    /// follow the inode and miss the next file of that name.
    File,
    /// The root and its direct entries.
    Directory,
    Tree,
}

impl WatchTarget {
    pub(super) fn new(root: PathBuf, scope: Scope, policy: Option<Policy>) -> Self {
        let directory = match (scope, root.parent()) {
            (Scope::File, Some(parent)) => parent.to_owned(),
            _ => root.clone(),
        };
        let depth = if scope == Scope::Tree { WatchDepth::Tree } else { WatchDepth::Single };
        let window = Mutex::new(Some(ChangeWindow::new(root.clone(), depth)));
        Self { root, scope, directory, policy, window, news: Notify::new() }
    }

    pub(super) fn put(&self, event: FsEvent<'_>) {
        if self.admits(event.path) {
            self.change(|window| window.apply(event));
        }
    }

    /// Requires a scan of the disk before changes are taken.
    pub(super) fn look_again(&self, root: RootState) {
        self.change(|window| window.expect_root(root));
    }

    pub(super) fn close(&self) {
        *self.window() = None;
        self.news.notify_one();
    }

    pub(super) fn is_closed(&self) -> bool {
        self.window().is_none()
    }

    /// Waits until there are changes to take. `None` once the target is closed.
    pub(super) async fn wait(&self) -> Option<()> {
        while self.window().as_ref()?.is_empty() {
            self.news.notified().await;
        }
        Some(())
    }

    pub(super) fn has_pending_scan(&self) -> bool {
        self.window().as_ref().is_some_and(ChangeWindow::has_pending_scan)
    }

    pub(super) fn take_pending_scan(&self) -> Option<PendingScan> {
        self.window().as_mut()?.take_pending_scan()
    }

    pub(super) fn settle(&self, mut settled: Settled) {
        settled.listed.retain(|path| self.admits(path));
        if let Some(window) = &mut *self.window() {
            window.settle(settled);
        }
    }

    pub(super) fn give_up_pending_scan(&self) {
        drop(self.take_pending_scan());
        self.settle(Settled { lost: true, ..Settled::default() });
    }

    pub(super) fn take(&self) -> Option<Changes> {
        self.window().as_mut()?.take()
    }

    fn change(&self, change: impl FnOnce(&mut ChangeWindow)) {
        if let Some(window) = &mut *self.window() {
            let was_empty = window.is_empty();
            change(window);
            if was_empty {
                self.news.notify_one();
            }
        }
    }

    fn admits(&self, path: &Path) -> bool {
        self.policy.as_ref().is_none_or(|policy| policy.access(path) >= Access::Read)
    }

    fn window(&self) -> MutexGuard<'_, Option<ChangeWindow>> {
        self.window.lock().expect("no code panics while it holds the window of a watch")
    }
}

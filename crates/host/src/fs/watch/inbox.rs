//! Where the changes of one watch wait for its owner.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard};

use tokio::sync::Notify;

use super::window::{ChangeWindow, FsEvent, PendingScan, Settled};
use super::{Changes, WatchDepth};
use crate::sandbox::{Access, Policy};

#[derive(Debug)]
pub(super) struct Inbox {
    /// Of whoever watches: what they may not read they do not hear of.
    policy: Option<Policy>,
    state: Mutex<State>,
    news: Notify,
}

#[derive(Debug)]
enum State {
    Open(ChangeWindow),
    Closed,
}

impl Inbox {
    pub(super) fn new(root: PathBuf, depth: WatchDepth, policy: Option<Policy>) -> Self {
        let state = Mutex::new(State::Open(ChangeWindow::new(root, depth)));
        Self { policy, state, news: Notify::new() }
    }

    pub(super) fn put(&self, event: FsEvent<'_>) {
        if event.path().is_some_and(|path| !self.admits(path)) {
            return;
        }
        let mut state = self.lock();
        if let State::Open(window) = &mut *state {
            let was_empty = window.is_empty();
            window.apply(event);
            drop(state);
            if was_empty {
                self.news.notify_one();
            }
        }
    }

    pub(super) fn close(&self) {
        *self.lock() = State::Closed;
        self.news.notify_one();
    }

    /// Waits until there is something to take. `None` if there never will be.
    pub(super) async fn wait(&self) -> Option<()> {
        loop {
            match &*self.lock() {
                State::Closed => return None,
                State::Open(window) if !window.is_empty() => return Some(()),
                State::Open(_) => {}
            }
            self.news.notified().await;
        }
    }

    /// Whether the disk has to be looked at before anything is taken.
    pub(super) fn has_pending_scan(&self) -> bool {
        matches!(&*self.lock(), State::Open(window) if window.has_pending_scan())
    }

    /// A look at the disk begins.
    pub(super) fn take_pending_scan(&self) -> Option<PendingScan> {
        match &mut *self.lock() {
            State::Open(window) => window.take_pending_scan(),
            State::Closed => None,
        }
    }

    pub(super) fn settle(&self, mut settled: Settled) {
        settled.listed.retain(|path| self.admits(path));
        if let State::Open(window) = &mut *self.lock() {
            window.settle(settled);
        }
    }

    /// Nobody could look.
    pub(super) fn give_up_pending_scan(&self) {
        drop(self.take_pending_scan());
        self.settle(Settled { lost: true, ..Settled::default() });
    }

    pub(super) fn take(&self) -> Option<Changes> {
        match &mut *self.lock() {
            State::Open(window) => window.take(),
            State::Closed => None,
        }
    }

    fn admits(&self, path: &Path) -> bool {
        self.policy.as_ref().is_none_or(|policy| policy.access(path) >= Access::Read)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no code panics while it holds an inbox")
    }
}

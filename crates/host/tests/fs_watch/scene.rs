//! A watched directory, and the changes reported for it.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use exec_server_host::fs::watch::{Change, ChangeKind, Job, Watch, WatchDepth, Watcher};
use exec_server_test_support::Scratch;

/// Long enough to expire only if an event was lost.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(20);

pub(crate) struct WatchScene {
    _keep: Option<Scratch>,
    pub(crate) root: PathBuf,
    pub(crate) watcher: Watcher,
}

impl WatchScene {
    pub(crate) fn new() -> Self {
        Self::of(Scratch::new())
    }

    /// For tests that would keep a disk busy.
    pub(crate) fn in_memory() -> Self {
        Self::of(Scratch::in_memory())
    }

    fn of(keep: Scratch) -> Self {
        let root = keep.root().to_owned();
        Self { _keep: Some(keep), ..Self::at_path(root) }
    }

    pub(crate) fn at_path(root: PathBuf) -> Self {
        Self { _keep: None, root, watcher: Watcher::new().unwrap() }
    }

    pub(crate) fn at(&self, path: &str) -> PathBuf {
        self.root.join(path)
    }

    pub(crate) fn write(&self, path: &str) {
        fs::write(self.at(path), path).unwrap();
    }

    pub(crate) fn mkdir(&self, path: &str) {
        fs::create_dir_all(self.at(path)).unwrap();
    }

    /// Makes 5000 entries, named 0 to 4999. Returns once every watch has received the events.
    pub(crate) async fn make_more_than_is_told(&self, make: impl Fn(PathBuf)) {
        self.mkdir("beside");
        self.write("beside/end");
        let mut last = self.watch("beside/end", WatchDepth::Single);
        (0..5000).for_each(|index| make(self.at(&index.to_string())));
        self.write("beside/end");
        last.until(ChangeKind::Modified, &self.at("beside/end")).await;
    }

    pub(crate) fn watch(&self, path: &str, depth: WatchDepth) -> Told {
        self.watch_by(path, depth, on_a_thread)
    }

    pub(crate) fn watch_by(
        &self,
        path: &str,
        depth: WatchDepth,
        threads: impl Fn(Job) + Send + Sync + 'static,
    ) -> Told {
        Told::by(self.watcher.watch(&self.at(path), depth, threads).unwrap())
    }
}

pub(crate) fn on_a_thread(job: Job) {
    drop(std::thread::spawn(job));
}

/// Runs a job of a watch at once, on the thread that hands it out. So a test that drops the watch
/// knows that the kernel watch is removed.
pub(crate) fn on_this_thread(job: Job) {
    job();
}

pub(crate) struct Told {
    pub(crate) watch: Watch,
    pub(crate) changes: Vec<Change>,
    pub(crate) rescan: bool,
}

impl Told {
    pub(crate) fn by(watch: Watch) -> Self {
        Self { watch, changes: Vec::new(), rescan: false }
    }

    pub(crate) async fn more(&mut self) {
        let next = tokio::time::timeout(TIMEOUT, self.watch.next()).await;
        let last = &self.changes[self.changes.len().saturating_sub(20)..];
        let batch = next.unwrap_or_else(|_| panic!("no more changes after {last:?}"));
        let batch = batch.expect("the watcher is open");
        assert!(batch.rescan || !batch.changes.is_empty(), "a batch is not empty");
        self.changes.extend(batch.changes);
        self.rescan |= batch.rescan;
    }

    pub(crate) async fn until(&mut self, kind: ChangeKind, path: &Path) {
        while !self.has(kind, path) {
            self.more().await;
        }
    }

    pub(crate) async fn until_rescan(&mut self) {
        while !self.rescan {
            self.more().await;
        }
    }

    pub(crate) fn has(&self, kind: ChangeKind, path: &Path) -> bool {
        self.changes.iter().any(|change| change.kind == kind && change.path == path)
    }

    pub(crate) fn mentions(&self, path: &Path) -> bool {
        self.changes
            .iter()
            .any(|change| change.path == path || change.from.as_deref() == Some(path))
    }

    pub(crate) fn forget(&mut self) {
        self.changes.clear();
        self.rescan = false;
    }
}

/// Whether any queue of this process watches the file at this path.
pub(crate) fn is_watched(path: &Path) -> bool {
    let inode = format!(" ino:{:x} ", rustix::fs::stat(path).unwrap().st_ino);
    let queues = fs::read_dir("/proc/self/fdinfo").unwrap();
    queues.into_iter().filter_map(|entry| fs::read_to_string(entry.ok()?.path()).ok()).any(|info| {
        info.lines().any(|line| line.starts_with("inotify wd:") && line.contains(&inode))
    })
}

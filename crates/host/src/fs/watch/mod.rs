//! Reports changes below a path as they happen.
//!
//! A [`Watcher`] is one kernel queue; all watches of a client share one, because the kernel allows
//! each user only a few. Each [`Watch`] collects the changes that concern it and returns them in
//! batches. Nothing is polled, and memory is bounded: a slow receiver gets `rescan` instead of
//! changes, and must list the files itself.
//!
//! The kernel does not report some changes, so they go unnoticed: changes to a network file system
//! made on another machine, changes to a file through a hard link in another directory, moves of a
//! directory *above* the watched path, and the removal of the watched directory itself while any
//! process has it open.

mod difference;
mod directories;
mod inotify;
mod routes;
mod scan;
mod table;
mod target;
mod window;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use rustix::fs::FileType;
use tokio::sync::oneshot;
use tokio::time::Instant;

use self::inotify::Inotify;
use self::table::WatchTable;
use self::target::{Scope, WatchTarget};
use super::FsError;
use super::confinement::{self, RequiredAccess};
use crate::fs::path::resolve;

/// How long to collect further changes after the first one.
const WINDOW: Duration = Duration::from_millis(50);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WatchDepth {
    /// A directory and its direct entries, or one file.
    Single,
    /// Everything below, including directories created later. Symlinks are not followed.
    Tree,
}

/// The differences since the last batch, not a history: `Renamed` from a to b and from b to a in
/// one batch means that the two files were exchanged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Changes {
    /// Sorted by path.
    pub changes: Vec<Change>,
    /// Changes were lost: anything below the watched path may have changed.
    pub rescan: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    pub path: PathBuf,
    pub kind: ChangeKind,
    /// The former name of a renamed file.
    pub from: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ChangeKind {
    /// A new file of this name. If it was renamed into place, it may have replaced another file.
    Created,
    /// Content or metadata changed, or the file was replaced.
    Modified,
    Removed,
    /// Both names are below the watched path. If the file was also modified, that is a second
    /// change.
    Renamed,
}

#[derive(Debug)]
pub struct Watcher {
    shared: Arc<Shared>,
}

/// Work of a watch that may block.
pub type Job = Box<dyn FnOnce() + Send>;

/// One watched path. Dropping it ends the watch.
#[derive(Debug)]
pub struct Watch {
    target: Arc<WatchTarget>,
    /// Weak: the kernel queue ends with the [`Watcher`], even if watches still exist.
    shared: Weak<Shared>,
    threads: Threads,
    /// Kept here instead of in the future of [`Watch::next`], so that dropping the future loses
    /// nothing.
    progress: Progress,
}

/// Runs the jobs of one watch.
struct Threads {
    run: Box<dyn Fn(Job) + Send + Sync>,
}

#[derive(Debug)]
enum Progress {
    Waiting,
    Collecting { until: Instant },
    Settling { done: oneshot::Receiver<()> },
}

#[derive(Debug)]
struct Shared {
    inotify: Arc<Inotify>,
    /// Locked while the kernel sets a watch on a directory, which may take a long time on
    /// unresponsive storage.
    table: Mutex<WatchTable>,
    closing: AtomicBool,
}

impl Watcher {
    /// Starts a thread, so it fails on a confined thread.
    pub fn new() -> Result<Self, FsError> {
        if confinement::is_confined() {
            let why = "cannot be opened on a thread that is confined to a sandbox";
            return Err(FsError::Unsuitable { path: PathBuf::from("inotify"), why });
        }
        let inotify = Arc::new(Inotify::new()?);
        let table = Mutex::new(WatchTable::new(Arc::clone(&inotify)));
        let shared = Arc::new(Shared { inotify, table, closing: AtomicBool::new(false) });
        let reader = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("watch".to_owned());
        let started = thread.spawn(move || reader.read_events());
        started.map(|_| Self { shared }).map_err(|source| {
            let path = PathBuf::from("inotify");
            FsError::Os { action: "start a thread for", path, source }
        })
    }

    /// Watches a path. Blocks while a tree is listed. Changes made after it returns are reported.
    ///
    /// The watch is on the path: the file there may be removed, recreated and replaced. While it is
    /// missing, perhaps with directories above it, the nearest existing directory is watched for
    /// its return.
    ///
    /// On a confined thread the watch is confined too: changes to unreadable paths are not
    /// reported. `threads` runs the later jobs of the watch, on a thread with the same confinement.
    /// If it drops a job that scans, the watch reports `rescan`.
    pub fn watch(
        &self,
        path: &Path,
        depth: WatchDepth,
        threads: impl Fn(Job) + Send + Sync + 'static,
    ) -> Result<Watch, FsError> {
        let root = resolve::real_path(path)?;
        let node = resolve::own_node(&root, RequiredAccess::Read)?;
        let stat = rustix::fs::fstat(node).map_err(FsError::os("watch", path))?;
        let is_directory = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
        let scope = match depth {
            _ if !is_directory => Scope::File,
            WatchDepth::Single => Scope::Directory,
            WatchDepth::Tree => Scope::Tree,
        };
        let policy = confinement::in_force().map(|confinement| confinement.policy().clone());
        let target = Arc::new(WatchTarget::new(root, scope, policy));
        self.shared.add(&target);
        let watch = Watch {
            target,
            shared: Arc::downgrade(&self.shared),
            threads: Threads { run: Box::new(threads) },
            progress: Progress::Waiting,
        };
        // On failure, a part of the tree may be watched already; dropping the watch undoes that.
        self.shared.cover(&watch.target).map(|()| watch)
    }

    /// Ends all watches. Watches that are being set up stop early.
    pub fn close(&self) {
        self.shared.closing.store(true, Ordering::Relaxed);
        self.shared.inotify.stop();
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.close();
    }
}

impl Watch {
    /// Returns the watched path, without symlinks.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.target.root
    }

    /// Waits until there are changes, without taking them. `None` once the watcher is closed.
    /// Cancel-safe.
    pub async fn changed(&mut self) -> Option<()> {
        match self.progress {
            Progress::Waiting => self.target.wait().await,
            Progress::Collecting { .. } | Progress::Settling { .. } => Some(()),
        }
    }

    /// Returns the changes, collected for 50 ms after the first one. `None` once the watcher is
    /// closed. Cancel-safe.
    pub async fn next(&mut self) -> Option<Changes> {
        loop {
            match &mut self.progress {
                Progress::Waiting => {
                    self.target.wait().await?;
                    self.progress = Progress::Collecting { until: Instant::now() + WINDOW };
                }
                Progress::Collecting { until } => {
                    tokio::time::sleep_until(*until).await;
                    self.progress = Progress::Waiting;
                    if self.target.has_pending_scan() {
                        self.progress = Progress::Settling { done: self.settle()? };
                    } else if let Some(changes) = self.target.take() {
                        return Some(changes);
                    }
                }
                Progress::Settling { done } => {
                    if done.await.is_err() {
                        self.target.give_up_pending_scan();
                    }
                    self.progress = Progress::Waiting;
                    if let Some(changes) = self.target.take() {
                        return Some(changes);
                    }
                }
            }
        }
    }

    /// Starts a scan; the receiver fires when it is done. `None` if the watcher no longer exists.
    fn settle(&self) -> Option<oneshot::Receiver<()>> {
        let (report, done) = oneshot::channel();
        let shared = self.shared.upgrade()?;
        let target = Arc::clone(&self.target);
        (self.threads.run)(Box::new(move || {
            shared.settle(&target);
            let _ = report.send(());
        }));
        Some(done)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.target.close();
        let Some(shared) = self.shared.upgrade() else { return };
        // If this job is dropped, the job of the next watch that ends does its work as well.
        (self.threads.run)(Box::new(move || shared.release_closed()));
    }
}

impl Shared {
    /// Runs until the watcher is closed or its queue fails.
    fn read_events(&self) {
        let read = self.inotify.read(|event| {
            let (descriptor, flags) = (event.wd(), event.events());
            self.table().handle(descriptor, flags, event.cookie(), event.file_name());
        });
        if let Err(error) = read {
            tracing::error!(%error, "cannot read inotify events, so all file watches of one client end, and new ones end at once until it reconnects");
        }
        self.closing.store(true, Ordering::Relaxed);
        let mut table = self.table();
        table.routes.close();
        // Done here, on the reader thread: it is slow with many watches, and `close` may be called
        // on any thread.
        table.forget(Path::new("/"));
    }

    fn add(&self, target: &Arc<WatchTarget>) {
        self.table().routes.add(Arc::clone(target));
        // The reader thread may already have closed all other targets.
        if self.closing.load(Ordering::Relaxed) {
            target.close();
        }
    }

    fn table(&self) -> MutexGuard<'_, WatchTable> {
        self.table.lock().expect("no code panics while it holds the watch table")
    }
}

impl fmt::Debug for Threads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Threads").finish_non_exhaustive()
    }
}

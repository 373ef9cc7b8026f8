//! Changes below a path, told as they happen.
//!
//! A [`Watcher`] is one kernel queue; the watches of a connection share it, since a user has few of them. Each [`Watch`]
//! collects what concerns it and gives it out in batches. Nothing is polled, and memory is bounded: whoever takes his
//! changes too slowly is told to look for himself (`rescan`).
//!
//! What the kernel does not tell, nobody learns: changes of a network file system made elsewhere, changes of a file through
//! a hard link in another directory, a directory *above* the watched path that is moved, and, until nobody has it open any more,
//! that a watched directory was removed.

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

/// How long after a first change further ones are waited for.
const WINDOW: Duration = Duration::from_millis(50);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WatchDepth {
    /// A directory and what is directly in it, or one file.
    Single,
    /// Everything below, also in directories made later. Symlinks are not followed.
    Tree,
}

/// What is different from before. Not a history: `Renamed` from a to b and from b to a in one batch is an exchange.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Changes {
    /// By path.
    pub changes: Vec<Change>,
    /// Changes were lost: anything below the watched path may be different.
    pub rescan: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    pub path: PathBuf,
    pub kind: ChangeKind,
    /// The former name of what was renamed.
    pub from: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ChangeKind {
    /// There is something new of this name. If it was renamed into place, it may have replaced something.
    Created,
    /// Content or metadata, or it was replaced by another.
    Modified,
    Removed,
    /// Both names are below the watch. A second change tells if it was modified as well.
    Renamed,
}

#[derive(Debug)]
pub struct Watcher {
    shared: Arc<Shared>,
}

/// Work of a watch, which may block.
pub type Job = Box<dyn FnOnce() + Send>;

/// One watched path. Dropping it ends the watch.
#[derive(Debug)]
pub struct Watch {
    target: Arc<WatchTarget>,
    /// Weak: the kernel queue ends with the [`Watcher`], whoever still holds watches.
    shared: Weak<Shared>,
    threads: Threads,
    /// Kept here, and not in the future, so that dropping the future loses nothing.
    progress: Progress,
}

/// Where the jobs of one watch are done.
struct Threads {
    run: Box<dyn Fn(Job) + Send + Sync>,
}

/// How far the batch that comes next has got.
#[derive(Debug)]
enum Progress {
    Waiting,
    Collecting { until: Instant },
    Settling { done: oneshot::Receiver<()> },
}

#[derive(Debug)]
struct Shared {
    inotify: Arc<Inotify>,
    /// Held while the kernel is asked to watch a directory, so on dead storage perhaps for long.
    table: Mutex<WatchTable>,
    closing: AtomicBool,
}

impl Watcher {
    /// Starts a thread, so this is not for one that is confined.
    pub fn new() -> Result<Self, FsError> {
        if confinement::is_confined() {
            let why = "cannot be opened by a thread that is kept to a sandbox";
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

    /// Blocks: a tree is listed. Changes made after this has returned are told.
    ///
    /// The watch is for the path: what is there may be removed, made again and replaced by another. While it is gone, and perhaps
    /// directories above it, the nearest that exists tells when it is back.
    ///
    /// On a thread that is kept to a policy, the watch is too: what may not be read is not told. `threads` runs its later jobs on
    /// such a thread, or drops them; the owner of the watch is then told to look for himself.
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
        // A tree may have been watched in part before the limit was reached; dropping the watch undoes that.
        self.shared.cover(&watch.target).map(|()| watch)
    }

    /// Ends all watches. One that is being set looks no further.
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
    /// The path that is watched, without symlinks.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.target.root
    }

    /// Waits until there is something to take, and takes nothing. `None` once the watcher is closed. Cancel-safe.
    pub async fn changed(&mut self) -> Option<()> {
        match self.progress {
            Progress::Waiting => self.target.wait().await,
            Progress::Collecting { .. } | Progress::Settling { .. } => Some(()),
        }
    }

    /// What has changed, collected for 50 ms after the first change. `None` once the watcher is closed. Cancel-safe.
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

    /// The job answers when it is done. `None` if the watcher is gone.
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
        // If it is dropped, the job of the next watch that ends does this one's work as well.
        (self.threads.run)(Box::new(move || shared.release_closed()));
    }
}

impl Shared {
    /// Until the watcher is closed.
    fn read_events(&self) {
        let read = self.inotify.read(|event| {
            let (descriptor, flags) = (event.wd(), event.events());
            self.table().handle(descriptor, flags, event.cookie(), event.file_name());
        });
        if let Err(error) = read {
            tracing::error!(%error, "files are no longer watched");
        }
        self.closing.store(true, Ordering::Relaxed);
        let mut table = self.table();
        table.routes.close();
        // Here, because it takes long if much is watched, and the queue may be closed by any thread.
        table.forget(Path::new("/"));
    }

    fn add(&self, target: &Arc<WatchTarget>) {
        self.table().routes.add(Arc::clone(target));
        // The thread that reads the queue may have closed all others already.
        if self.closing.load(Ordering::Relaxed) {
            target.close();
        }
    }

    fn table(&self) -> MutexGuard<'_, WatchTable> {
        self.table.lock().expect("no code panics while it holds the table of watches")
    }
}

impl fmt::Debug for Threads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Threads").finish_non_exhaustive()
    }
}

//! Changes below a path, told as they happen.
//!
//! A [`Watcher`] is one kernel queue; the watches of a connection share it, since a user has few of them. Each [`Watch`]
//! collects what concerns it and gives it out in batches. Nothing is polled, and memory is bounded: whoever takes his
//! changes too slowly is told to look for himself (`rescan`).
//!
//! What the kernel does not tell, nobody learns: changes of a network file system made elsewhere, changes of a file through
//! a hard link in another directory, and a directory *above* the watched path that is moved.

mod inbox;
mod kernel;
mod listing;
mod routes;
mod window;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use rustix::fs::FileType;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use self::inbox::Inbox;
use self::kernel::{Kernel, Wish};
use self::routes::{Routes, Scope};
use self::window::{RootState, Settled, Unsettled};
use super::confinement::{self, Need};
use super::{FsError, resolve};

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

/// One watched path. Dropping it ends the watch.
#[derive(Debug)]
pub struct Watch {
    root: PathBuf,
    wish: Wish,
    inbox: Arc<Inbox>,
    /// Weak: the kernel queue ends with the [`Watcher`], whoever still holds watches.
    shared: Weak<Shared>,
    /// Kept here, and not in the future, so that dropping the future loses nothing.
    progress: Progress,
}

/// How far the batch that comes next has got.
#[derive(Debug)]
enum Progress {
    Waiting,
    Collecting { until: Instant },
    Settling(JoinHandle<Settled>),
}

#[derive(Debug)]
struct Shared {
    kernel: Mutex<Kernel>,
    routes: Arc<Routes>,
    released: Mutex<Released>,
    closing: AtomicBool,
}

/// Watches that were dropped, until a thread that may block has told the kernel.
#[derive(Debug, Default)]
struct Released {
    wishes: Vec<Wish>,
    in_hand: bool,
}

impl Watcher {
    /// Starts a thread, so this is not for one that is confined.
    pub fn new() -> Result<Self, FsError> {
        if confinement::is_confined() {
            let why = "cannot be opened by a thread that is kept to a sandbox";
            return Err(FsError::Unsuitable { path: PathBuf::from("inotify"), why });
        }
        let routes = Arc::new(Routes::default());
        let deliver = Arc::clone(&routes);
        let kernel = Kernel::new(move |event| deliver.deliver(&event))?;
        let shared = Shared {
            kernel: Mutex::new(kernel),
            routes,
            released: Mutex::default(),
            closing: AtomicBool::new(false),
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Blocks: a tree is listed. Changes made after this has returned are told.
    ///
    /// A file may be removed, made again and replaced by another; the watch is for its name. A directory that is removed ends
    /// the watch with `Removed` and `rescan`, unless another takes its place at once, or where somebody watches.
    ///
    /// On a thread that is kept to a policy, the watch is too: what may not be read is not told.
    pub fn watch(&self, path: &Path, depth: WatchDepth) -> Result<Watch, FsError> {
        let root = resolve::real_path(path)?;
        let node = resolve::own_node(&root, Need::Read)?;
        let stat = rustix::fs::fstat(node).map_err(FsError::os("watch", path))?;
        let is_directory = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
        let (scope, wish) = match (is_directory, root.parent()) {
            (false, Some(parent)) => {
                (Scope::File, Wish { directory: parent.to_owned(), depth: WatchDepth::Single })
            }
            _ => {
                let scope = match depth {
                    WatchDepth::Single => Scope::Directory,
                    WatchDepth::Tree => Scope::Tree,
                };
                (scope, Wish { directory: root.clone(), depth })
            }
        };
        let depth = if is_directory { depth } else { WatchDepth::Single };
        let policy = confinement::in_force().map(|confinement| confinement.policy().clone());
        let inbox = Arc::new(Inbox::new(depth, policy));
        let shared = Arc::downgrade(&self.shared);
        self.shared.routes.add(&root, scope, &inbox);
        let watch = Watch { root, wish, inbox, shared, progress: Progress::Waiting };
        // A tree may have been watched in part before the limit was reached; dropping the watch undoes that.
        let added = self.shared.kernel().add(&watch.wish);
        added.map(|()| watch)
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.shared.closing.store(true, Ordering::Relaxed);
        self.shared.routes.close();
    }
}

impl Watch {
    /// The path that is watched, without symlinks.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.root
    }

    /// What has changed, collected for 50 ms after the first change. `None` once the watcher is gone. Cancel-safe.
    pub async fn next(&mut self) -> Option<Changes> {
        loop {
            match &mut self.progress {
                Progress::Waiting => {
                    self.inbox.wait().await?;
                    self.progress = Progress::Collecting { until: Instant::now() + WINDOW };
                }
                Progress::Collecting { until } => {
                    tokio::time::sleep_until(*until).await;
                    self.progress = Progress::Waiting;
                    if let Some(unsettled) = self.inbox.take_unsettled() {
                        let shared = self.shared.upgrade()?;
                        let directory = self.wish.directory.clone();
                        let job = move || shared.settle(&directory, unsettled);
                        self.progress = Progress::Settling(tokio::task::spawn_blocking(job));
                    } else if let Some(changes) = self.inbox.take() {
                        return Some(changes);
                    }
                }
                Progress::Settling(job) => {
                    let settled = job.await;
                    self.progress = Progress::Waiting;
                    self.inbox
                        .settle(settled.unwrap_or(Settled { listed: Vec::new(), lost: true }));
                    if let Some(changes) = self.inbox.take() {
                        return Some(changes);
                    }
                }
            }
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if let Some(shared) = self.shared.upgrade() {
            shared.routes.remove(&self.root, &self.inbox);
            release(shared, self.wish.clone());
        }
    }
}

impl Shared {
    fn settle(&self, directory: &Path, unsettled: Unsettled) -> Settled {
        let mut settled = Settled::default();
        {
            let mut kernel = self.kernel();
            if kernel.catch_up(directory).is_err() {
                settled.lost = true;
                return settled;
            }
            match unsettled.root {
                RootState::Watched => {}
                RootState::Incomplete => kernel.complete(directory),
                RootState::Stale => {
                    kernel.renew(directory);
                    self.routes.renewed(directory);
                }
            }
        }
        settled.lost = unsettled.moved.iter().any(|path| is_directory(path));
        for path in unsettled.arrived {
            listing::list_into(&mut settled, path);
        }
        settled
    }

    fn forget_released(&self) {
        loop {
            let wishes = {
                let mut released = self.released();
                if released.wishes.is_empty() || self.closing.load(Ordering::Relaxed) {
                    released.in_hand = false;
                    return;
                }
                std::mem::take(&mut released.wishes)
            };
            let mut kernel = self.kernel();
            if kernel.catch_up(Path::new("inotify")).is_ok() {
                for path in kernel.remove(&wishes) {
                    self.routes.renewed(&path);
                }
            }
        }
    }

    fn kernel(&self) -> MutexGuard<'_, Kernel> {
        self.kernel.lock().expect("no code panics while it holds the kernel's queue")
    }

    fn released(&self) -> MutexGuard<'_, Released> {
        self.released.lock().expect("no code panics while it holds the list of dropped watches")
    }
}

/// A watch may be dropped on an async worker, and removing it from the kernel may wait for a tree that is being listed.
fn release(shared: Arc<Shared>, wish: Wish) {
    {
        let mut released = shared.released();
        released.wishes.push(wish);
        if std::mem::replace(&mut released.in_hand, true) {
            return;
        }
    }
    let work = move || shared.forget_released();
    match Handle::try_current() {
        Ok(runtime) => drop(runtime.spawn_blocking(work)),
        Err(_) => work(),
    }
}

fn is_directory(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|found| found.is_dir())
}

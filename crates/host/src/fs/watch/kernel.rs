//! The kernel watches behind all watches of one [`Watcher`](super::Watcher): one queue, shared.
//!
//! Every directory is added by itself. `notify` can add whole trees, but gives up at the first directory that cannot be
//! read, knows nothing of trees that overlap, and takes everything below a tree's root away with it.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use notify::{Config, ErrorKind, RecommendedWatcher, RecursiveMode, Watcher as _};
use rustix::io::Errno;

use super::directories::Directories;
use super::requests::WatchRequests;
use crate::fs::FsError;

#[derive(Debug)]
pub(super) struct KernelWatches {
    queue: RecommendedWatcher,
    pub(super) requests: WatchRequests,
    directories: Arc<Directories>,
}

impl KernelWatches {
    pub(super) fn new(
        mut deliver: impl FnMut(notify::Result<notify::Event>) + Send + 'static,
    ) -> Result<Self, FsError> {
        let directories = Arc::new(Directories::default());
        let known = Arc::clone(&directories);
        let hear = move |event: notify::Result<notify::Event>| {
            if let Ok(event) = &event {
                known.heard(event);
            }
            deliver(event);
        };
        let config = Config::default().with_follow_symlinks(false);
        let queue = RecommendedWatcher::new(hear, config)
            .map_err(|error| explain("open", Path::new("inotify"), error))?;
        let mut kernel = Self { queue, requests: WatchRequests::default(), directories };
        match kernel.check() {
            Ok(()) => Ok(kernel),
            // Its thread could not be started, and its destructor would panic for want of it.
            Err(error) => {
                std::mem::forget(kernel);
                Err(error)
            }
        }
    }

    /// Fails if the queue's thread is gone; other calls would panic then.
    pub(super) fn check(&mut self) -> Result<(), FsError> {
        let answer = self.queue.configure(Config::default());
        answer.map(drop).map_err(|error| explain("use", Path::new("inotify"), error))
    }

    /// Watches a directory, or whatever has this name by now. Returns whether anybody wants that.
    pub(super) fn add(&mut self, directory: &Path) -> Result<bool, FsError> {
        if !self.requests.wants(directory) {
            return Ok(false);
        }
        while self.drop_stale() {}
        self.watch(directory)?;
        // A directory that was moved here meanwhile is still watched under its old name, and by one descriptor for both.
        // To drop the old name is to drop this one.
        if self.drop_stale() {
            while self.drop_stale() {}
            self.watch(directory)?;
        }
        Ok(true)
    }

    /// Waits at `at` until the way down to `directory` is there again; not any more if they are the same.
    pub(super) fn await_at(&mut self, directory: &Path, at: &Path) -> Result<bool, FsError> {
        let place = (directory != at).then_some(at);
        let before = self.requests.await_at(directory, place);
        let added = self.add(at);
        let left = match added {
            Ok(_) => before,
            Err(_) => self.requests.await_at(directory, before.as_deref()),
        };
        if let Some(left) = left {
            self.remove_unwanted(&left);
        }
        added
    }

    pub(super) fn remove_unwanted(&mut self, directory: &Path) {
        if !self.requests.wants(directory) {
            self.remove(directory);
        }
    }

    pub(super) fn remove(&mut self, directory: &Path) {
        self.directories.remove(directory);
        self.unwatch(directory);
    }

    pub(super) fn watched_at_and_below(&self, path: &Path) -> Vec<PathBuf> {
        self.directories.at_and_below(path)
    }

    /// Ends one watch on a directory that lost its name. Returns whether there was one.
    pub(super) fn drop_stale(&mut self) -> bool {
        let stale = self.directories.take_stale();
        if let Some(path) = &stale {
            self.unwatch(path);
        }
        stale.is_some()
    }

    fn watch(&mut self, directory: &Path) -> Result<(), FsError> {
        // Before, so that an event that comes at once finds it there.
        self.directories.insert(directory);
        self.queue.watch(directory, RecursiveMode::NonRecursive).map_err(|error| {
            self.directories.remove(directory);
            explain("watch", directory, error)
        })
    }

    fn unwatch(&mut self, directory: &Path) {
        // A directory that was removed has lost its watch already.
        let _ = self.queue.unwatch(directory);
    }
}

fn explain(action: &'static str, path: &Path, error: notify::Error) -> FsError {
    let source = match error.kind {
        ErrorKind::MaxFilesWatch => {
            return FsError::NoWatches { limit: "sysctl fs.inotify.max_user_watches" };
        }
        ErrorKind::Io(error) if error.raw_os_error() == Some(Errno::MFILE.raw_os_error()) => {
            let limit = "sysctl fs.inotify.max_user_instances, or the open files of one process (RLIMIT_NOFILE)";
            return FsError::NoWatches { limit };
        }
        ErrorKind::Io(error) => error,
        ErrorKind::PathNotFound => io::ErrorKind::NotFound.into(),
        other => io::Error::other(notify::Error::new(other)),
    };
    FsError::Os { action, path: path.to_owned(), source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_named() {
        let path = Path::new("/p");
        let watches = explain("watch", path, notify::Error::new(ErrorKind::MaxFilesWatch));
        assert!(matches!(watches, FsError::NoWatches { .. }));
        assert!(watches.to_string().contains("fs.inotify.max_user_watches"), "{watches}");
        let queues = explain("open", path, notify::Error::io(Errno::MFILE.into()));
        assert!(matches!(queues, FsError::NoWatches { .. }));
        assert!(queues.to_string().contains("fs.inotify.max_user_instances"), "{queues}");
    }
}

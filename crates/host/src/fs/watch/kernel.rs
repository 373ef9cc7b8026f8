//! The kernel watches behind all watches of one [`Watcher`](super::Watcher): one queue, shared.
//!
//! `notify` keeps one entry for each path and knows nothing of overlaps. A plain watch on a directory of a watched tree
//! would end the recursion there, and removing a tree removes every watch below its root. So this counts who wants what,
//! asks for the wider of the wishes, and puts back what a removal took from others.

use std::collections::BTreeMap;
use std::io;
use std::ops::Bound;
use std::path::{Path, PathBuf};

use notify::{Config, ErrorKind, RecommendedWatcher, RecursiveMode, Watcher as _};
use rustix::io::Errno;

use super::WatchDepth;
use crate::fs::FsError;

#[derive(Debug)]
pub(super) struct Kernel {
    queue: RecommendedWatcher,
    wanted: BTreeMap<PathBuf, Wanted>,
}

/// A directory that one watch wants to hear of. A watched file wants its parent: a watch on the file itself would
/// follow the inode, and miss the next file of that name.
#[derive(Debug, Clone)]
pub(super) struct Wish {
    pub(super) directory: PathBuf,
    pub(super) depth: WatchDepth,
}

#[derive(Debug, Default)]
struct Wanted {
    singles: usize,
    trees: usize,
}

impl Wanted {
    fn count(&mut self, depth: WatchDepth) -> &mut usize {
        match depth {
            WatchDepth::Single => &mut self.singles,
            WatchDepth::Tree => &mut self.trees,
        }
    }
}

impl Kernel {
    pub(super) fn new(
        deliver: impl FnMut(notify::Result<notify::Event>) + Send + 'static,
    ) -> Result<Self, FsError> {
        let config = Config::default().with_follow_symlinks(false);
        let queue = RecommendedWatcher::new(deliver, config)
            .map_err(|error| explain("open", Path::new("inotify"), error))?;
        let mut kernel = Self { queue, wanted: BTreeMap::new() };
        match kernel.catch_up(Path::new("inotify")) {
            Ok(()) => Ok(kernel),
            // Its thread could not be started, and its destructor would panic for want of it.
            Err(error) => {
                std::mem::forget(kernel);
                Err(error)
            }
        }
    }

    pub(super) fn add(&mut self, wish: &Wish) -> Result<(), FsError> {
        self.catch_up(&wish.directory)?;
        *self.wanted.entry(wish.directory.clone()).or_default().count(wish.depth) += 1;
        let added = self.watch(&wish.directory);
        added.map_err(|error| explain("watch", &wish.directory, error))
    }

    /// Takes wishes back. Returns the paths at and below which kernel watches had to be replaced, so that events may be
    /// missing for whoever else has a watch there.
    pub(super) fn remove(&mut self, wishes: &[Wish]) -> Vec<PathBuf> {
        for wish in wishes {
            self.uncount(wish);
        }
        let mut renewed = Vec::new();
        for Wish { directory, depth } in wishes {
            if self.in_wanted_tree(directory) {
                continue;
            }
            match depth {
                WatchDepth::Tree => {
                    self.renew(directory);
                    renewed.push(directory.clone());
                }
                WatchDepth::Single if !self.wanted.contains_key(directory) => {
                    self.unwatch(directory);
                }
                WatchDepth::Single => {}
            }
        }
        renewed
    }

    /// Watches again what should be watched at and below `path`, whatever happened to the directories there.
    pub(super) fn renew(&mut self, path: &Path) {
        self.unwatch(path);
        let mut again: Vec<PathBuf> = Vec::new();
        if self.in_wanted_tree(path) {
            again.push(path.to_owned());
        } else {
            let below = (Bound::Included(path), Bound::Unbounded);
            let at_and_below = self.wanted.range::<Path, _>(below);
            let mut in_tree: Option<&Path> = None;
            for (root, wanted) in at_and_below.take_while(|(root, _)| root.starts_with(path)) {
                if in_tree.is_none_or(|tree| !root.starts_with(tree)) {
                    again.push(root.clone());
                    in_tree = (wanted.trees > 0).then_some(root);
                }
            }
        }
        for path in again {
            self.complete(&path);
        }
    }

    /// Watches what may have been missed below `path`.
    pub(super) fn complete(&mut self, path: &Path) {
        if let Err(error) = self.watch(path)
            && !is_not_found(&error)
        {
            tracing::warn!(%error, "a directory is no longer watched");
        }
    }

    /// Returns once every event that was delivered so far has had its effect on the kernel watches: the queue's thread adds
    /// watches for new directories only after it has delivered a batch, and answers messages only between batches.
    /// Fails if that thread is gone; other calls would panic then.
    pub(super) fn catch_up(&mut self, path: &Path) -> Result<(), FsError> {
        let answer = self.queue.configure(Config::default());
        answer.map(drop).map_err(|error| explain("watch", path, error))
    }

    fn watch(&mut self, directory: &Path) -> notify::Result<()> {
        let mode = match self.in_wanted_tree(directory) {
            true => RecursiveMode::Recursive,
            false => RecursiveMode::NonRecursive,
        };
        self.queue.watch(directory, mode)
    }

    fn unwatch(&mut self, directory: &Path) {
        // A directory that was removed has lost its watch already.
        let _ = self.queue.unwatch(directory);
    }

    fn in_wanted_tree(&self, path: &Path) -> bool {
        path.ancestors().any(|above| self.wanted.get(above).is_some_and(|wanted| wanted.trees > 0))
    }

    fn uncount(&mut self, wish: &Wish) {
        if let Some(wanted) = self.wanted.get_mut(&wish.directory) {
            let count = wanted.count(wish.depth);
            *count = count.saturating_sub(1);
            if wanted.singles == 0 && wanted.trees == 0 {
                self.wanted.remove(&wish.directory);
            }
        }
    }
}

fn is_not_found(error: &notify::Error) -> bool {
    match &error.kind {
        ErrorKind::PathNotFound => true,
        ErrorKind::Io(error) => error.kind() == io::ErrorKind::NotFound,
        _ => false,
    }
}

fn explain(action: &'static str, path: &Path, error: notify::Error) -> FsError {
    let source = match error.kind {
        ErrorKind::MaxFilesWatch => io::Error::new(
            io::ErrorKind::QuotaExceeded,
            "this user has no inotify watches left (sysctl fs.inotify.max_user_watches)",
        ),
        ErrorKind::Io(error) if error.raw_os_error() == Some(Errno::MFILE.raw_os_error()) => {
            io::Error::new(
                io::ErrorKind::QuotaExceeded,
                "this user has no inotify queues left (sysctl fs.inotify.max_user_instances), \
                 or this process no descriptors",
            )
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
        assert!(watches.to_string().contains("fs.inotify.max_user_watches"), "{watches}");
        let queues = explain("open", path, notify::Error::io(Errno::MFILE.into()));
        assert!(queues.to_string().contains("fs.inotify.max_user_instances"), "{queues}");
    }
}

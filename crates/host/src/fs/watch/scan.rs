//! Scans the disk for a watch: sets kernel watches on the directories of its tree, lists new
//! directories, and finds where a missing directory can be awaited. Blocks, on a thread that the
//! watch's owner has chosen.

use std::ffi::OsStr;
use std::ops::ControlFlow;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::fs::FileType;

use super::Shared;
use super::routes::Awaited;
use super::target::{Scope, WatchTarget};
use super::window::{MAX_PATHS, RootState, Settled};
use crate::fs::confinement::RequiredAccess;
use crate::fs::path::resolve::{self, Identity, Symlinks};
use crate::fs::read::listing::{Listing, own_type};
use crate::fs::{FileKind, FsError};

impl Shared {
    /// Performs the pending scan of a watch, if it has one.
    pub(super) fn settle(&self, target: &Arc<WatchTarget>) {
        let Some(pending_scan) = target.take_pending_scan() else { return };
        // Loss is reported after the scan: changes made before it ends may have produced no event.
        let lost = pending_scan.root != RootState::Watched;
        let mut settled = Settled { lost, ..Settled::default() };
        if pending_scan.root != RootState::Watched {
            let found = self.find_root(target, &mut settled);
            settled.note_failure(&target.root, found);
        }
        for path in pending_scan.moved {
            let moved = self.cover_tree(&path, |_| {});
            settled.lost |= moved.is_ok();
            settled.note_failure(&target.root, moved);
        }
        for path in pending_scan.arrived {
            let arrived = self.cover_tree(&path, |found| settled.list(found));
            settled.note_failure(&target.root, arrived);
        }
        target.settle(settled);
    }

    /// Removes kernel watches that only dropped watches needed.
    pub(super) fn release_closed(&self) {
        let released = self.table().routes.remove_closed();
        for target in released {
            let mut unneeded = match target.scope {
                Scope::File | Scope::Directory => Vec::new(),
                Scope::Tree => self.table().watched_at_and_below(&target.directory),
            };
            // The directory itself, and its ancestors, where it may have been awaited.
            unneeded.extend(target.directory.ancestors().map(Path::to_owned));
            for directory in unneeded {
                if self.closing.load(Ordering::Relaxed) {
                    return;
                }
                self.table().forget_unwanted(&directory);
            }
        }
    }

    /// Watches everything that a target covers. Fails if its directory cannot be watched, or a
    /// limit is reached. Other directories that cannot be watched are left out.
    pub(super) fn cover(&self, target: &WatchTarget) -> Result<(), FsError> {
        match target.scope {
            Scope::File | Scope::Directory => {
                self.watch_directory(&target.directory, open_to_pass).map(drop)
            }
            Scope::Tree => self.cover_tree(&target.directory, |_| {}),
        }
    }

    fn find_root(&self, target: &Arc<WatchTarget>, settled: &mut Settled) -> Result<(), FsError> {
        let directory = &target.directory;
        self.table().routes.set_awaited(target, &Awaited::Anywhere);
        let reached = reach(directory, |at| self.stand_at(at));
        let is_reached = reached == Some(directory);
        let awaited = match reached {
            Some(at) if !is_reached => Awaited::At(at.to_owned()),
            _ => Awaited::Nowhere,
        };
        self.table().routes.set_awaited(target, &awaited);
        for above in directory.ancestors().skip(1) {
            self.table().forget_unwanted(above);
        }
        // The existence of the root is checked even if its directory cannot be watched.
        let looked = open_to_pass(directory).and_then(|_| match target.scope {
            Scope::File => resolve::own_node(&target.root, RequiredAccess::Pass).map(drop),
            Scope::Directory | Scope::Tree => Ok(()),
        });
        settled.root_is_there = match looked {
            Err(error) if is_shortage(&error) => return Err(error),
            looked => Some(looked.is_ok()),
        };
        if is_reached {
            self.cover(target)?;
        }
        self.table().forget_doubtful(directory);
        Ok(())
    }

    fn stand_at(&self, directory: &Path) -> bool {
        let stood = self.watch_directory(directory, open_to_pass);
        if let Err(error) = &stood
            && is_shortage(error)
        {
            let directory = directory.display();
            tracing::warn!(
                %error,
                %directory,
                "cannot watch a directory at or above a watched path"
            );
        }
        matches!(stood, Ok(Some(_)))
    }

    /// Watches a directory and everything below it, and calls `found` with each path. A file that
    /// is created before its directory is watched is found by listing; a later one has an event.
    /// Symlinks are passed to `found`, but not followed.
    ///
    /// Fails if `top` cannot be watched, or a limit is reached. Other directories that cannot be
    /// watched are left out.
    fn cover_tree(&self, top: &Path, mut found: impl FnMut(PathBuf)) -> Result<(), FsError> {
        let mut listing = Listing::new();
        let mut waiting = Vec::new();
        self.cover_one(top, &mut listing, &mut waiting, &mut found)?;
        found(top.to_owned());
        while let Some(directory) = waiting.pop() {
            if self.closing.load(Ordering::Relaxed) {
                break;
            }
            match self.cover_one(&directory, &mut listing, &mut waiting, &mut found) {
                Ok(()) => {}
                Err(error) if is_shortage(&error) => return Err(error),
                Err(error) => {
                    let directory = directory.display();
                    tracing::debug!(
                        %error,
                        %directory,
                        "cannot watch a directory of a watched tree"
                    );
                }
            }
        }
        Ok(())
    }

    fn cover_one(
        &self,
        path: &Path,
        listing: &mut Listing,
        waiting: &mut Vec<PathBuf>,
        found: &mut impl FnMut(PathBuf),
    ) -> Result<(), FsError> {
        let open = |path: &Path| resolve::directory(path, Symlinks::Refuse);
        let Some(directory) = self.watch_directory(path, open)? else { return Ok(()) };
        let directory = directory.as_fd();
        let listed = listing.read(directory, |name, listed| {
            let entry = path.join(OsStr::from_bytes(name.to_bytes()));
            if own_type(directory, name, listed) == Ok(FileType::Directory) {
                waiting.push(entry.clone());
            }
            found(entry);
            ControlFlow::<()>::Continue(())
        });
        listed.map(drop).map_err(FsError::os("list", path))
    }

    /// Watches the directory at this path and returns it. `None` if no target needs it.
    ///
    /// The kernel is given the open directory, so no symlink can redirect the watch. If the path
    /// still leads to the same directory afterwards, a later replacement has an event.
    fn watch_directory(
        &self,
        path: &Path,
        open: impl Fn(&Path) -> Result<OwnedFd, FsError>,
    ) -> Result<Option<OwnedFd>, FsError> {
        let identity = |directory: &OwnedFd| {
            Identity::of(directory.as_fd()).map_err(FsError::os("watch", path))
        };
        let mut directory = open(path)?;
        loop {
            // Locked once per directory, so that other watches do not wait for a whole tree.
            if !self.table().add(path, directory.as_fd())? {
                return Ok(None);
            }
            let now = open(path).inspect_err(|error| {
                if !is_shortage(error) {
                    // Other watches may depend on this name: they must look for it again.
                    self.table().replace(path);
                }
            })?;
            if identity(&now)? == identity(&directory)? {
                return Ok(Some(now));
            }
            directory = now;
        }
    }
}

/// Watches the directory or, if it is missing or cannot be watched, the nearest ancestor that can.
/// Returns the one that is watched. `stand_at` watches one directory.
///
/// The search ascends to the first directory that can be watched and then descends again: a name
/// that is still missing after its parent is watched will have an event when it is created.
fn reach<'a>(directory: &'a Path, mut stand_at: impl FnMut(&'a Path) -> bool) -> Option<&'a Path> {
    let way: Vec<&Path> = directory.ancestors().collect();
    let mut level = 0;
    while level < way.len() && !stand_at(way[level]) {
        level += 1;
    }
    while level > 0 && stand_at(way[level - 1]) {
        level -= 1;
    }
    way.get(level).copied()
}

impl Settled {
    fn list(&mut self, path: PathBuf) {
        if self.listed.len() < MAX_PATHS {
            self.listed.push(path);
        } else {
            self.lost = true;
        }
    }

    /// Changes are lost only if resources ran out: a missing path has had an event of its own, and
    /// an unreadable one must not be reported.
    fn note_failure(&mut self, root: &Path, looked: Result<(), FsError>) {
        if let Err(error) = looked
            && is_shortage(&error)
        {
            let root = root.display();
            tracing::warn!(%error, %root, "cannot watch all directories of a watched path");
            self.lost = true;
        }
    }
}

/// Whether resources or kernel watches ran out, which says nothing about the path.
fn is_shortage(error: &FsError) -> bool {
    matches!(error, FsError::NoWatches { .. }) || error.is_out_of_resources()
}

/// Opens a directory, even one that this thread may not list.
fn open_to_pass(path: &Path) -> Result<OwnedFd, FsError> {
    let node = resolve::node(path, Symlinks::Refuse, RequiredAccess::Pass)?;
    let stat = rustix::fs::fstat(&node).map_err(FsError::os("watch", path))?;
    resolve::expect_kind(path, &stat, FileKind::Directory, "a directory")?;
    Ok(node)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The rest of the path is created as soon as `reach` watches `/`.
    #[test]
    fn a_path_created_during_the_search_is_found() {
        let mut places = Vec::new();
        let mut is_made = false;
        let reached = reach(Path::new("/a/b/c"), |at| {
            places.push(at.to_owned());
            is_made |= at == Path::new("/");
            is_made
        });
        assert_eq!(reached, Some(Path::new("/a/b/c")));
        let way = ["/a/b/c", "/a/b", "/a", "/", "/a", "/a/b", "/a/b/c"];
        assert_eq!(places, way.map(PathBuf::from));
        let above = reach(Path::new("/a/b"), |at| at == Path::new("/a"));
        assert_eq!(above, Some(Path::new("/a")));
        assert_eq!(reach(Path::new("/a/b"), |_| false), None);
    }
}

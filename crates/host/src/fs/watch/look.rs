//! What a watch does on the disk: it adds the directories of its tree, lists those that have only just been noticed, and
//! waits for a directory that is gone. Blocks, on a thread that the watch's owner has chosen.

use std::ffi::OsStr;
use std::ops::ControlFlow;
use std::os::fd::AsFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use rustix::fs::FileType;

use super::inbox::Inbox;
use super::requests::WatchRequest;
use super::routes::Scope;
use super::window::{MAX_PATHS, RootState, Settled};
use super::{Shared, WatchDepth, WatchTarget};
use crate::fs::confinement::RequiredAccess;
use crate::fs::path::resolve::{self, Symlinks};
use crate::fs::read::listing::{Listing, own_type};
use crate::fs::{FileKind, FsError};

impl Shared {
    /// Begins to watch. What cannot be watched below is left out.
    pub(super) fn begin(&self, request: &WatchRequest) -> Result<(), FsError> {
        {
            let mut kernel = self.kernel();
            kernel.check()?;
            kernel.requests.add(request);
        }
        self.cover(request)
    }

    /// Looks at what the events of one watch leave open.
    pub(super) fn settle(&self, target: &WatchTarget, inbox: &Inbox) {
        let is_usable = self.kernel().check().is_ok();
        let Some(pending_scan) = inbox.take_pending_scan() else { return };
        // Told after the look: what happened until then may have had no event.
        let lost = !is_usable || pending_scan.root != RootState::Watched;
        let mut settled = Settled { lost, ..Settled::default() };
        if is_usable {
            while self.kernel().drop_stale() {}
            let root = match pending_scan.root {
                RootState::Watched => Ok(()),
                RootState::Incomplete => self.cover(&target.request),
                RootState::Stale => self.find_root(target, &mut settled),
            };
            settled.note_failure(root);
            for path in pending_scan.moved {
                let moved = self.cover_tree(&path, |_| {});
                settled.lost |= moved.is_ok();
                settled.note_failure(moved);
            }
            for path in pending_scan.arrived {
                let arrived = self.cover_tree(&path, |found| settled.list(found));
                settled.note_failure(arrived);
            }
        }
        inbox.settle(settled);
    }

    /// Takes the requests of dropped watches back.
    pub(super) fn forget_released(&self) {
        let requests = std::mem::take(&mut *self.released());
        for request in requests {
            let unneeded = {
                let mut kernel = self.kernel();
                if kernel.check().is_err() {
                    return;
                }
                let awaited_at = kernel.requests.remove(&request);
                let mut unneeded = match request.depth {
                    WatchDepth::Single => vec![request.directory],
                    WatchDepth::Tree => kernel.watched_at_and_below(&request.directory),
                };
                unneeded.extend(awaited_at);
                unneeded
            };
            for directory in unneeded {
                if self.closing.load(Ordering::Relaxed) {
                    return;
                }
                self.kernel().remove_unwanted(&directory);
            }
        }
    }

    fn cover(&self, request: &WatchRequest) -> Result<(), FsError> {
        match request.depth {
            WatchDepth::Single => self.kernel().add(&request.directory).map(drop),
            WatchDepth::Tree => self.cover_tree(&request.directory, |_| {}),
        }
    }

    fn find_root(&self, target: &WatchTarget, settled: &mut Settled) -> Result<(), FsError> {
        let directory = &target.request.directory;
        let is_reached = reach(directory, |at| self.stand_at(directory, at));
        // Also where it cannot be watched.
        let looked =
            expect_directory(directory, RequiredAccess::Pass).and_then(|()| match target.scope {
                Scope::File => resolve::own_node(&target.root, RequiredAccess::Pass).map(drop),
                _ => Ok(()),
            });
        settled.root_is_there = match looked {
            Err(error) if is_shortage(&error) => return Err(error),
            looked => Some(looked.is_ok()),
        };
        if is_reached { self.cover(&target.request) } else { Ok(()) }
    }

    fn stand_at(&self, directory: &Path, at: &Path) -> bool {
        let stood = expect_directory(at, RequiredAccess::Pass)
            .and_then(|()| self.kernel().await_at(directory, at));
        if let Err(error) = &stood
            && is_shortage(error)
        {
            tracing::warn!(%error, "a directory is no longer watched");
        }
        stood.unwrap_or(false)
    }

    /// Watches a directory and all below it, and then calls `found` with each. What is put into a directory before it is
    /// watched is so found by listing it, and what comes later has an event. Symlinks are found and not followed.
    ///
    /// Fails if `top` cannot be watched, or no more can be. Others below that cannot are left out.
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
                Err(error) => tracing::debug!(%error, "a directory of a tree is not watched"),
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
        expect_directory(path, RequiredAccess::Read)?;
        // One lock for each directory: others that watch, or end, wait for no tree.
        if !self.kernel().add(path)? {
            return Ok(());
        }
        // Only now, so that another that takes its place has an event. A link may have done so before, and was followed.
        let directory = resolve::directory(path, Symlinks::Refuse).inspect_err(|error| {
            if !is_shortage(error) {
                self.kernel().remove(path);
            }
        })?;
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
}

/// Stands at the directory or, if it is not there, at the nearest above it that is. Returns whether it is there.
///
/// From the first where it can stand it goes down again: a name that is still missing after the directory above it is watched
/// will be told when it comes.
fn reach<'a>(directory: &'a Path, mut stand_at: impl FnMut(&'a Path) -> bool) -> bool {
    let way: Vec<&Path> = directory.ancestors().collect();
    let mut level = 0;
    while level < way.len() && !stand_at(way[level]) {
        level += 1;
    }
    while level > 0 && stand_at(way[level - 1]) {
        level -= 1;
    }
    level == 0
}

impl Settled {
    fn list(&mut self, path: PathBuf) {
        if self.listed.len() < MAX_PATHS {
            self.listed.push(path);
        } else {
            self.lost = true;
        }
    }

    /// What is gone, or closed to us, was told, or cannot be. Only what should have been watched is missing.
    fn note_failure(&mut self, looked: Result<(), FsError>) {
        if let Err(error) = looked
            && is_shortage(&error)
        {
            tracing::warn!(%error, "directories of a tree are not watched");
            self.lost = true;
        }
    }
}

/// Nothing is known then of what was looked at: it is neither gone nor closed to us.
fn is_shortage(error: &FsError) -> bool {
    matches!(error, FsError::NoWatches { .. }) || error.is_out_of_resources()
}

fn expect_directory(path: &Path, required: RequiredAccess) -> Result<(), FsError> {
    let node = resolve::node(path, Symlinks::Refuse, required)?;
    let stat = rustix::fs::fstat(node).map_err(FsError::os("watch", path))?;
    resolve::expect_kind(path, &stat, FileKind::Directory, "a directory")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where it stands in the end, if the rest of the way is made as soon as it stands somewhere.
    #[test]
    fn a_way_that_is_made_meanwhile_is_gone_down() {
        let mut places = Vec::new();
        let mut is_made = false;
        let is_reached = reach(Path::new("/a/b/c"), |at| {
            places.push(at.to_owned());
            is_made |= at == Path::new("/");
            is_made
        });
        assert!(is_reached);
        let way = ["/a/b/c", "/a/b", "/a", "/", "/a", "/a/b", "/a/b/c"];
        assert_eq!(places, way.map(PathBuf::from));
        assert!(!reach(Path::new("/a/b"), |at| at == Path::new("/a")));
        assert!(!reach(Path::new("/a/b"), |_| false));
    }
}

//! The differences below one watch since its changes were last taken: bookkeeping without I/O or
//! clock.
//!
//! The result is a difference, not a history. A file that was written ten times is reported as
//! modified once. A file that was created and removed within the window is not reported. A file
//! that was removed and recreated is reported as modified. A file that was created under a
//! temporary name and renamed is reported as created under its current name.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::path::{Path, PathBuf};

use super::difference::{Before, Name, Now, differences};
use super::{Changes, WatchDepth};

/// Beyond either limit the list is dropped, and the watch reports `rescan`.
pub(super) const MAX_PATHS: usize = 4096;
const MAX_PATH_BYTES: usize = 512 << 10;

/// One event of the kernel. Opening, reading or closing a file causes none.
#[derive(Debug, Clone, Copy)]
pub(super) struct FsEvent<'a> {
    pub(super) path: &'a Path,
    pub(super) kind: FsEventKind,
    pub(super) directory: bool,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum FsEventKind {
    Created,
    Modified,
    Removed,
    MovedFrom { cookie: u32 },
    MovedTo { cookie: u32 },
}

impl FsEvent<'_> {
    /// Whether a directory appeared at the path or left it, so that watched paths at and below it
    /// may lead to other directories now.
    pub(super) fn moves_roots(&self) -> bool {
        self.directory && !matches!(self.kind, FsEventKind::Modified)
    }
}

/// The scans needed before the window can be taken.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct PendingScan {
    /// New directories: entries created before the kernel watched the directory had no event.
    pub(super) arrived: BTreeSet<PathBuf>,
    /// Moved directories: changes while their kernel watches are replaced have no event.
    pub(super) moved: BTreeSet<PathBuf>,
    pub(super) root: RootState,
}

/// The state of the kernel watch of the root.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum RootState {
    #[default]
    Watched,
    /// Must be completed: events were lost, and some directories may lack a watch.
    Incomplete,
    /// Must be replaced: the path of the root may lead to another directory now, or to none.
    Stale,
}

/// The results of a scan.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Settled {
    /// The directories that arrived, and everything in them.
    pub(super) listed: Vec<PathBuf>,
    /// Set if the scan looked for the root.
    pub(super) root_is_there: Option<bool>,
    pub(super) lost: bool,
}

#[derive(Debug)]
pub(super) struct ChangeWindow {
    root: PathBuf,
    /// Whether the root existed when changes were last taken.
    root_is_there: bool,
    depth: WatchDepth,
    names: BTreeMap<PathBuf, Name>,
    path_bytes: usize,
    /// The first half of a rename. The second half, if there is one, is usually the next event.
    moving: Option<Moving>,
    /// Directories that were moved away. Their content moved with them, without events.
    departed: BTreeSet<PathBuf>,
    pending_scan: PendingScan,
    rescan: bool,
    /// The list was dropped, and stays empty until the window is taken.
    overflowed: bool,
    /// The number of scans that have begun.
    looks: u64,
    /// The root state that the last scan was given.
    scanned_root: RootState,
}

#[derive(Debug)]
struct Moving {
    cookie: u32,
    path: PathBuf,
    was: Now,
}

impl ChangeWindow {
    pub(super) fn new(root: PathBuf, depth: WatchDepth) -> Self {
        Self {
            root,
            root_is_there: true,
            depth,
            names: BTreeMap::new(),
            path_bytes: 0,
            moving: None,
            departed: BTreeSet::new(),
            pending_scan: PendingScan::default(),
            rescan: false,
            overflowed: false,
            looks: 0,
            scanned_root: RootState::default(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.names.is_empty() && !self.rescan && !self.has_pending_scan()
    }

    pub(super) fn has_pending_scan(&self) -> bool {
        self.pending_scan != PendingScan::default()
    }

    pub(super) fn apply(&mut self, event: FsEvent<'_>) {
        let FsEvent { path, kind, directory } = event;
        match kind {
            FsEventKind::Created => {
                self.put(path, Before::Absent, Now::New);
                if directory {
                    self.expect_content(path);
                }
            }
            FsEventKind::Modified => self.modified(path),
            FsEventKind::Removed => self.put(path, Before::Present, Now::Gone),
            FsEventKind::MovedFrom { cookie } => self.moved_from(path, cookie, directory),
            FsEventKind::MovedTo { cookie } => self.moved_to(path, cookie, directory),
        }
    }

    /// Requires a scan of the root.
    pub(super) fn expect_root(&mut self, root: RootState) {
        self.pending_scan.root = self.pending_scan.root.max(root);
    }

    /// Returns what the scan that begins now must cover. `None` if no scan is needed.
    pub(super) fn take_pending_scan(&mut self) -> Option<PendingScan> {
        let pending_scan = std::mem::take(&mut self.pending_scan);
        (pending_scan != PendingScan::default()).then(|| {
            self.looks += 1;
            self.scanned_root = pending_scan.root;
            pending_scan
        })
    }

    /// Applies the results of a scan, unless an event that arrived after the scan began contradicts
    /// them. If the scan nevertheless saw the newer state, the event of that state is still to
    /// come, and leads to another scan.
    pub(super) fn settle(&mut self, settled: Settled) {
        self.rescan |= settled.lost;
        for path in settled.listed {
            match self.names.get_mut(&path) {
                None => self.put(&path, Before::Unknown, Now::New),
                // Its creation had no event, but a later change did.
                Some(name) if matches!(name.now, Now::Same { .. }) => {
                    (name.before, name.now) = (Before::Unknown, Now::New);
                }
                Some(name) if name.now == Now::Gone && name.looks < self.looks => {
                    name.now = Now::New;
                }
                Some(_) => {}
            }
        }
        if let Some(is_there) = settled.root_is_there {
            self.found_root(is_there);
        }
    }

    fn found_root(&mut self, is_there: bool) {
        let is_known = match self.names.get(&self.root) {
            Some(name) => name.looks == self.looks,
            None => self.scanned_root != RootState::Stale && is_there == self.root_is_there,
        };
        if is_known {
            return;
        }
        let root = self.root.clone();
        let before = if self.root_is_there { Before::Present } else { Before::Absent };
        self.put(&root, before, if is_there { Now::New } else { Now::Gone });
        if let Some(name) = self.names.get_mut(&root) {
            name.before = before;
        }
    }

    /// `None` if there is no difference.
    pub(super) fn take(&mut self) -> Option<Changes> {
        let departed = std::mem::take(&mut self.departed);
        // The name now belongs to another file, whose change does not report that the content of
        // the old directory is gone.
        let is_replaced =
            |path| self.names.get(path).is_some_and(|name: &Name| name.now != Now::Gone);
        let rescan = std::mem::take(&mut self.rescan) || departed.iter().any(is_replaced);
        self.overflowed = false;
        self.path_bytes = 0;
        self.moving = None;
        let names = std::mem::take(&mut self.names);
        if let Some(name) = names.get(&self.root) {
            self.root_is_there = name.now != Now::Gone;
        }
        let changes = differences(names);
        (rescan || !changes.is_empty()).then_some(Changes { changes, rescan })
    }

    fn modified(&mut self, path: &Path) {
        match self.names.get_mut(path).map(|name| &mut name.now) {
            None => self.put(path, Before::Present, Now::Same { modified: true }),
            Some(Now::Same { modified } | Now::Moved { modified, .. }) => *modified = true,
            // A removed file may still be open and written to.
            Some(Now::New | Now::Gone) => {}
        }
    }

    fn moved_from(&mut self, path: &Path, cookie: u32, directory: bool) {
        let was = self.names.get(path).map(|name| name.now.clone());
        let was = was.unwrap_or(Now::Same { modified: false });
        self.put(path, Before::Present, Now::Gone);
        self.moving = Some(Moving { cookie, path: path.to_owned(), was });
        if directory && self.depth == WatchDepth::Tree && !self.overflowed {
            self.departed.insert(path.to_owned());
        }
    }

    fn moved_to(&mut self, path: &Path, cookie: u32, directory: bool) {
        let Some(moving) = self.moving.take_if(|moving| moving.cookie == cookie) else {
            self.put(path, Before::Unknown, Now::New);
            if directory {
                self.expect_content(path);
            }
            return;
        };
        let now = match moving.was {
            Now::New | Now::Gone => Now::New,
            Now::Same { modified } => Now::Moved { from: moving.path.clone(), modified },
            Now::Moved { from, modified } if from == path => Now::Same { modified },
            Now::Moved { from, modified } => Now::Moved { from, modified },
        };
        if directory {
            match now {
                Now::New => self.expect_content(path),
                _ => self.expect_scan(path, |pending_scan| &mut pending_scan.moved),
            }
        }
        self.put(path, Before::Unknown, now);
        if directory {
            self.carry_along(&moving.path, path);
        }
    }

    /// Moves the changes of names in a renamed directory to their current names.
    fn carry_along(&mut self, from: &Path, to: &Path) {
        let below = (Bound::Excluded(from), Bound::Unbounded);
        let carried: Vec<PathBuf> = self
            .names
            .range::<Path, _>(below)
            .take_while(|(path, _)| path.starts_with(from))
            .map(|(path, _)| path.clone())
            .collect();
        for old in carried {
            let (Some(name), Ok(rest)) = (self.names.remove(&old), old.strip_prefix(from)) else {
                continue;
            };
            self.path_bytes -= old.as_os_str().len();
            let new = to.join(rest);
            self.put(&new, name.before, name.now);
            if let Some(carried) = self.names.get_mut(&new) {
                carried.looks = name.looks;
            }
        }
    }

    fn expect_content(&mut self, path: &Path) {
        self.expect_scan(path, |pending_scan| &mut pending_scan.arrived);
    }

    fn expect_scan(&mut self, path: &Path, of: fn(&mut PendingScan) -> &mut BTreeSet<PathBuf>) {
        match self.depth {
            WatchDepth::Single => {}
            WatchDepth::Tree if self.overflowed => self.expect_root(RootState::Incomplete),
            WatchDepth::Tree => {
                let paths = of(&mut self.pending_scan);
                paths.insert(path.to_owned());
                if paths.len() > MAX_PATHS {
                    self.overflow();
                }
            }
        }
    }

    /// Records the state of a name. `before` counts only if the window has not seen the name yet.
    fn put(&mut self, path: &Path, before: Before, now: Now) {
        if self.overflowed {
            return;
        }
        let looks = self.looks;
        if let Some(name) = self.names.get_mut(path) {
            (name.now, name.looks) = (now, looks);
            return;
        }
        self.path_bytes += path.as_os_str().len();
        if self.names.len() == MAX_PATHS || self.path_bytes > MAX_PATH_BYTES {
            return self.overflow();
        }
        self.names.insert(path.to_owned(), Name { before, now, looks });
    }

    fn overflow(&mut self) {
        self.overflowed = true;
        self.rescan = true;
        self.names = BTreeMap::new();
        self.moving = None;
        self.departed.clear();
        if self.depth == WatchDepth::Tree {
            self.expect_root(RootState::Incomplete);
        }
        self.pending_scan.arrived.clear();
        self.pending_scan.moved.clear();
    }
}

#[cfg(test)]
mod tests;

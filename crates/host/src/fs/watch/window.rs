//! What became different below one watch since its changes were last taken: bookkeeping without I/O or clock.
//!
//! The result is a difference between then and now, not a history. A file that was written ten times was modified once; one
//! that came and went within the window is not mentioned; one that was removed and made again was modified; a file that was
//! made under a temporary name and renamed was created under the name it has now.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::path::{Path, PathBuf};

use super::difference::{Before, Name, Now, differences};
use super::{Changes, WatchDepth};

/// Beyond either bound the list is dropped, and the watch's owner is told to look for himself.
pub(super) const MAX_PATHS: usize = 4096;
const MAX_PATH_BYTES: usize = 512 << 10;

/// One event of the kernel. That a file was opened, read or closed is none.
#[derive(Debug, Clone, Copy)]
pub(super) struct FsEvent<'a> {
    pub(super) path: &'a Path,
    pub(super) kind: FsEventKind,
    /// Whether the path is that of a directory.
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
    /// Whether watched directories at and below the path are no longer what they were.
    pub(super) fn moves_roots(&self) -> bool {
        self.directory && !matches!(self.kind, FsEventKind::Modified)
    }
}

/// What has to be looked at on the disk before the window can be taken.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct PendingScan {
    /// Directories: what was put in them before the kernel watched them had no event.
    pub(super) arrived: BTreeSet<PathBuf>,
    /// Directories: the kernel watches of a moved one are replaced, which leaves a gap.
    pub(super) moved: BTreeSet<PathBuf>,
    pub(super) root: RootState,
}

/// What the kernel watch of the root needs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum RootState {
    #[default]
    Watched,
    /// To be completed: events were lost, and some directories may lack a watch.
    Incomplete,
    /// To be replaced: it belongs to a directory that is elsewhere now, or nowhere.
    Stale,
}

/// What was found there.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Settled {
    /// The directories that arrived, and everything in them.
    pub(super) listed: Vec<PathBuf>,
    /// If it was looked for.
    pub(super) root_is_there: Option<bool>,
    pub(super) lost: bool,
}

#[derive(Debug)]
pub(super) struct ChangeWindow {
    root: PathBuf,
    /// As far as has been told.
    root_is_there: bool,
    depth: WatchDepth,
    names: BTreeMap<PathBuf, Name>,
    path_bytes: usize,
    /// The first half of a rename; the kernel sends the second half next, if there is one.
    moving: Option<Moving>,
    /// Directories that were moved away. What is in them went along, and had no event.
    departed: BTreeSet<PathBuf>,
    pending_scan: PendingScan,
    rescan: bool,
    /// The list was dropped, and stays empty until the window is taken.
    overflowed: bool,
    /// How many looks at the disk have begun.
    looks: u64,
    /// What the last of them was told of the root.
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

    /// The root has to be looked at.
    pub(super) fn expect_root(&mut self, root: RootState) {
        self.pending_scan.root = self.pending_scan.root.max(root);
    }

    /// A look at the disk begins.
    pub(super) fn take_pending_scan(&mut self) -> Option<PendingScan> {
        let pending_scan = std::mem::take(&mut self.pending_scan);
        (pending_scan != PendingScan::default()).then(|| {
            self.looks += 1;
            self.scanned_root = pending_scan.root;
            pending_scan
        })
    }

    /// What was found counts, unless an event that came after the look had begun says otherwise. If that event was the
    /// older of the two nevertheless, the one that brought what was found is still to come, and leads to another look.
    pub(super) fn settle(&mut self, settled: Settled) {
        self.rescan |= settled.lost;
        for path in settled.listed {
            match self.names.get_mut(&path) {
                None => self.put(&path, Before::Unknown, Now::New),
                // Its creation had no event, a later change of it had.
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

    /// `None` if, all in all, nothing is different.
    pub(super) fn take(&mut self) -> Option<Changes> {
        let departed = std::mem::take(&mut self.departed);
        // That something else has the name does not tell what was below it.
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
            // One that is gone may still be open and written to.
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

    /// What happened to names in a directory that was renamed since happened to the names they have now.
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

    /// `before` counts only if the window has not seen the name yet.
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
mod tests {
    use super::*;
    use crate::fs::watch::Change;

    fn tree() -> ChangeWindow {
        ChangeWindow::new(PathBuf::from("/root"), WatchDepth::Tree)
    }

    fn event(path: &str, kind: FsEventKind) -> FsEvent<'_> {
        FsEvent { path: Path::new(path), kind, directory: false }
    }

    fn created(path: &str) -> FsEvent<'_> {
        event(path, FsEventKind::Created)
    }

    fn as_directory(event: FsEvent<'_>) -> FsEvent<'_> {
        FsEvent { directory: true, ..event }
    }

    fn directory_created(path: &str) -> FsEvent<'_> {
        as_directory(created(path))
    }

    fn modified(path: &str) -> FsEvent<'_> {
        event(path, FsEventKind::Modified)
    }

    fn removed(path: &str) -> FsEvent<'_> {
        event(path, FsEventKind::Removed)
    }

    fn renamed<'a>(from: &'a str, to: &'a str) -> [FsEvent<'a>; 2] {
        let cookie = u32::try_from(from.len() * 1000 + to.len()).unwrap();
        [event(from, FsEventKind::MovedFrom { cookie }), event(to, FsEventKind::MovedTo { cookie })]
    }

    fn outcome<'a>(events: impl IntoIterator<Item = FsEvent<'a>>) -> Vec<String> {
        let mut window = tree();
        for event in events {
            window.apply(event);
        }
        window.take().map(|taken| shown(&taken)).unwrap_or_default()
    }

    fn shown(changes: &Changes) -> Vec<String> {
        let show = |change: &Change| match &change.from {
            Some(from) => {
                format!("{:?} {} <- {}", change.kind, change.path.display(), from.display())
            }
            None => format!("{:?} {}", change.kind, change.path.display()),
        };
        changes.changes.iter().map(show).collect()
    }

    #[test]
    fn the_difference_is_told_not_the_history() {
        assert_eq!(outcome([created("/a"), modified("/a")]), ["Created /a"]);
        assert_eq!(outcome([modified("/a"), modified("/a")]), ["Modified /a"]);
        assert_eq!(outcome([created("/a"), modified("/a"), removed("/a")]), [""; 0]);
        assert_eq!(outcome([removed("/a"), created("/a")]), ["Modified /a"]);
        assert_eq!(outcome([removed("/a"), created("/a"), removed("/a")]), ["Removed /a"]);
        assert_eq!(outcome([modified("/a"), removed("/a")]), ["Removed /a"]);
        assert_eq!(outcome([removed("/a"), modified("/a")]), ["Removed /a"]);
    }

    /// A client that reads nothing while two names are swapped again and again.
    #[test]
    fn directories_that_move_to_and_fro_take_no_memory() {
        let mut window = tree();
        for _ in 0..1000 {
            for event in
                renamed("/root/a", "/root/b").into_iter().chain(renamed("/root/b", "/root/a"))
            {
                window.apply(as_directory(event));
            }
        }
        assert!(window.departed.len() <= 2 && window.names.len() <= 2);
        let deep: Vec<_> = (0..=MAX_PATHS).map(|number| format!("/root/b/{number}")).collect();
        for (number, arrived) in deep.iter().enumerate() {
            window.apply(directory_created(arrived));
            let held = window.pending_scan.arrived.len() + window.pending_scan.moved.len();
            assert!(held <= MAX_PATHS, "{held} after {number}");
        }
        assert!(window.take().unwrap().rescan);
    }

    #[test]
    fn a_rename_has_two_ends() {
        assert_eq!(outcome(renamed("/a", "/b")), ["Renamed /b <- /a"]);
        assert_eq!(
            outcome([renamed("/a", "/bb"), renamed("/bb", "/c")].concat()),
            ["Removed /bb", "Renamed /c <- /a"]
        );
        assert_eq!(outcome([renamed("/a", "/bb"), renamed("/bb", "/a")].concat()), ["Removed /bb"]);
        let [from, to] = renamed("/a", "/b");
        assert_eq!(outcome([from]), ["Removed /a"]);
        assert_eq!(outcome([to]), ["Created /b"]);
        assert_eq!(outcome([from, to, modified("/b")]), ["Renamed /b <- /a", "Modified /b"]);
        assert_eq!(outcome([modified("/a"), from, to]), ["Renamed /b <- /a", "Modified /b"]);
        assert_eq!(outcome([from, to, created("/a")]), ["Modified /a", "Renamed /b <- /a"]);
        assert_eq!(outcome([from, to, removed("/b")]), ["Removed /a", "Removed /b"]);
    }

    #[test]
    fn a_temporary_name_is_not_mentioned() {
        let [from, to] = renamed("/file.tmp", "/file");
        assert_eq!(
            outcome([created("/file.tmp"), modified("/file.tmp"), from, to]),
            ["Created /file"]
        );
    }

    #[test]
    fn changes_follow_their_directory() {
        let [from, to] = renamed("/d", "/ee").map(as_directory);
        assert_eq!(
            outcome([created("/d/new"), modified("/d/old"), modified("/dd"), from, to]),
            ["Modified /dd", "Renamed /ee <- /d", "Created /ee/new", "Modified /ee/old"]
        );
    }

    #[test]
    fn a_halved_rename_is_not_joined_across_windows() {
        let mut window = tree();
        let [from, to] = renamed("/a", "/b");
        window.apply(from);
        assert_eq!(shown(&window.take().unwrap()), ["Removed /a"]);
        window.apply(to);
        assert_eq!(shown(&window.take().unwrap()), ["Created /b"]);
    }

    #[test]
    fn a_list_that_is_too_long_is_dropped() {
        let mut window = tree();
        let paths: Vec<String> = (0..=MAX_PATHS).map(|index| format!("/{index}")).collect();
        for path in &paths[..MAX_PATHS] {
            window.apply(created(path));
        }
        assert!(!window.rescan);
        window.apply(modified(&paths[0]));
        assert!(!window.rescan, "the same path again costs nothing");
        window.apply(created(&paths[MAX_PATHS]));
        window.apply(created("/later"));
        let taken = window.take().unwrap();
        assert!(taken.rescan && taken.changes.is_empty());
        window.apply(created("/after"));
        let taken = window.take().unwrap();
        assert!(!taken.rescan);
        assert_eq!(shown(&taken), ["Created /after"]);
    }

    #[test]
    fn long_names_count_by_their_length() {
        let mut window = tree();
        for index in 0..200 {
            window.apply(created(&format!("/{}/{index}", "x".repeat(4000))));
        }
        assert!(window.take().unwrap().rescan);
    }

    fn found(paths: &[&str]) -> Settled {
        Settled { listed: paths.iter().map(PathBuf::from).collect(), ..Settled::default() }
    }

    #[test]
    fn what_was_listed_gives_way_to_what_was_seen_later() {
        let mut window = tree();
        window.apply(directory_created("/d"));
        let pending_scan = window.take_pending_scan().unwrap();
        assert_eq!(pending_scan.arrived, BTreeSet::from([PathBuf::from("/d")]));
        window.apply(removed("/d/gone"));
        window.apply(modified("/d/written"));
        window.settle(found(&["/d", "/d/gone", "/d/quiet", "/d/written"]));
        assert_eq!(
            shown(&window.take().unwrap()),
            ["Created /d", "Removed /d/gone", "Created /d/quiet", "Created /d/written"]
        );
    }

    /// A directory is removed with its files, and made again with some of them, all within one window.
    #[test]
    fn what_was_listed_is_newer_than_what_was_removed_before() {
        let mut window = tree();
        for path in ["/d/again", "/d/gone", "/d"] {
            window.apply(removed(path));
        }
        window.apply(directory_created("/d"));
        assert!(window.take_pending_scan().is_some());
        window.settle(found(&["/d", "/d/again", "/d/new"]));
        assert_eq!(
            shown(&window.take().unwrap()),
            ["Modified /d", "Modified /d/again", "Removed /d/gone", "Created /d/new"]
        );
    }

    /// The same while the disk is looked at: the new directory is told, and looked at, after the removal.
    #[test]
    fn a_directory_that_is_made_again_during_a_look_is_looked_at_again() {
        let mut window = tree();
        window.apply(directory_created("/d"));
        assert!(window.take_pending_scan().is_some());
        for path in ["/d/again", "/d"] {
            window.apply(removed(path));
        }
        window.apply(directory_created("/d"));
        window.settle(found(&["/d", "/d/again"]));
        assert_eq!(shown(&window.take().unwrap()), ["Created /d", "Removed /d/again"]);
        assert_eq!(window.take_pending_scan().unwrap().arrived.len(), 1);
        window.settle(found(&["/d", "/d/again"]));
        assert_eq!(shown(&window.take().unwrap()), ["Created /d", "Created /d/again"]);
    }

    #[test]
    fn nothing_is_in_a_directory_that_is_gone() {
        let [from, to] = renamed("/file", "/d/in");
        let [gone, _] = renamed("/d", "/elsewhere");
        let before = [created("/d/new"), modified("/d/old"), removed("/d/removed")];
        let told = outcome(before.into_iter().chain([from, to, gone, modified("/d/late")]));
        assert_eq!(told, ["Removed /d", "Removed /d/removed", "Removed /file"]);
    }

    /// It is not known whether the first rename replaced something.
    #[test]
    fn a_name_between_two_renames_is_told_as_removed() {
        let chain = [renamed("/new", "/log"), renamed("/log", "/log.1")].concat();
        assert_eq!(outcome(chain), ["Removed /log", "Renamed /log.1 <- /new"]);
    }

    #[test]
    fn only_a_tree_looks_into_new_directories() {
        let mut window = ChangeWindow::new(PathBuf::from("/root"), WatchDepth::Single);
        window.apply(directory_created("/d"));
        assert_eq!(window.take_pending_scan(), None);
    }

    #[test]
    fn a_list_that_is_dropped_is_no_reason_to_miss_directories() {
        let mut window = tree();
        for index in 0..MAX_PATHS {
            let path = format!("/{index}");
            window.apply(directory_created(&path));
        }
        window.apply(created("/one too many"));
        let pending_scan = window.take_pending_scan().unwrap();
        assert_eq!((pending_scan.root, pending_scan.arrived.len()), (RootState::Incomplete, 0));
        window.apply(directory_created("/later"));
        window.settle(Settled { lost: true, ..Settled::default() });
        assert!(window.take().unwrap().rescan);
        assert_eq!(window.take_pending_scan().unwrap().root, RootState::Incomplete);
    }

    fn look_for_root(window: &mut ChangeWindow, is_there: bool) -> Vec<String> {
        window.expect_root(RootState::Stale);
        window.expect_root(RootState::Incomplete);
        assert_eq!(window.take_pending_scan().unwrap().root, RootState::Stale);
        let (root_is_there, lost) = (Some(is_there), true);
        window.settle(Settled { root_is_there, lost, ..Settled::default() });
        let taken = window.take().unwrap();
        assert!(taken.rescan && window.is_empty() && window.take().is_none());
        shown(&taken)
    }

    #[test]
    fn a_root_is_told_as_it_is_found() {
        let mut window = tree();
        assert_eq!(look_for_root(&mut window, true), ["Modified /root"]);
        assert_eq!(look_for_root(&mut window, false), ["Removed /root"]);
        assert_eq!(look_for_root(&mut window, false), [""; 0]);
        assert_eq!(look_for_root(&mut window, true), ["Created /root"]);
        window.apply(removed("/root"));
        assert_eq!(shown(&window.take().unwrap()), ["Removed /root"]);
        window.apply(created("/root"));
        assert_eq!(look_for_root(&mut window, true), ["Created /root"]);
    }

    #[test]
    fn a_root_that_is_only_incomplete_is_told_if_it_is_not_as_before() {
        let mut window = tree();
        let mut look = |is_there| {
            window.expect_root(RootState::Incomplete);
            assert!(window.take_pending_scan().is_some());
            let (root_is_there, lost) = (Some(is_there), true);
            window.settle(Settled { root_is_there, lost, ..Settled::default() });
            shown(&window.take().unwrap())
        };
        assert_eq!(look(true), [""; 0]);
        assert_eq!(look(false), ["Removed /root"]);
        assert_eq!(look(false), [""; 0]);
        assert_eq!(look(true), ["Created /root"]);
    }

    #[test]
    fn only_a_directory_that_is_renamed_is_looked_into() {
        let mut window = tree();
        renamed("/a", "/b").into_iter().for_each(|event| window.apply(event));
        assert!(!window.has_pending_scan());
        for event in renamed("/c", "/d") {
            window.apply(as_directory(event));
        }
        let pending_scan = window.take_pending_scan().unwrap();
        assert_eq!(pending_scan.moved, BTreeSet::from([PathBuf::from("/d")]));
    }

    /// It has the name of a directory that was removed before.
    #[test]
    fn nothing_follows_a_file() {
        let [from, to] = renamed("/d", "/ee");
        let told = outcome([removed("/d/old"), removed("/d"), created("/d"), from, to]);
        assert_eq!(told, ["Removed /d", "Removed /d/old", "Created /ee"]);
    }

    /// It is told as modified, and nobody could know what was in the first.
    #[test]
    fn a_directory_in_the_place_of_one_that_was_moved_away_is_a_reason_to_look() {
        let away = as_directory(renamed("/d", "/elsewhere")[0]);
        for (depth, rescan) in [(WatchDepth::Tree, true), (WatchDepth::Single, false)] {
            let mut window = ChangeWindow::new(PathBuf::from("/"), depth);
            window.apply(away);
            window.apply(directory_created("/d"));
            let taken = window.take().unwrap();
            assert_eq!((shown(&taken), taken.rescan), (vec!["Modified /d".to_owned()], rescan));
            window.apply(away);
            let taken = window.take().unwrap();
            assert_eq!((shown(&taken), taken.rescan), (vec!["Removed /d".to_owned()], false));
        }
    }

    #[test]
    fn a_root_that_goes_during_a_look_is_gone() {
        let mut window = tree();
        window.expect_root(RootState::Stale);
        assert!(window.take_pending_scan().is_some());
        window.apply(removed("/root"));
        window.settle(Settled { root_is_there: Some(true), ..Settled::default() });
        assert_eq!(shown(&window.take().unwrap()), ["Removed /root"]);
    }
}

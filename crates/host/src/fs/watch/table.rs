//! The directories that the kernel watches, and the targets that need them. Turns an event of the
//! kernel into an [`FsEvent`].

use std::ffi::{CStr, OsStr};
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::inotify::ReadFlags;

use super::directories::Directories;
use super::inotify::Inotify;
use super::routes::Routes;
use super::window::{FsEvent, FsEventKind};
use crate::fs::FsError;

#[derive(Debug)]
pub(super) struct WatchTable {
    inotify: Arc<Inotify>,
    directories: Directories,
    pub(super) routes: Routes,
}

impl WatchTable {
    pub(super) fn new(inotify: Arc<Inotify>) -> Self {
        Self { inotify, directories: Directories::default(), routes: Routes::default() }
    }

    /// Watches an open directory under this name. Returns whether any target needs it.
    pub(super) fn add(&mut self, name: &Path, directory: BorrowedFd<'_>) -> Result<bool, FsError> {
        if !self.routes.wants(name) {
            return Ok(false);
        }
        let mut descriptor = self.inotify.watch(name, directory)?;
        if self.directories.confirm(descriptor, name) {
            return Ok(true);
        }
        if self.directories.contains(name) {
            // Another directory had this name. The remaining events of that directory are dropped,
            // because it no longer has a name.
            self.replace(name);
        }
        let others = self.directories.names(descriptor);
        if !others.is_empty() {
            // The directory was moved here, or is mounted in several places. Queued events, such as
            // that of the move, concern its other names only and have the old descriptor. All names
            // share the new one.
            self.inotify.unwatch(descriptor);
            descriptor = self.inotify.watch(name, directory)?;
            for other in others {
                self.directories.insert(descriptor, &other);
                self.routes.events_lost(&other);
            }
        }
        self.directories.insert(descriptor, name);
        Ok(true)
    }

    /// Forgets the path and every path below it. Kernel watches that are left without a name end.
    pub(super) fn forget(&mut self, path: &Path) {
        for name in self.directories.at_and_below(path) {
            self.forget_name(&name);
        }
    }

    /// Forgets the names at and below the path that are still doubtful after a scan has checked all
    /// directories there: the directories of these names were moved or removed.
    pub(super) fn forget_doubtful(&mut self, path: &Path) {
        for name in self.directories.doubtful_at_and_below(path) {
            self.forget_name(&name);
        }
    }

    pub(super) fn forget_unwanted(&mut self, name: &Path) {
        if !self.routes.wants(name) {
            self.forget_name(name);
        }
    }

    pub(super) fn watched_at_and_below(&self, path: &Path) -> Vec<PathBuf> {
        self.directories.at_and_below(path)
    }

    pub(super) fn handle(
        &mut self,
        descriptor: i32,
        flags: ReadFlags,
        cookie: u32,
        name: Option<&CStr>,
    ) {
        if flags.contains(ReadFlags::QUEUE_OVERFLOW) {
            self.directories.doubt_all();
            return self.routes.all_events_lost();
        }
        if flags.contains(ReadFlags::IGNORED) {
            // Names with a newer descriptor stay.
            let ended = self.directories.remove_descriptor(descriptor);
            return ended.iter().for_each(|name| self.lose(name));
        }
        for directory in self.directories.names(descriptor) {
            match name {
                Some(name) => {
                    let path = directory.join(OsStr::from_bytes(name.to_bytes()));
                    self.happened(&path, flags, cookie);
                }
                None if flags.contains(ReadFlags::DELETE_SELF) => self.replace(&directory),
                None if flags.intersects(ReadFlags::MOVE_SELF | ReadFlags::UNMOUNT) => {
                    self.lose(&directory);
                }
                None => self.happened(&directory, flags, cookie),
            }
        }
    }

    fn happened(&mut self, path: &Path, flags: ReadFlags, cookie: u32) {
        let Some(kind) = kind(flags, cookie) else { return };
        let event = FsEvent { path, kind, directory: flags.contains(ReadFlags::ISDIR) };
        // Done before any target is notified: a target that scans the path must not find the old
        // directory in this table.
        if event.directory && matches!(kind, FsEventKind::Removed | FsEventKind::MovedFrom { .. }) {
            self.forget(path);
        }
        self.routes.deliver(event);
    }

    /// Handles a directory that no longer has its name. Watches of a tree above it are notified by
    /// an event of its parent, which comes before `MOVE_SELF` and after `DELETE_SELF`.
    pub(super) fn replace(&mut self, name: &Path) {
        self.forget(name);
        self.routes.root_moved(name);
    }

    /// Handles a directory that reports its end or its move while the table still has its name. No
    /// watched parent has reported that: the directory was the root of a watch, a mount point, or
    /// one of several mounts of the same directory.
    fn lose(&mut self, name: &Path) {
        self.replace(name);
        self.routes.events_lost(name);
    }

    fn forget_name(&mut self, name: &Path) {
        for descriptor in self.directories.remove_name(name) {
            self.inotify.unwatch(descriptor);
        }
    }
}

fn kind(flags: ReadFlags, cookie: u32) -> Option<FsEventKind> {
    let kinds = [
        (ReadFlags::CREATE, FsEventKind::Created),
        (ReadFlags::MODIFY.union(ReadFlags::ATTRIB), FsEventKind::Modified),
        (ReadFlags::DELETE, FsEventKind::Removed),
        (ReadFlags::MOVED_FROM, FsEventKind::MovedFrom { cookie }),
        (ReadFlags::MOVED_TO, FsEventKind::MovedTo { cookie }),
    ];
    kinds.into_iter().find(|(any_of, _)| flags.intersects(*any_of)).map(|(_, kind)| kind)
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsFd as _, OwnedFd};

    use rustix::fs::{Mode, OFlags};
    use tempfile::TempDir;

    use super::*;
    use crate::fs::watch::ChangeKind;
    use crate::fs::watch::target::{Scope, WatchTarget};
    use crate::fs::watch::window::RootState;

    /// A table whose queue is not read: each test supplies the kernel's events.
    fn table() -> WatchTable {
        WatchTable::new(Arc::new(Inotify::new().unwrap()))
    }

    fn watched(table: &mut WatchTable, root: &str, scope: Scope) -> Arc<WatchTarget> {
        let target = Arc::new(WatchTarget::new(PathBuf::from(root), scope, None));
        table.routes.add(Arc::clone(&target));
        target
    }

    /// A directory, under names chosen by a test.
    struct Directory {
        node: OwnedFd,
        _keep: TempDir,
    }

    impl Directory {
        fn new() -> Self {
            let keep = tempfile::tempdir().unwrap();
            let node = rustix::fs::open(keep.path(), OFlags::PATH, Mode::empty()).unwrap();
            Self { node, _keep: keep }
        }

        fn add_to(&self, table: &mut WatchTable, name: &str) -> i32 {
            assert!(table.add(Path::new(name), self.node.as_fd()).unwrap());
            self.descriptor(table)
        }

        /// For a watched directory, the kernel returns the existing descriptor.
        fn descriptor(&self, table: &WatchTable) -> i32 {
            table.inotify.watch(Path::new("it"), self.node.as_fd()).unwrap()
        }
    }

    fn create(table: &mut WatchTable, descriptor: i32, name: &CStr) {
        table.handle(descriptor, ReadFlags::CREATE, 0, Some(name));
    }

    fn told(target: &WatchTarget) -> Vec<(ChangeKind, PathBuf)> {
        let changes = target.take().map(|taken| taken.changes).unwrap_or_default();
        changes.into_iter().map(|change| (change.kind, change.path)).collect()
    }

    fn created(path: &str) -> [(ChangeKind, PathBuf); 1] {
        [(ChangeKind::Created, PathBuf::from(path))]
    }

    fn root_state(target: &WatchTarget) -> RootState {
        target.take_pending_scan().unwrap_or_default().root
    }

    #[test]
    fn opening_and_reading_are_not_reported() {
        let (mut table, directory) = (table(), Directory::new());
        let target = watched(&mut table, "/d", Scope::Tree);
        let descriptor = directory.add_to(&mut table, "/d");
        let read = ReadFlags::ACCESS | ReadFlags::OPEN | ReadFlags::CLOSE_WRITE;
        table.handle(descriptor, read, 0, Some(c"file"));
        assert_eq!(target.take(), None);
        table.handle(descriptor, ReadFlags::ATTRIB | ReadFlags::ISDIR, 0, None);
        assert_eq!(told(&target), [(ChangeKind::Modified, PathBuf::from("/d"))]);
    }

    /// The parent reports the move and the removal.
    #[test]
    fn self_events_of_a_moved_directory_change_no_names() {
        let (mut table, above, directory) = (table(), Directory::new(), Directory::new());
        let tree = watched(&mut table, "/t", Scope::Tree);
        let inner = watched(&mut table, "/t/d", Scope::Directory);
        let descriptor_above = above.add_to(&mut table, "/t");
        let descriptor = directory.add_to(&mut table, "/t/d");
        let moved = ReadFlags::MOVED_FROM | ReadFlags::ISDIR;
        table.handle(descriptor_above, moved, 1, Some(c"d"));
        assert_eq!(told(&tree), [(ChangeKind::Removed, PathBuf::from("/t/d"))]);
        assert_eq!(root_state(&inner), RootState::Stale);
        for late in [ReadFlags::MOVE_SELF, ReadFlags::DELETE_SELF, ReadFlags::IGNORED] {
            table.handle(descriptor, late, 0, None);
        }
        assert_eq!(tree.take(), None);
        assert!(!tree.has_pending_scan() && !inner.has_pending_scan());
    }

    /// The directory is a root, or a mount point below a root, so no watched parent reports its
    /// removal.
    #[test]
    fn a_directory_that_reports_its_own_removal_is_looked_for_again() {
        for (gone, above) in [
            (ReadFlags::MOVE_SELF, RootState::Incomplete),
            (ReadFlags::DELETE_SELF, RootState::Watched),
            (ReadFlags::UNMOUNT, RootState::Incomplete),
            (ReadFlags::IGNORED, RootState::Incomplete),
        ] {
            let (mut table, directory) = (table(), Directory::new());
            let tree = watched(&mut table, "/t", Scope::Tree);
            let root = watched(&mut table, "/t/d", Scope::Directory);
            let below = watched(&mut table, "/t/d/e/file", Scope::File);
            let descriptor = directory.add_to(&mut table, "/t/d");
            table.handle(descriptor, gone, 0, None);
            assert_eq!(root_state(&tree), above, "{gone:?}");
            assert_eq!(root_state(&root), RootState::Stale, "{gone:?}");
            assert_eq!(root_state(&below), RootState::Stale, "{gone:?}");
            create(&mut table, descriptor, c"late");
            assert_eq!((told(&tree), told(&root)), (Vec::new(), Vec::new()), "{gone:?}");
        }
    }

    /// The directory was moved, and the queue still has events under its old name.
    #[test]
    fn queued_events_of_a_moved_directory_keep_its_old_name() {
        let (mut table, directory) = (table(), Directory::new());
        let old = watched(&mut table, "/old", Scope::Directory);
        let first = directory.add_to(&mut table, "/old");
        let new = watched(&mut table, "/new", Scope::Directory);
        let second = directory.add_to(&mut table, "/new");
        assert_ne!(first, second);
        create(&mut table, first, c"before");
        assert_eq!((told(&old), told(&new)), (created("/old/before").to_vec(), Vec::new()));
        table.handle(first, ReadFlags::MOVE_SELF, 0, None);
        table.handle(first, ReadFlags::IGNORED, 0, None);
        assert_eq!(root_state(&old), RootState::Stale);
        create(&mut table, second, c"after");
        assert_eq!((told(&old), told(&new)), (Vec::new(), created("/new/after").to_vec()));
        assert!(!new.has_pending_scan());
    }

    #[test]
    fn changes_in_a_directory_mounted_twice_have_both_names() {
        let (mut table, directory) = (table(), Directory::new());
        let one = watched(&mut table, "/one", Scope::Directory);
        let first = directory.add_to(&mut table, "/one");
        let other = watched(&mut table, "/other", Scope::Directory);
        let second = directory.add_to(&mut table, "/other");
        assert_eq!(root_state(&one), RootState::Incomplete, "the directory was briefly unwatched");
        table.handle(first, ReadFlags::IGNORED, 0, None);
        create(&mut table, second, c"file");
        assert_eq!(told(&one), created("/one/file"));
        assert_eq!(told(&other), created("/other/file"));
        // The next scan finds it already watched.
        assert_eq!(directory.add_to(&mut table, "/one"), second);
        assert!(!one.has_pending_scan() && !other.has_pending_scan());
        other.close();
        table.routes.remove_closed();
        table.forget_unwanted(Path::new("/other"));
        create(&mut table, second, c"next");
        assert_eq!(told(&one), created("/one/next"));
    }

    #[test]
    fn queued_events_of_an_ended_watch_reach_no_later_watch() {
        let (mut table, directory) = (table(), Directory::new());
        let ended = watched(&mut table, "/d", Scope::Directory);
        let first = directory.add_to(&mut table, "/d");
        ended.close();
        table.routes.remove_closed();
        table.forget_unwanted(Path::new("/d"));
        let target = watched(&mut table, "/d", Scope::Directory);
        let second = directory.add_to(&mut table, "/d");
        create(&mut table, first, c"old");
        table.handle(first, ReadFlags::IGNORED, 0, None);
        assert_eq!(told(&target), []);
        create(&mut table, second, c"new");
        assert_eq!(told(&target), created("/d/new"));
    }

    #[test]
    fn a_reused_name_is_scanned_by_its_watches() {
        let (mut table, before, after) = (table(), Directory::new(), Directory::new());
        let tree = watched(&mut table, "/d", Scope::Tree);
        let first = before.add_to(&mut table, "/d");
        let second = after.add_to(&mut table, "/d");
        assert_eq!(root_state(&tree), RootState::Stale);
        create(&mut table, first, c"late");
        assert_eq!(told(&tree), []);
        create(&mut table, second, c"file");
        assert_eq!(told(&tree), created("/d/file"));
    }

    #[test]
    fn after_an_overflow_only_confirmed_names_stay() {
        let (mut table, kept, moved) = (table(), Directory::new(), Directory::new());
        let tree = watched(&mut table, "/t", Scope::Tree);
        let kept_descriptor = kept.add_to(&mut table, "/t");
        let moved_descriptor = moved.add_to(&mut table, "/t/moved");
        table.handle(-1, ReadFlags::QUEUE_OVERFLOW, 0, None);
        assert_eq!(root_state(&tree), RootState::Incomplete);
        create(&mut table, moved_descriptor, c"until it is scanned");
        assert_eq!(told(&tree).len(), 1);
        kept.add_to(&mut table, "/t");
        table.forget_doubtful(Path::new("/t"));
        create(&mut table, moved_descriptor, c"after");
        assert_eq!(told(&tree), []);
        create(&mut table, kept_descriptor, c"file");
        assert_eq!(told(&tree), created("/t/file"));
    }

    #[test]
    fn a_directory_without_targets_is_not_watched() {
        let (mut table, directory) = (table(), Directory::new());
        assert!(!table.add(Path::new("/d"), directory.node.as_fd()).unwrap());
        assert!(!table.directories.contains(Path::new("/d")));
    }
}

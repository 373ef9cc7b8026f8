//! Finds the targets that an event concerns, and whether any target needs a directory watched. Runs
//! on the thread that empties the kernel's queue, so nothing here blocks.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::target::{Scope, WatchTarget};
use super::window::{FsEvent, RootState};

#[derive(Debug, Default)]
pub(super) struct Routes {
    /// By the directory of the target. Paths are ordered by component, so everything below a path
    /// follows it directly.
    by_directory: BTreeMap<PathBuf, Vec<Route>>,
}

#[derive(Debug)]
struct Route {
    target: Arc<WatchTarget>,
    awaited: Awaited,
}

/// The place where a missing directory is awaited.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Awaited {
    /// The directory is not missing, or no directory above it can be watched.
    Nowhere,
    /// The directory is being looked for, so each directory above it may be needed.
    Anywhere,
    /// This ancestor will have an event when the missing directory, or the next part of the path to
    /// it, is created.
    At(PathBuf),
}

impl Routes {
    pub(super) fn add(&mut self, target: Arc<WatchTarget>) {
        let routes = self.by_directory.entry(target.directory.clone()).or_default();
        routes.push(Route { target, awaited: Awaited::Nowhere });
    }

    /// Removes the targets whose watches were dropped.
    pub(super) fn remove_closed(&mut self) -> Vec<Arc<WatchTarget>> {
        let mut closed = Vec::new();
        self.by_directory.retain(|_, routes| {
            let removed = routes.extract_if(.., |route| route.target.is_closed());
            closed.extend(removed.map(|route| route.target));
            !routes.is_empty()
        });
        closed
    }

    pub(super) fn close(&self) {
        self.all().for_each(|route| route.target.close());
    }

    pub(super) fn set_awaited(&mut self, target: &Arc<WatchTarget>, awaited: &Awaited) {
        let routes = self.by_directory.get_mut(&target.directory).into_iter().flatten();
        for route in routes.filter(|route| Arc::ptr_eq(&route.target, target)) {
            route.awaited = awaited.clone();
        }
    }

    /// Whether any target needs events of this directory.
    pub(super) fn wants(&self, directory: &Path) -> bool {
        let in_tree = |route: &Route| route.target.scope == Scope::Tree;
        self.by_directory.contains_key(directory)
            || self.at_and_above(directory).any(|(_, route)| in_tree(route))
            || self.at_and_below(directory).any(|route| route.is_awaited_at(directory))
    }

    pub(super) fn deliver(&self, event: FsEvent<'_>) {
        for (distance, Route { target, .. }) in self.at_and_above(event.path) {
            let is_covered = match target.scope {
                Scope::File => event.path == target.root,
                Scope::Directory => distance <= 1,
                Scope::Tree => true,
            };
            let is_its_directory = distance == 0;
            if is_covered && !(is_its_directory && event.moves_roots()) {
                target.put(event);
            }
        }
        if event.moves_roots() {
            self.root_moved(event.path);
        }
    }

    /// Marks the targets whose directory is at or below this path, because a directory was created,
    /// removed or replaced at the path.
    pub(super) fn root_moved(&self, path: &Path) {
        self.at_and_below(path).for_each(|route| route.target.look_again(RootState::Stale));
    }

    /// Marks the targets that cover the entries of this directory, because their events were lost.
    pub(super) fn events_lost(&self, directory: &Path) {
        for (distance, Route { target, .. }) in self.at_and_above(directory) {
            if distance == 0 || target.scope == Scope::Tree {
                target.look_again(RootState::Incomplete);
            }
        }
    }

    pub(super) fn all_events_lost(&self) {
        self.all().for_each(|route| route.target.look_again(RootState::Incomplete));
    }

    fn all(&self) -> impl Iterator<Item = &Route> {
        self.by_directory.values().flatten()
    }

    /// Yields each route with the distance of its directory above the path.
    fn at_and_above<'a>(&'a self, path: &'a Path) -> impl Iterator<Item = (usize, &'a Route)> {
        path.ancestors().enumerate().flat_map(|(distance, above)| {
            self.by_directory.get(above).into_iter().flatten().map(move |route| (distance, route))
        })
    }

    fn at_and_below<'a>(&'a self, path: &'a Path) -> impl Iterator<Item = &'a Route> {
        self.by_directory
            .range::<Path, _>((Bound::Included(path), Bound::Unbounded))
            .take_while(move |(directory, _)| directory.starts_with(path))
            .flat_map(|(_, routes)| routes)
    }
}

impl Route {
    fn is_awaited_at(&self, directory: &Path) -> bool {
        match &self.awaited {
            Awaited::Nowhere => false,
            Awaited::Anywhere => true,
            Awaited::At(place) => place == directory,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::watch::ChangeKind;
    use crate::fs::watch::window::FsEventKind;

    fn watched(routes: &mut Routes, root: &str, scope: Scope) -> Arc<WatchTarget> {
        let target = Arc::new(WatchTarget::new(PathBuf::from(root), scope, None));
        routes.add(Arc::clone(&target));
        target
    }

    fn happens(routes: &Routes, kind: FsEventKind, path: &str, directory: bool) {
        routes.deliver(FsEvent { path: Path::new(path), kind, directory });
    }

    fn told(target: &WatchTarget) -> Vec<(ChangeKind, PathBuf)> {
        let changes = target.take().map(|taken| taken.changes).unwrap_or_default();
        changes.into_iter().map(|change| (change.kind, change.path)).collect()
    }

    fn root_state(target: &WatchTarget) -> RootState {
        target.take_pending_scan().unwrap_or_default().root
    }

    #[test]
    fn each_scope_receives_its_events() {
        let mut routes = Routes::default();
        let file = watched(&mut routes, "/d/file", Scope::File);
        let directory = watched(&mut routes, "/d", Scope::Directory);
        let tree = watched(&mut routes, "/", Scope::Tree);
        for (path, hears) in [
            ("/d/file", [true, true, true]),
            ("/d/other", [false, true, true]),
            ("/d/sub/file", [false, false, true]),
            ("/dd", [false, false, true]),
            ("/d/file/x", [false, false, true]),
        ] {
            happens(&routes, FsEventKind::Created, path, false);
            let heard = [&file, &directory, &tree].map(|target| !told(target).is_empty());
            assert_eq!(heard, hears, "{path}");
        }
    }

    #[test]
    fn a_moved_directory_moves_the_roots_in_it() {
        let mut routes = Routes::default();
        let below = watched(&mut routes, "/d/e/f", Scope::File);
        let beside = watched(&mut routes, "/dd", Scope::Tree);
        happens(&routes, FsEventKind::Removed, "/d", true);
        assert_eq!(root_state(&below), RootState::Stale);
        assert!(!beside.has_pending_scan());
        assert_eq!(beside.take(), None);
    }

    /// The target of a file is stored under the file's directory, so only changes to that directory
    /// move it.
    #[test]
    fn the_removal_of_a_file_moves_no_roots() {
        let mut routes = Routes::default();
        let file = watched(&mut routes, "/d/file", Scope::File);
        happens(&routes, FsEventKind::Removed, "/d/file", false);
        assert!(!file.has_pending_scan());
        assert_eq!(told(&file), [(ChangeKind::Removed, PathBuf::from("/d/file"))]);
    }

    #[test]
    fn lost_events_concern_the_targets_that_cover_them() {
        let mut routes = Routes::default();
        let roots = [
            ("/", Scope::Tree, RootState::Incomplete),
            ("/d", Scope::Directory, RootState::Watched),
            ("/d/e", Scope::Directory, RootState::Incomplete),
            ("/d/e/file", Scope::File, RootState::Incomplete),
            ("/d/e/f", Scope::Tree, RootState::Watched),
        ];
        let targets = roots.map(|(root, scope, _)| watched(&mut routes, root, scope));
        routes.events_lost(Path::new("/d/e"));
        assert_eq!(targets.each_ref().map(|target| root_state(target)), roots.map(|root| root.2));
        routes.all_events_lost();
        for target in targets {
            assert_eq!(root_state(&target), RootState::Incomplete);
        }
    }

    fn wanted<'a>(routes: &Routes, paths: &[&'a str]) -> Vec<&'a str> {
        paths.iter().copied().filter(|path| routes.wants(Path::new(path))).collect()
    }

    #[test]
    fn a_directory_stays_watched_while_another_target_needs_it() {
        let mut routes = Routes::default();
        let paths = ["/", "/a", "/a/b", "/a/b/c", "/ab"];
        let trees = [(); 2].map(|()| watched(&mut routes, "/a", Scope::Tree));
        let file = watched(&mut routes, "/a/b/file", Scope::File);
        assert_eq!(wanted(&routes, &paths), ["/a", "/a/b", "/a/b/c"]);
        trees[0].close();
        assert_eq!(routes.remove_closed().len(), 1);
        assert_eq!(wanted(&routes, &paths), ["/a", "/a/b", "/a/b/c"]);
        trees[1].close();
        assert_eq!(routes.remove_closed().len(), 1);
        assert_eq!(wanted(&routes, &paths), ["/a/b"]);
        file.close();
        assert_eq!(routes.remove_closed().len(), 1);
        assert_eq!(wanted(&routes, &paths), [""; 0]);
    }

    #[test]
    fn an_awaited_directory_needs_its_ancestors_watched() {
        let mut routes = Routes::default();
        let paths = ["/", "/a", "/a/b", "/a/b/c"];
        let target = watched(&mut routes, "/a/b", Scope::Directory);
        routes.set_awaited(&target, &Awaited::Anywhere);
        assert_eq!(wanted(&routes, &paths), ["/", "/a", "/a/b"]);
        routes.set_awaited(&target, &Awaited::At(PathBuf::from("/")));
        assert_eq!(wanted(&routes, &paths), ["/", "/a/b"]);
        routes.set_awaited(&target, &Awaited::Nowhere);
        assert_eq!(wanted(&routes, &paths), ["/a/b"]);
        target.close();
        routes.remove_closed();
        routes.set_awaited(&target, &Awaited::Anywhere);
        assert_eq!(wanted(&routes, &paths), [""; 0], "it is no longer awaited");
    }
}

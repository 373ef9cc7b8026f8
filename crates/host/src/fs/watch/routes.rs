//! From the path of an event to the watches it concerns. Runs on the thread that empties the kernel's queue, so nothing
//! here waits for anything but a short lock.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use notify::event::{CreateKind, Event, EventKind, ModifyKind, RenameMode};

use super::inbox::Inbox;
use super::window::FsEvent;

/// What a watch covers, seen from its root.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scope {
    /// The root, which is not a directory.
    File,
    /// The root and what is directly in it.
    Directory,
    /// The root and everything below it.
    Tree,
}

#[derive(Debug, Default)]
pub(super) struct Routes {
    /// By root. Paths are ordered by component, so what is below a path follows it directly.
    by_root: Mutex<BTreeMap<PathBuf, Vec<Route>>>,
}

#[derive(Debug)]
struct Route {
    scope: Scope,
    inbox: Arc<Inbox>,
}

impl Routes {
    pub(super) fn add(&self, root: &Path, scope: Scope, inbox: &Arc<Inbox>) {
        let route = Route { scope, inbox: Arc::clone(inbox) };
        self.lock().entry(root.to_owned()).or_default().push(route);
    }

    pub(super) fn remove(&self, root: &Path, inbox: &Arc<Inbox>) {
        let mut by_root = self.lock();
        if let Some(routes) = by_root.get_mut(root) {
            routes.retain(|route| !Arc::ptr_eq(&route.inbox, inbox));
            if routes.is_empty() {
                by_root.remove(root);
            }
        }
    }

    pub(super) fn close(&self) {
        for route in self.lock().values().flatten() {
            route.inbox.close();
        }
    }

    pub(super) fn deliver(&self, event: &notify::Result<Event>) {
        match event {
            Ok(event) if event.need_rescan() => self.put_to_all(FsEvent::Overflowed),
            Ok(event) => {
                if let (Some(path), Some(news)) = (event.paths.first(), News::of(event)) {
                    self.deliver_news(path, news);
                }
            }
            Err(error) => {
                tracing::debug!(%error, "changes of watched files are lost");
                self.put_to_all(FsEvent::Lost);
            }
        }
    }

    fn put_to_all(&self, event: FsEvent<'_>) {
        for route in self.lock().values().flatten() {
            route.inbox.put(event);
        }
    }

    fn deliver_news(&self, path: &Path, news: News) {
        let by_root = self.lock();
        for (distance, ancestor) in path.ancestors().enumerate() {
            for route in by_root.get(ancestor).into_iter().flatten() {
                let covered = match route.scope {
                    Scope::File => distance == 0,
                    Scope::Directory => distance <= 1,
                    Scope::Tree => true,
                };
                let is_own_root = distance == 0 && route.scope != Scope::File;
                if covered && !(is_own_root && news.moves_roots()) {
                    news.fs_event_at(path).into_iter().for_each(|told| route.inbox.put(told));
                }
            }
        }
        if !news.moves_roots() {
            return;
        }
        for (root, routes) in at_and_below(&by_root, path) {
            for route in routes {
                if root != path || route.scope != Scope::File {
                    route.inbox.put(FsEvent::RootMoved);
                }
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<PathBuf, Vec<Route>>> {
        self.by_root.lock().expect("no code panics while it holds the routes")
    }
}

fn at_and_below<'a>(
    by_root: &'a BTreeMap<PathBuf, Vec<Route>>,
    path: &'a Path,
) -> impl Iterator<Item = (&'a Path, &'a [Route])> {
    by_root
        .range::<Path, _>((Bound::Included(path), Bound::Unbounded))
        .take_while(move |(root, _)| root.starts_with(path))
        .map(|(root, routes)| (root.as_path(), routes.as_slice()))
}

/// The part of an event that is worth telling. That a file was opened, read or closed is not.
#[derive(Debug, Clone, Copy)]
enum News {
    Created {
        directory: bool,
    },
    Modified,
    Removed,
    MovedFrom {
        cookie: usize,
    },
    MovedTo {
        cookie: usize,
    },
    /// A watched directory says of itself that it was moved, and not where to. If the one above it is watched, that has
    /// told it already, and perhaps of another that has the name now.
    MovedItself,
}

impl News {
    fn of(event: &Event) -> Option<Self> {
        match event.kind {
            EventKind::Create(kind) => {
                Some(Self::Created { directory: kind == CreateKind::Folder })
            }
            EventKind::Modify(ModifyKind::Name(RenameMode::From)) => Some(match event.tracker() {
                Some(cookie) => Self::MovedFrom { cookie },
                None => Self::MovedItself,
            }),
            EventKind::Modify(ModifyKind::Name(RenameMode::To)) => {
                event.tracker().map(|cookie| Self::MovedTo { cookie })
            }
            // `Both` repeats the two halves.
            EventKind::Modify(ModifyKind::Name(_)) => None,
            EventKind::Modify(_) => Some(Self::Modified),
            EventKind::Remove(_) => Some(Self::Removed),
            EventKind::Access(_) | EventKind::Any | EventKind::Other => None,
        }
    }

    /// Whether watched roots at and below the path are no longer what they were.
    fn moves_roots(self) -> bool {
        match self {
            Self::Created { directory } => directory,
            Self::Modified => false,
            Self::Removed | Self::MovedFrom { .. } | Self::MovedTo { .. } | Self::MovedItself => {
                true
            }
        }
    }

    fn fs_event_at(self, path: &Path) -> Option<FsEvent<'_>> {
        Some(match self {
            Self::Created { directory } => FsEvent::Created { path, directory },
            Self::Modified => FsEvent::Modified { path },
            Self::Removed => FsEvent::Removed { path },
            Self::MovedFrom { cookie } => FsEvent::MovedFrom { path, cookie },
            Self::MovedTo { cookie } => FsEvent::MovedTo { path, cookie },
            Self::MovedItself => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use notify::event::{AccessKind, Flag, RemoveKind};

    use super::*;
    use crate::fs::watch::window::RootState;
    use crate::fs::watch::{ChangeKind, WatchDepth};

    fn watched(routes: &Routes, root: &str, scope: Scope) -> Arc<Inbox> {
        let inbox = Arc::new(Inbox::new(PathBuf::from(root), WatchDepth::Single, None));
        routes.add(Path::new(root), scope, &inbox);
        inbox
    }

    fn happens(routes: &Routes, kind: EventKind, path: &str) {
        routes.deliver(&Ok(Event::new(kind).add_path(PathBuf::from(path))));
    }

    fn told(inbox: &Inbox) -> Vec<(ChangeKind, PathBuf)> {
        let changes = inbox.take().map(|taken| taken.changes).unwrap_or_default();
        changes.into_iter().map(|change| (change.kind, change.path)).collect()
    }

    #[test]
    fn each_scope_hears_its_own() {
        let routes = Routes::default();
        let file = watched(&routes, "/d/file", Scope::File);
        let directory = watched(&routes, "/d", Scope::Directory);
        let tree = watched(&routes, "/", Scope::Tree);
        let create = EventKind::Create(CreateKind::File);
        for (path, hears) in [
            ("/d/file", [true, true, true]),
            ("/d/other", [false, true, true]),
            ("/d/sub/file", [false, false, true]),
            ("/dd", [false, false, true]),
            ("/d/file/x", [false, false, true]),
        ] {
            happens(&routes, create, path);
            let heard = [&file, &directory, &tree].map(|inbox| !told(inbox).is_empty());
            assert_eq!(heard, hears, "{path}");
        }
    }

    #[test]
    fn opening_and_reading_is_not_told() {
        let routes = Routes::default();
        let tree = watched(&routes, "/", Scope::Tree);
        happens(&routes, EventKind::Access(AccessKind::Any), "/file");
        assert_eq!(tree.take(), None);
    }

    #[test]
    fn a_directory_takes_the_roots_in_it_along() {
        let routes = Routes::default();
        let below = watched(&routes, "/d/e/f", Scope::File);
        let beside = watched(&routes, "/dd", Scope::Tree);
        happens(&routes, EventKind::Remove(RemoveKind::Folder), "/d");
        assert_eq!(below.take_pending_scan().unwrap().root, RootState::Stale);
        assert!(!beside.has_pending_scan());
        assert_eq!(beside.take(), None);
    }

    /// The one above has told of both, and its news may be older.
    #[test]
    fn what_a_directory_says_of_itself_is_not_news_of_its_name() {
        let routes = Routes::default();
        let tree = watched(&routes, "/t", Scope::Tree);
        let inner = watched(&routes, "/t/d", Scope::Directory);
        happens(&routes, EventKind::Modify(ModifyKind::Name(RenameMode::From)), "/t/d");
        assert_eq!(tree.take(), None);
        assert!(!tree.has_pending_scan() && inner.has_pending_scan());
    }

    #[test]
    fn a_queue_that_overflowed_is_told_to_everyone() {
        let routes = Routes::default();
        let one = watched(&routes, "/a", Scope::File);
        let other = watched(&routes, "/b", Scope::Tree);
        routes.deliver(&Ok(Event::new(EventKind::Other).set_flag(Flag::Rescan)));
        for inbox in [one, other] {
            assert_eq!(inbox.take_pending_scan().unwrap().root, RootState::Incomplete);
        }
    }
}

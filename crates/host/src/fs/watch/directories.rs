//! Which directories the kernel watches, as far as has been heard. `notify` keeps the same list and shows it to nobody.

use std::collections::BTreeSet;
use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard};

use notify::event::{Event, EventKind, ModifyKind, RenameMode};

#[derive(Debug, Default)]
pub(super) struct Directories {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    watched: BTreeSet<PathBuf>,
    /// These names were taken from their directories. The kernel may still watch those, wherever they are now.
    stale: BTreeSet<PathBuf>,
}

impl Directories {
    pub(super) fn insert(&self, path: &Path) {
        self.lock().watched.insert(path.to_owned());
    }

    pub(super) fn remove(&self, path: &Path) {
        self.lock().watched.remove(path);
    }

    pub(super) fn at_and_below(&self, path: &Path) -> Vec<PathBuf> {
        at_and_below(&self.lock().watched, path)
    }

    pub(super) fn take_stale(&self) -> Option<PathBuf> {
        self.lock().stale.pop_first()
    }

    /// Before anybody is told of the event: who then watches the path anew does so after what was there was given up.
    pub(super) fn heard(&self, event: &Event) {
        let is_taken = matches!(
            event.kind,
            EventKind::Remove(_) | EventKind::Modify(ModifyKind::Name(RenameMode::From))
        );
        if let (true, Some(path)) = (is_taken, event.paths.first()) {
            let mut state = self.lock();
            for taken in at_and_below(&state.watched, path) {
                state.watched.remove(&taken);
                state.stale.insert(taken);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no code panics while it holds the list of directories")
    }
}

/// Paths are ordered by component, so what is below a path follows it directly.
fn at_and_below(paths: &BTreeSet<PathBuf>, path: &Path) -> Vec<PathBuf> {
    paths
        .range::<Path, _>((Bound::Included(path), Bound::Unbounded))
        .take_while(|found| found.starts_with(path))
        .cloned()
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_is_taken_takes_those_below_it_along() {
        let directories = Directories::default();
        for path in ["/a", "/a/b/c", "/ab"] {
            directories.insert(Path::new(path));
        }
        let moved = EventKind::Modify(ModifyKind::Name(RenameMode::From));
        directories.heard(&Event::new(moved).add_path(PathBuf::from("/a")));
        assert_eq!(directories.at_and_below(Path::new("/")), [Path::new("/ab")]);
        let stale: Vec<_> = std::iter::from_fn(|| directories.take_stale()).collect();
        assert_eq!(stale, [Path::new("/a"), Path::new("/a/b/c")]);
    }
}

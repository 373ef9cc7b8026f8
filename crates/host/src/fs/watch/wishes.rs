//! Which directories the watches of one queue want the kernel to watch: counting, without I/O.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::path::{Path, PathBuf};

use super::WatchDepth;

/// A directory that one watch wants to hear of. A watched file wants its parent: a watch on the file itself would
/// follow the inode, and miss the next file of that name.
#[derive(Debug, Clone)]
pub(super) struct Wish {
    pub(super) directory: PathBuf,
    pub(super) depth: WatchDepth,
}

#[derive(Debug, Default)]
pub(super) struct Wishes {
    by_directory: BTreeMap<PathBuf, Wanted>,
}

#[derive(Debug, Default)]
struct Wanted {
    singles: usize,
    trees: usize,
    /// While the directory is not there: the one above it that will tell when it, or the way to it, is back.
    awaited_at: Option<PathBuf>,
}

impl Wanted {
    fn count(&mut self, depth: WatchDepth) -> &mut usize {
        match depth {
            WatchDepth::Single => &mut self.singles,
            WatchDepth::Tree => &mut self.trees,
        }
    }
}

impl Wishes {
    pub(super) fn add(&mut self, wish: &Wish) {
        *self.by_directory.entry(wish.directory.clone()).or_default().count(wish.depth) += 1;
    }

    /// Returns where its directory was waited for, if nobody waits any more.
    pub(super) fn remove(&mut self, wish: &Wish) -> Option<PathBuf> {
        let wanted = self.by_directory.get_mut(&wish.directory)?;
        let count = wanted.count(wish.depth);
        *count = count.saturating_sub(1);
        if wanted.singles > 0 || wanted.trees > 0 {
            return None;
        }
        self.by_directory.remove(&wish.directory)?.awaited_at
    }

    /// From now on `directory` is waited for there, or not at all. Returns where it was until now.
    pub(super) fn await_at(&mut self, directory: &Path, at: Option<&Path>) -> Option<PathBuf> {
        let wanted = self.by_directory.get_mut(directory)?;
        std::mem::replace(&mut wanted.awaited_at, at.map(Path::to_owned))
    }

    pub(super) fn wants(&self, directory: &Path) -> bool {
        self.by_directory.contains_key(directory)
            || self.in_tree(directory)
            || self.awaits_at(directory)
    }

    fn in_tree(&self, directory: &Path) -> bool {
        let mut ancestors = directory.ancestors();
        ancestors.any(|above| self.by_directory.get(above).is_some_and(|wanted| wanted.trees > 0))
    }

    fn awaits_at(&self, directory: &Path) -> bool {
        self.by_directory
            .range::<Path, _>((Bound::Excluded(directory), Bound::Unbounded))
            .take_while(|(wanted, _)| wanted.starts_with(directory))
            .any(|(_, wanted)| wanted.awaited_at.as_deref() == Some(directory))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wish(directory: &str, depth: WatchDepth) -> Wish {
        Wish { directory: PathBuf::from(directory), depth }
    }

    fn wanted<'a>(wishes: &Wishes, paths: &[&'a str]) -> Vec<&'a str> {
        paths.iter().copied().filter(|path| wishes.wants(Path::new(path))).collect()
    }

    #[test]
    fn what_one_gives_up_another_may_still_want() {
        let mut wishes = Wishes::default();
        let paths = ["/", "/a", "/a/b", "/a/b/c", "/ab"];
        let (tree, single) = (wish("/a", WatchDepth::Tree), wish("/a/b", WatchDepth::Single));
        wishes.add(&tree);
        wishes.add(&tree);
        wishes.add(&single);
        assert_eq!(wanted(&wishes, &paths), ["/a", "/a/b", "/a/b/c"]);
        wishes.remove(&tree);
        assert_eq!(wanted(&wishes, &paths), ["/a", "/a/b", "/a/b/c"]);
        wishes.remove(&tree);
        assert_eq!(wanted(&wishes, &paths), ["/a/b"]);
        wishes.remove(&single);
        wishes.remove(&single);
        assert_eq!(wanted(&wishes, &paths), [""; 0]);
    }

    #[test]
    fn what_is_waited_for_wants_a_place_to_wait() {
        let mut wishes = Wishes::default();
        let paths = ["/", "/a", "/a/b", "/a/b/c"];
        let single = wish("/a/b", WatchDepth::Single);
        wishes.add(&single);
        assert_eq!(wishes.await_at(Path::new("/a/b"), Some(Path::new("/"))), None);
        assert_eq!(wanted(&wishes, &paths), ["/", "/a/b"]);
        let before = wishes.await_at(Path::new("/a/b"), Some(Path::new("/a")));
        assert_eq!(before.as_deref(), Some(Path::new("/")));
        assert_eq!(wanted(&wishes, &paths), ["/a", "/a/b"]);
        assert_eq!(wishes.remove(&single).as_deref(), Some(Path::new("/a")));
        assert_eq!(wanted(&wishes, &paths), [""; 0]);
        assert_eq!(wishes.await_at(Path::new("/a/b"), Some(Path::new("/"))), None);
        assert_eq!(wanted(&wishes, &paths), [""; 0], "nobody waits any more");
    }
}

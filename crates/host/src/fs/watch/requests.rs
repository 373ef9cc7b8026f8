//! Which directories the watches of one queue want the kernel to watch: counting, without I/O.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::path::{Path, PathBuf};

use super::WatchDepth;

/// A directory that one watch wants to hear of. A watched file wants its parent: a watch on the file itself would
/// follow the inode, and miss the next file of that name.
#[derive(Debug, Clone)]
pub(super) struct WatchRequest {
    pub(super) directory: PathBuf,
    pub(super) depth: WatchDepth,
}

#[derive(Debug, Default)]
pub(super) struct WatchRequests {
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

impl WatchRequests {
    pub(super) fn add(&mut self, request: &WatchRequest) {
        *self.by_directory.entry(request.directory.clone()).or_default().count(request.depth) += 1;
    }

    /// Returns where its directory was waited for, if nobody waits any more.
    pub(super) fn remove(&mut self, request: &WatchRequest) -> Option<PathBuf> {
        let wanted = self.by_directory.get_mut(&request.directory)?;
        let count = wanted.count(request.depth);
        *count = count.saturating_sub(1);
        if wanted.singles > 0 || wanted.trees > 0 {
            return None;
        }
        self.by_directory.remove(&request.directory)?.awaited_at
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

    fn request(directory: &str, depth: WatchDepth) -> WatchRequest {
        WatchRequest { directory: PathBuf::from(directory), depth }
    }

    fn wanted<'a>(requests: &WatchRequests, paths: &[&'a str]) -> Vec<&'a str> {
        paths.iter().copied().filter(|path| requests.wants(Path::new(path))).collect()
    }

    #[test]
    fn what_one_gives_up_another_may_still_want() {
        let mut requests = WatchRequests::default();
        let paths = ["/", "/a", "/a/b", "/a/b/c", "/ab"];
        let (tree, single) = (request("/a", WatchDepth::Tree), request("/a/b", WatchDepth::Single));
        requests.add(&tree);
        requests.add(&tree);
        requests.add(&single);
        assert_eq!(wanted(&requests, &paths), ["/a", "/a/b", "/a/b/c"]);
        requests.remove(&tree);
        assert_eq!(wanted(&requests, &paths), ["/a", "/a/b", "/a/b/c"]);
        requests.remove(&tree);
        assert_eq!(wanted(&requests, &paths), ["/a/b"]);
        requests.remove(&single);
        requests.remove(&single);
        assert_eq!(wanted(&requests, &paths), [""; 0]);
    }

    #[test]
    fn what_is_waited_for_wants_a_place_to_wait() {
        let mut requests = WatchRequests::default();
        let paths = ["/", "/a", "/a/b", "/a/b/c"];
        let single = request("/a/b", WatchDepth::Single);
        requests.add(&single);
        assert_eq!(requests.await_at(Path::new("/a/b"), Some(Path::new("/"))), None);
        assert_eq!(wanted(&requests, &paths), ["/", "/a/b"]);
        let before = requests.await_at(Path::new("/a/b"), Some(Path::new("/a")));
        assert_eq!(before.as_deref(), Some(Path::new("/")));
        assert_eq!(wanted(&requests, &paths), ["/a", "/a/b"]);
        assert_eq!(requests.remove(&single).as_deref(), Some(Path::new("/a")));
        assert_eq!(wanted(&requests, &paths), [""; 0]);
        assert_eq!(requests.await_at(Path::new("/a/b"), Some(Path::new("/"))), None);
        assert_eq!(wanted(&requests, &paths), [""; 0], "nobody waits any more");
    }
}

//! Maps watch descriptors to paths: bookkeeping without I/O.
//!
//! The kernel has one descriptor per directory, however many names the directory has. A directory
//! has several names if it is mounted in several places, or if it was moved and the event of the
//! move is still unread. A name has several descriptors while events of an older descriptor are
//! still unread.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::path::{Path, PathBuf};

#[derive(Debug, Default)]
pub(super) struct Directories {
    names: HashMap<i32, Vec<PathBuf>>,
    /// Paths are ordered by component, so everything below a path follows it directly.
    by_name: BTreeMap<PathBuf, Named>,
}

#[derive(Debug, Default)]
struct Named {
    descriptors: Vec<i32>,
    /// Events were lost since the name was last checked, so it may belong to another directory by
    /// now.
    doubtful: bool,
}

impl Directories {
    pub(super) fn insert(&mut self, descriptor: i32, name: &Path) {
        self.names.entry(descriptor).or_default().push(name.to_owned());
        self.by_name.entry(name.to_owned()).or_default().descriptors.push(descriptor);
    }

    /// Whether the name belongs to the directory of this descriptor. If so, the name is no longer
    /// doubtful.
    pub(super) fn confirm(&mut self, descriptor: i32, name: &Path) -> bool {
        let named = self.by_name.get_mut(name);
        let Some(named) = named.filter(|named| named.descriptors.contains(&descriptor)) else {
            return false;
        };
        named.doubtful = false;
        true
    }

    pub(super) fn contains(&self, name: &Path) -> bool {
        self.by_name.contains_key(name)
    }

    pub(super) fn names(&self, descriptor: i32) -> Vec<PathBuf> {
        self.names.get(&descriptor).cloned().unwrap_or_default()
    }

    pub(super) fn at_and_below(&self, path: &Path) -> Vec<PathBuf> {
        self.named_at_and_below(path).map(|(name, _)| name.clone()).collect()
    }

    pub(super) fn doubt_all(&mut self) {
        self.by_name.values_mut().for_each(|named| named.doubtful = true);
    }

    pub(super) fn doubtful_at_and_below(&self, path: &Path) -> Vec<PathBuf> {
        let doubtful = self.named_at_and_below(path).filter(|(_, named)| named.doubtful);
        doubtful.map(|(name, _)| name.clone()).collect()
    }

    /// Returns the descriptors that have no name left.
    pub(super) fn remove_name(&mut self, name: &Path) -> Vec<i32> {
        let Some(Named { mut descriptors, .. }) = self.by_name.remove(name) else {
            return Vec::new();
        };
        descriptors.retain(|descriptor| {
            let Some(names) = self.names.get_mut(descriptor) else { return false };
            names.retain(|other| other != name);
            let is_nameless = names.is_empty();
            if is_nameless {
                self.names.remove(descriptor);
            }
            is_nameless
        });
        descriptors
    }

    /// Returns the names that have no descriptor left.
    pub(super) fn remove_descriptor(&mut self, descriptor: i32) -> Vec<PathBuf> {
        let mut names = self.names.remove(&descriptor).unwrap_or_default();
        names.retain(|name| {
            let Some(named) = self.by_name.get_mut(name) else { return false };
            named.descriptors.retain(|other| *other != descriptor);
            let is_unwatched = named.descriptors.is_empty();
            if is_unwatched {
                self.by_name.remove(name);
            }
            is_unwatched
        });
        names
    }

    fn named_at_and_below(&self, path: &Path) -> impl Iterator<Item = (&PathBuf, &Named)> {
        self.by_name
            .range::<Path, _>((Bound::Included(path), Bound::Unbounded))
            .take_while(move |(name, _)| name.starts_with(path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn directories(entries: &[(i32, &str)]) -> Directories {
        let mut directories = Directories::default();
        entries.iter().for_each(|(descriptor, name)| {
            directories.insert(*descriptor, Path::new(name));
        });
        directories
    }

    #[test]
    fn a_name_with_the_same_prefix_is_not_below_a_directory() {
        let mut directories = directories(&[(1, "/a"), (2, "/a/b/c"), (3, "/ab")]);
        assert_eq!(directories.at_and_below(Path::new("/a")), ["/a", "/a/b/c"].map(PathBuf::from));
        assert_eq!(directories.doubtful_at_and_below(Path::new("/")), [""; 0].map(PathBuf::from));
        directories.doubt_all();
        assert!(directories.confirm(1, Path::new("/a")));
        assert!(!directories.confirm(1, Path::new("/ab")));
        assert_eq!(directories.doubtful_at_and_below(Path::new("/a")), [Path::new("/a/b/c")]);
    }

    #[test]
    fn a_descriptor_is_removed_with_its_last_name() {
        let mut directories = directories(&[(1, "/a"), (1, "/b")]);
        assert_eq!(directories.remove_name(Path::new("/a")), [0; 0]);
        assert_eq!(directories.names(1), [Path::new("/b")]);
        assert_eq!(directories.remove_name(Path::new("/a")), [0; 0]);
        assert_eq!(directories.remove_name(Path::new("/b")), [1]);
        assert!(directories.names(1).is_empty() && !directories.contains(Path::new("/b")));
    }

    #[test]
    fn a_name_is_removed_with_its_last_descriptor() {
        let mut directories = directories(&[(1, "/a"), (2, "/a"), (2, "/b")]);
        assert_eq!(directories.remove_descriptor(1), [""; 0].map(PathBuf::from));
        assert_eq!(directories.remove_descriptor(1), [""; 0].map(PathBuf::from));
        assert_eq!(directories.names(2), ["/a", "/b"].map(PathBuf::from));
        assert_eq!(directories.remove_descriptor(2), ["/a", "/b"].map(PathBuf::from));
        assert!(!directories.contains(Path::new("/a")));
    }
}

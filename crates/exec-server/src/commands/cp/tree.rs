//! Lists a directory recursively before anything is copied, so that the progress has a total.

use std::path::PathBuf;

use exec_server_client::ExecServerError;
use exec_server_protocol::{DirectoryEntry, FsReadDirectoryParams, PathUri};
use futures_util::{StreamExt as _, stream};

use super::endpoint::Endpoint;

/// The number of directories read concurrently.
const AT_ONCE: usize = 8;
/// Bounds the depth, because a hostile server could report an endless tree.
const MAX_DEPTH: usize = 256;
/// Linux refuses longer paths.
const MAX_PATH_BYTES: usize = 4095;

#[derive(Debug, Default)]
pub(super) struct Tree {
    /// Excludes the root. Parents precede children.
    pub(super) directories: Vec<Node>,
    pub(super) files: Vec<Node>,
    pub(super) symlinks: Vec<Node>,
    /// FIFOs, sockets and devices.
    pub(super) others: Vec<Node>,
    pub(super) unreadable: Vec<(PathUri, ListError)>,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum ListError {
    #[error(transparent)]
    Call(#[from] ExecServerError),
    #[error("the server listed {count} names that are not in this directory; they are not copied")]
    Elsewhere { count: usize },
    #[error("is {MAX_DEPTH} directories deep, the maximum; its contents are not copied")]
    TooDeep,
    #[error(
        "has a path of more than {MAX_PATH_BYTES} bytes, the maximum; its contents are not copied"
    )]
    TooLong,
}

impl ListError {
    pub(super) fn into_cause(self) -> anyhow::Error {
        match self {
            Self::Call(error) => error.into(),
            other => other.into(),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Node {
    pub(super) path: PathUri,
    /// Relative to the root.
    pub(super) relative: PathBuf,
    pub(super) mode: Option<u32>,
    pub(super) size: u64,
}

impl Tree {
    pub(super) async fn list(
        endpoint: &Endpoint,
        root: &PathUri,
        mut on_found: impl FnMut(usize),
    ) -> Self {
        let mut tree = Self::default();
        let mut level = vec![root.clone()];
        while !level.is_empty() {
            let mut listings = stream::iter(std::mem::take(&mut level))
                .map(async |path| {
                    let whole = FsReadDirectoryParams::new(path.clone());
                    let params = FsReadDirectoryParams { details: true, ..whole };
                    (path, endpoint.files.read_directory(params).await)
                })
                .buffer_unordered(AT_ONCE);
            while let Some((path, entries)) = listings.next().await {
                match entries {
                    Ok(entries) => {
                        on_found(entries.len());
                        level.extend(tree.add_all(root, path, entries));
                    }
                    Err(error) => tree.unreadable.push((path, error.into())),
                }
            }
        }
        tree
    }

    /// Returns the directories to list next.
    fn add_all(
        &mut self,
        root: &PathUri,
        directory: PathUri,
        entries: Vec<DirectoryEntry>,
    ) -> Vec<PathUri> {
        let (mut below, mut elsewhere) = (Vec::new(), 0);
        for entry in entries {
            let Some(relative) = relative_path(root, &directory, &entry) else {
                elsewhere += 1;
                continue;
            };
            let depth = relative.components().count();
            let Some(path) = self.add(relative, entry) else { continue };
            if depth >= MAX_DEPTH {
                self.unreadable.push((path, ListError::TooDeep));
            } else if path.as_path().as_os_str().len() > MAX_PATH_BYTES {
                self.unreadable.push((path, ListError::TooLong));
            } else {
                below.push(path);
            }
        }
        if elsewhere > 0 {
            self.unreadable.push((directory, ListError::Elsewhere { count: elsewhere }));
        }
        below
    }

    /// Returns the path if the entry is a directory.
    fn add(&mut self, relative: PathBuf, entry: DirectoryEntry) -> Option<PathUri> {
        let (mode, size) = (entry.mode, entry.size.unwrap_or(0));
        let node = Node { path: entry.path, relative, mode, size };
        let (kind, below) = match (entry.is_symlink, entry.is_directory, entry.is_file) {
            (Some(true), ..) => (&mut self.symlinks, None),
            (_, true, _) => (&mut self.directories, Some(node.path.clone())),
            (_, _, true) => (&mut self.files, None),
            _ => (&mut self.others, None),
        };
        kind.push(node);
        below
    }
}

/// Returns the path of an entry relative to the root. The other endpoint writes the entry at this
/// path. A hostile server may return paths with `..`, so only a name directly in the listed
/// directory is accepted.
fn relative_path(root: &PathUri, directory: &PathUri, entry: &DirectoryEntry) -> Option<PathBuf> {
    let name = entry.path.as_path().file_name()?;
    if entry.path.as_path().parent() != Some(directory.as_path()) {
        return None;
    }
    Some(directory.as_path().strip_prefix(root.as_path()).ok()?.join(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(name: &str, is_symlink: bool, is_directory: bool, is_file: bool) -> DirectoryEntry {
        DirectoryEntry {
            file_name: name.to_owned(),
            is_directory,
            is_file,
            path: format!("/r/{name}").parse().unwrap(),
            is_symlink: Some(is_symlink),
            mode: Some(0o600),
            size: Some(3),
            modified_at_ms: None,
            special: None,
        }
    }

    #[test]
    fn entries_outside_the_listed_directory_are_rejected() {
        let (root, directory): (PathUri, PathUri) =
            ("/r".parse().unwrap(), "/r/d".parse().unwrap());
        let names = ["d/../../etc/passwd", "d/..", "../x", "x", "d/a/b", "d", "d/../d/x", "d/x"];
        let entries = names.map(|name| entry(name, false, true, false)).to_vec();
        let mut tree = Tree::default();
        let below = tree.add_all(&root, directory.clone(), entries);
        assert_eq!(below, ["/r/d/x".parse().unwrap()]);
        assert_eq!(tree.directories[0].relative, PathBuf::from("d/x"));
        let [(path, error)] = &tree.unreadable[..] else { panic!("{tree:?}") };
        assert_eq!(path, &directory);
        assert!(matches!(error, ListError::Elsewhere { count: 7 }), "{error}");
    }

    #[test]
    fn the_depth_of_a_tree_is_bounded() {
        let root: PathUri = "/r".parse().unwrap();
        for (deep, name) in [("/d".repeat(MAX_DEPTH), "x"), ("/d".repeat(200), &*"x".repeat(3_700))]
        {
            let directory: PathUri = format!("/r{deep}").parse().unwrap();
            let mut tree = Tree::default();
            let entries = vec![entry(&format!("{}/{name}", &deep[1..]), false, true, false)];
            assert_eq!(tree.add_all(&root, directory, entries), []);
            let [(_, ListError::TooDeep | ListError::TooLong)] = &tree.unreadable[..] else {
                panic!("{tree:?}")
            };
        }
    }

    #[test]
    fn a_symlink_to_a_directory_is_a_symlink() {
        let mut tree = Tree::default();
        let root: PathUri = "/r".parse().unwrap();
        let entries = vec![
            entry("d", false, true, false),
            entry("f", false, false, true),
            entry("l", true, true, false),
            entry("p", false, false, false),
        ];
        assert_eq!(tree.add_all(&root, root.clone(), entries), ["/r/d".parse().unwrap()]);
        let names = |nodes: &[Node]| -> Vec<_> {
            nodes.iter().map(|node| node.relative.display().to_string()).collect()
        };
        assert_eq!(names(&tree.directories), ["d"]);
        assert_eq!(names(&tree.files), ["f"]);
        assert_eq!(names(&tree.symlinks), ["l"]);
        assert_eq!(names(&tree.others), ["p"]);
    }
}

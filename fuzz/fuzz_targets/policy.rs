//! Policies with few names over a small tree with symlinks. Each resolves or is refused, and the
//! intersection of two policies grants the lesser access of the two.
#![no_main]

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use exec_server_host::sandbox::{
    Access, DeclaredFiles, DeclaredPolicy, Entry, EntryPath, Hold, LinkTrust, NameKind, Names,
    Network, Policy, PolicyContext, WrittenRoots,
};
use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;

const NAMES: [&str; 12] =
    ["a", "b", "c", ".git", ".codex", "etc", "usr", "tmp", "home", "..", ".", "é"];

#[derive(Debug, Arbitrary)]
struct Input {
    tree: Vec<(SmallPath, Node)>,
    first: Vec<AnyEntry>,
    second: Vec<AnyEntry>,
    depth: Option<u8>,
    cwd: Option<SmallPath>,
    workspaces: Vec<SmallPath>,
    tmpdir: Option<SmallPath>,
    protected: Vec<SmallPath>,
    written: Option<Vec<SmallPath>>,
    trusted: Vec<SmallPath>,
    home: Option<SmallPath>,
    asked: Vec<SmallPath>,
}

#[derive(Debug, Arbitrary)]
struct SmallPath(Vec<u8>);

impl SmallPath {
    fn path(&self) -> PathBuf {
        let names = self.0.iter().take(6).map(|byte| NAMES[usize::from(*byte) % NAMES.len()]);
        Path::new("/").join(names.collect::<PathBuf>())
    }
}

fn paths(small: &[SmallPath]) -> Vec<PathBuf> {
    small.iter().map(SmallPath::path).collect()
}

#[derive(Debug, Arbitrary)]
enum Node {
    Directory,
    File(Vec<u8>),
    Symlink { target: SmallPath, relative: bool },
    Forbidden,
}

#[derive(Debug, Arbitrary)]
struct AnyEntry {
    path: AnyPath,
    access: u8,
    skip_missing: bool,
}

#[derive(Debug, Arbitrary)]
enum AnyPath {
    Path(SmallPath),
    Raw(String),
    Glob(String),
    Root,
    Minimal,
    WorkingDirectory,
    ProjectRoots(Option<String>),
    Tmpdir,
    SlashTmp,
}

impl AnyEntry {
    fn entry(&self) -> Entry {
        let path = match &self.path {
            AnyPath::Path(path) => EntryPath::Path(path.path()),
            AnyPath::Raw(path) => EntryPath::Path(path.into()),
            AnyPath::Glob(glob) => EntryPath::Glob(glob.clone()),
            AnyPath::Root => EntryPath::Root,
            AnyPath::Minimal => EntryPath::Minimal,
            AnyPath::WorkingDirectory => EntryPath::WorkingDirectory,
            AnyPath::ProjectRoots(subpath) => {
                EntryPath::ProjectRoots { subpath: subpath.as_ref().map(PathBuf::from) }
            }
            AnyPath::Tmpdir => EntryPath::Tmpdir,
            AnyPath::SlashTmp => EntryPath::SlashTmp,
        };
        let access = [Access::Deny, Access::Read, Access::Write][usize::from(self.access % 3)];
        Entry { path, access, skip_missing: self.skip_missing }
    }
}

struct Tree<'a>(BTreeMap<PathBuf, &'a Node>);

impl<'a> Tree<'a> {
    fn new(nodes: &'a [(SmallPath, Node)]) -> Self {
        let mut tree = BTreeMap::new();
        for (path, node) in nodes {
            let path = path.path();
            if path.components().any(|name| name.as_os_str() == "..") {
                continue;
            }
            for above in path.ancestors().skip(1) {
                tree.entry(above.to_owned()).or_insert(&Node::Directory);
            }
            tree.insert(path, node);
        }
        Self(tree)
    }
}

impl Names for Tree<'_> {
    fn kind(&self, path: &Path) -> io::Result<NameKind> {
        match self.0.get(path) {
            _ if path == Path::new("/") => Ok(NameKind::Directory),
            None => Ok(NameKind::Missing),
            Some(Node::Directory) => Ok(NameKind::Directory),
            Some(Node::File(_)) => Ok(NameKind::File),
            Some(Node::Symlink { .. }) => Ok(NameKind::Symlink),
            Some(Node::Forbidden) => Err(io::ErrorKind::PermissionDenied.into()),
        }
    }

    fn read_link(&self, path: &Path) -> io::Result<PathBuf> {
        match self.0.get(path) {
            Some(Node::Symlink { target, relative: false }) => Ok(target.path()),
            Some(Node::Symlink { target, relative: true }) => {
                Ok(target.path().strip_prefix("/").expect("every target is absolute").to_owned())
            }
            _ => Err(io::ErrorKind::InvalidInput.into()),
        }
    }

    fn list(&self, directory: &Path, max: usize) -> io::Result<Vec<(OsString, NameKind)>> {
        if self.kind(directory)? != NameKind::Directory {
            return Err(io::ErrorKind::NotADirectory.into());
        }
        let inside = self.0.keys().filter(|path| path.parent() == Some(directory)).take(max);
        inside
            .map(|path| {
                let name = path.file_name().expect("a path with a parent has a name");
                Ok((name.to_owned(), self.kind(path)?))
            })
            .collect()
    }

    fn read_start(&self, file: &Path, max: usize) -> io::Result<Vec<u8>> {
        match self.0.get(file) {
            Some(Node::File(content)) => Ok(content.iter().copied().take(max).collect()),
            _ => Err(io::ErrorKind::InvalidInput.into()),
        }
    }

    fn hold(&self, _: &Path) -> io::Result<Hold> {
        Ok(Hold::Ours)
    }

    fn is_changeable(&self, _: &Path) -> io::Result<bool> {
        Ok(true)
    }
}

fuzz_target!(|input: Input| {
    let tree = Tree::new(&input.tree);
    let written = input.written.as_deref().map_or(WrittenRoots::Unknown, |roots| {
        WrittenRoots::Known(Arc::new(paths(roots).into_iter().collect::<BTreeSet<_>>()))
    });
    let around = PolicyContext {
        cwd: input.cwd.as_ref().map(SmallPath::path),
        workspace_roots: paths(&input.workspaces),
        tmpdir: input.tmpdir.as_ref().map(SmallPath::path),
        protected_paths: paths(&input.protected),
        link_trust: LinkTrust {
            written,
            trusted: paths(&input.trusted),
            home: input.home.as_ref().map(SmallPath::path),
        },
    };
    let resolve = |entries: &[AnyEntry]| {
        let files = DeclaredFiles::Restricted {
            entries: entries.iter().map(AnyEntry::entry).collect(),
            glob_scan_max_depth: input.depth.map(usize::from),
        };
        let declared = DeclaredPolicy { files, network: Network::Restricted };
        Policy::resolve(&declared, &around, &tree)
    };
    let (Ok(first), Ok(second)) = (resolve(&input.first), resolve(&input.second)) else { return };
    let both = first.intersect(&second);
    let rules = first.rules().iter().chain(second.rules()).map(|rule| rule.path.clone());
    for path in paths(&input.asked).into_iter().chain(rules) {
        let least = first.access(&path).min(second.access(&path));
        assert_eq!(both.access(&path), least, "{path:?} under {first:#?} and {second:#?}");
        let _ = both.access_through(&path, &tree);
        assert!(least == Access::Deny || both.leads_to_grant(&path), "{path:?} under {both:#?}");
    }
    let _ = (both.grants(), both.carve_outs());
});

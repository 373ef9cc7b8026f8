//! A new workspace and a directory outside it for every attempt.

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::XattrFlags;

use super::User;

/// `outside/` and `workspace/`, and a workspace at `wide/upper/workspace` with writable directories
/// above it. All of it belongs to the attacking user, so that only the sandbox protects it.
pub(super) struct Scene {
    root: PathBuf,
}

/// The visible state of a tree.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Snapshot(BTreeMap<PathBuf, Sight>);

#[derive(Debug, PartialEq, Eq)]
struct Sight {
    mode: u32,
    owner: (u32, u32),
    links: u64,
    /// The ctime. It shows changes that leave no other trace here: changes of extended attributes
    /// and flags, and changes that were undone.
    changed: (i64, i64),
    content: Vec<u8>,
}

impl Scene {
    pub(super) fn build(root: PathBuf, user: User) -> Self {
        let scene = Self { root };
        for directory in [
            "",
            "outside",
            "outside/directory",
            "outside/empty",
            "workspace",
            "wide",
            "wide/upper",
            "wide/upper/workspace",
        ] {
            fs::create_dir(scene.path(directory)).unwrap();
        }
        fs::write(scene.path("outside/file"), "the outside\n").unwrap();
        fs::write(scene.path("outside/directory/file"), "the outside\n").unwrap();
        scene.furnish("workspace");
        scene.furnish("wide/upper/workspace");
        // Not every file system supports such attributes. The attempts that need this one check it.
        let kept = scene.path("outside/file");
        let _ = rustix::fs::setxattr(&kept, "user.kept", b"x", XattrFlags::empty());
        user.own(&scene.root);
        scene
    }

    fn furnish(&self, workspace: &str) {
        let at = |name: &str| self.path(workspace).join(name);
        for directory in [".git", ".git/hooks", "directory", "denied", "empty"] {
            fs::create_dir(at(directory)).unwrap();
        }
        for (file, content) in [
            (".git/HEAD", "ref: refs/heads/main\n"),
            (".git/config", "[core]\n\tbare = false\n"),
            ("file", "the inside\n"),
            ("denied/secret", "hush\n"),
            ("directory/secret", "hush\n"),
            ("directory/key.pem", "hush\n"),
            ("directory/program.pem", "#!/bin/sh\nexit 0\n"),
        ] {
            fs::write(at(file), content).unwrap();
        }
        fs::set_permissions(at("directory/program.pem"), Permissions::from_mode(0o755)).unwrap();
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    /// Returns a snapshot of everything that the policies of the attempts protect.
    pub(super) fn protected(&self) -> Snapshot {
        let mut seen = BTreeMap::new();
        for name in [
            "outside",
            "workspace/.git",
            "workspace/denied",
            "workspace/directory/secret",
            "workspace/directory/key.pem",
            "wide/upper/workspace/.git",
        ] {
            look(&self.path(name), &mut seen);
        }
        Snapshot(seen)
    }

    /// Whether either workspace has protected names that did not exist before.
    pub(super) fn has_new_protected_names(&self) -> bool {
        let workspaces = ["workspace", "wide/upper/workspace"];
        let names = workspaces.iter().flat_map(|workspace| {
            [".agents", ".codex"].map(|name| self.path(workspace).join(name))
        });
        names.into_iter().any(|path| fs::symlink_metadata(path).is_ok())
    }
}

impl Snapshot {
    /// Returns the paths that differ in a later snapshot.
    pub(super) fn differences(&self, later: &Self) -> Vec<String> {
        let before = self.0.keys().filter(|path| self.0.get(*path) != later.0.get(*path));
        let new = later.0.keys().filter(|path| !self.0.contains_key(*path));
        before.chain(new).map(|path| path.display().to_string()).collect()
    }
}

fn look(path: &Path, seen: &mut BTreeMap<PathBuf, Sight>) {
    let Ok(metadata) = fs::symlink_metadata(path) else { return };
    let mut content = Vec::new();
    if metadata.is_dir() {
        for entry in fs::read_dir(path).unwrap() {
            look(&entry.unwrap().path(), seen);
        }
    } else if metadata.is_file() {
        content = fs::read(path).unwrap();
    }
    let sight = Sight {
        mode: metadata.mode(),
        owner: (metadata.uid(), metadata.gid()),
        links: metadata.nlink(),
        changed: (metadata.ctime(), metadata.ctime_nsec()),
        content,
    };
    seen.insert(path.to_owned(), sight);
}

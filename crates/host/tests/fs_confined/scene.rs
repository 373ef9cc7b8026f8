//! The files that the tests work on.
//!
//! ```text
//! work/              writable
//!   plain/ h\xffrd/  ordinary
//!   .git/            protected: read-only
//!   secret/          denied
//!   directory.pem/ plain/deep.pem   denied by a glob
//!   sub/ movable     to be copied and moved
//!   out, out_file    symlinks to the outside
//!   in               symlink to plain
//! ro/                read-only
//! outside/           not in the policy
//! ```
//! All directories have the same content, so that a misled operation finds the files that it looks
//! for.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use exec_server_host::fs::Confinement;
use exec_server_host::sandbox::{
    Access, DeclaredFiles, DeclaredPolicy, Entry, EntryPath, HostNames, Network, Policy,
    PolicyContext,
};
use exec_server_test_support::{NOBODY, Scratch, become_nobody, skipped};

pub(crate) const OUTSIDE: &str = "content of the outside";

pub(crate) struct Scene(Scratch);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum User {
    Own,
    Nobody,
}

impl User {
    pub(crate) fn all() -> &'static [Self] {
        if rustix::process::geteuid().is_root() {
            return &[Self::Own, Self::Nobody];
        }
        skipped("file operations as nobody: only root can become another user");
        &[Self::Own]
    }

    fn become_it(self) {
        if self == Self::Nobody {
            become_nobody().unwrap();
        }
    }
}

impl Scene {
    pub(crate) fn new() -> Self {
        let scene = Self(Scratch::in_memory());
        for (directory, content) in [
            ("work/plain", "inside"),
            ("work/.git", "inside"),
            ("work/secret", "secret"),
            ("work/directory.pem", "secret"),
            ("ro", "inside"),
            ("outside", OUTSIDE),
        ] {
            scene.fill(&scene.at(directory), content);
        }
        scene.fill(&scene.hard("work"), "inside");
        scene.fill(&scene.hard("outside"), OUTSIDE);
        scene.0.file("work/sub/inner", "inside");
        scene.0.file("work/movable", "inside");
        scene.0.file("work/plain/deep.pem", "secret");
        scene.0.symlink(scene.at("outside"), "work/out");
        scene.0.symlink("../outside/file", "work/out_file");
        scene.0.symlink("../outside/nothing", "work/out_nothing");
        scene.0.symlink("plain", "work/in");
        scene
    }

    /// Returns a path whose name is not UTF-8.
    pub(crate) fn hard(&self, above: &str) -> PathBuf {
        self.at(above).join(OsStr::from_bytes(b"h\xffrd"))
    }

    pub(crate) fn at(&self, path: &str) -> PathBuf {
        self.0.path(path)
    }

    fn fill(&self, directory: &Path, content: &str) {
        std::fs::create_dir_all(directory.join("sub")).unwrap();
        std::fs::write(directory.join("file"), content).unwrap();
        std::fs::write(directory.join("sub/inner"), content).unwrap();
        symlink("file", directory.join("link")).unwrap();
    }

    pub(crate) fn policy(&self) -> Policy {
        self.policy_with(&[])
    }

    pub(crate) fn policy_with(&self, more: &[(PathBuf, Access)]) -> Policy {
        let mut entries = vec![
            (self.at("work"), Access::Write),
            (self.at("ro"), Access::Read),
            (self.at("work/secret"), Access::Deny),
        ];
        entries.extend_from_slice(more);
        policy(&self.at("work"), &entries, &["**/*.pem"])
    }

    /// Runs `work` on its own thread, as the user and confined by the policy. If the user is
    /// `nobody`, first makes `nobody` the owner of the whole scene.
    pub(crate) fn confined<T: Send>(
        &self,
        policy: &Policy,
        user: User,
        work: impl FnOnce() -> T + Send,
    ) -> T {
        if user == User::Nobody {
            self.give_away();
        }
        on_confined_thread(policy, user, work)
    }

    fn give_away(&self) {
        for entry in ignore::WalkBuilder::new(self.0.root()).standard_filters(false).build() {
            let path = entry.unwrap().into_path();
            std::os::unix::fs::lchown(path, Some(NOBODY), Some(NOBODY)).unwrap();
        }
    }

    /// Two snapshots differ if a path, a mode or the content of a file has changed.
    pub(crate) fn snapshot(&self) -> Vec<String> {
        let mut lines: Vec<_> = ignore::WalkBuilder::new(self.0.root())
            .standard_filters(false)
            .build()
            .map(|entry| {
                let path = entry.unwrap().into_path();
                let metadata = path.symlink_metadata().unwrap();
                let content =
                    if metadata.is_file() { std::fs::read(&path).unwrap() } else { Vec::new() };
                let mode = std::os::unix::fs::MetadataExt::mode(&metadata);
                format!("{path:?} {mode:o} {content:?}")
            })
            .collect();
        lines.sort();
        lines
    }
}

pub(crate) fn on_confined_thread<T: Send>(
    policy: &Policy,
    user: User,
    work: impl FnOnce() -> T + Send,
) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            user.become_it();
            Arc::new(Confinement::new(policy.clone()).unwrap()).enter().unwrap();
            work()
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

pub(crate) fn policy(cwd: &Path, entries: &[(PathBuf, Access)], denied: &[&str]) -> Policy {
    let entry = |path, access| Entry { path, access, skip_missing: false };
    let paths = entries.iter().map(|(path, access)| entry(EntryPath::Path(path.clone()), *access));
    let globs = denied.iter().map(|glob| entry(EntryPath::Glob((*glob).to_owned()), Access::Deny));
    let declared = DeclaredPolicy {
        files: DeclaredFiles::Restricted {
            entries: paths.chain(globs).collect(),
            glob_scan_max_depth: None,
        },
        network: Network::Restricted,
    };
    let around = PolicyContext { cwd: Some(cwd.to_owned()), ..PolicyContext::default() };
    Policy::resolve(&declared, &around, &HostNames).unwrap()
}

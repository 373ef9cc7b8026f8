//! [`HostNames`] on a real file system.

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, lchown, symlink};
use std::{fs, io};

use exec_server_test_support::skipped;
use rustix::fs::{CWD, Mode, mkfifoat};

use super::*;
use crate::sandbox::policy::{Hold, HostNames, LinkTrust, NameKind, Names};

fn resolve(entries: &[&str], around: &PolicyContext) -> Result<Policy, PolicyError> {
    let files = DeclaredFiles::Restricted {
        entries: entries.iter().map(|line| entry(line)).collect(),
        glob_scan_max_depth: None,
    };
    let declared = DeclaredPolicy { files, network: Network::Restricted };
    Policy::resolve(&declared, around, &HostNames)
}

#[test]
fn kinds_of_names_are_recognized() {
    let root = tempfile::tempdir().unwrap();
    let path = |name: &str| root.path().join(name);
    fs::write(path("file"), "content").unwrap();
    fs::create_dir(path("directory")).unwrap();
    symlink("nowhere", path("link")).unwrap();
    mkfifoat(CWD, path("pipe"), Mode::RWXU).unwrap();
    let kinds = [
        ("directory", NameKind::Directory),
        ("file", NameKind::File),
        ("link", NameKind::Symlink),
        ("pipe", NameKind::File),
    ];
    for (name, kind) in kinds {
        assert_eq!(HostNames.kind(&path(name)).unwrap(), kind, "{name}");
    }
    let mut listed = HostNames.list(root.path(), usize::MAX).unwrap();
    listed.sort_by(|one, other| one.0.cmp(&other.0));
    assert_eq!(listed, kinds.map(|(name, kind)| (name.into(), kind)));
    assert_eq!(HostNames.list(root.path(), 2).unwrap().len(), 2);
    for missing in ["missing", "missing/too", "file/below"] {
        assert_eq!(HostNames.kind(&path(missing)).unwrap(), NameKind::Missing, "{missing}");
    }
    assert_eq!(HostNames.read_link(&path("link")).unwrap(), Path::new("nowhere"));
}

#[test]
fn only_the_start_of_regular_files_is_read() {
    let root = tempfile::tempdir().unwrap();
    let path = |name: &str| root.path().join(name);
    fs::write(path("file"), "content").unwrap();
    symlink("file", path("link")).unwrap();
    mkfifoat(CWD, path("pipe"), Mode::RWXU).unwrap();
    assert_eq!(HostNames.read_start(&path("file"), 3).unwrap(), b"con");
    assert_eq!(HostNames.read_start(&path("file"), 100).unwrap(), b"content");
    for refused in ["link", "pipe", ".", "missing"] {
        assert!(HostNames.read_start(&path(refused), 100).is_err(), "{refused}");
    }
}

#[test]
fn the_git_directory_of_a_worktree_behind_an_alias_is_protected() {
    let root = tempfile::tempdir().unwrap();
    let real = root.path().canonicalize().unwrap();
    fs::create_dir_all(real.join("data/main/.git/worktrees/tree")).unwrap();
    fs::create_dir(real.join("data/tree")).unwrap();
    let git = real.join("data/main/.git");
    let pointer = format!("gitdir: {}\n", git.join("worktrees/tree").display());
    fs::write(real.join("data/tree/.git"), pointer).unwrap();
    fs::write(git.join("worktrees/tree/commondir"), "../..\n").unwrap();
    symlink("data", real.join("alias")).unwrap();

    let line = format!("write {}", root.path().join("alias").display());
    let around = PolicyContext {
        workspace_roots: vec![root.path().join("alias/tree")],
        link_trust: LinkTrust { trusted: vec![root.path().join("alias")], ..LinkTrust::default() },
        ..PolicyContext::default()
    };
    let policy = resolve(&["read root", &line], &around).unwrap();
    for (path, access) in [
        ("data", Write),
        ("data/tree/a", Write),
        ("data/tree/.git", Read),
        ("data/tree/.codex", Read),
        ("data/main/.git/hooks", Read),
        ("data/main/a", Write),
        ("alias", Read),
    ] {
        assert_eq!(policy.access(&real.join(path)), access, "{path} under {policy:#?}");
    }
}

#[test]
fn a_symlink_loop_is_an_error() {
    let root = tempfile::tempdir().unwrap();
    symlink("two", root.path().join("one")).unwrap();
    symlink("one", root.path().join("two")).unwrap();
    let line = format!("read {}", root.path().join("one").display());
    let error = resolve(&[&line], &PolicyContext::default()).unwrap_err();
    assert!(matches!(error, PolicyError::TooManyLinks { .. }), "{error}");
}

#[test]
fn names_that_the_kernel_rejects_are_errors() {
    let line = format!("deny /{}", "n".repeat(300));
    let error = resolve(&[&line], &PolicyContext::default()).unwrap_err();
    assert!(
        matches!(&error, PolicyError::Unreadable { source, .. }
            if source.kind() == io::ErrorKind::InvalidFilename),
        "{error}"
    );
    let error = resolve(&["read /a\0b"], &PolicyContext::default()).unwrap_err();
    assert!(matches!(error, PolicyError::Unreadable { .. }), "{error}");
}

#[test]
fn a_path_in_proc_self_is_an_error() {
    let error = resolve(&["read /proc/self/fd"], &PolicyContext::default()).unwrap_err();
    assert!(matches!(error, PolicyError::OneProcess { .. }), "{error}");
}

#[test]
fn in_a_sticky_directory_names_belong_to_their_creator() {
    let root = tempfile::tempdir().unwrap();
    let (sticky, plain) = (root.path().join("sticky"), root.path().join("plain"));
    for (directory, mode) in [(&sticky, 0o1777), (&plain, 0o777)] {
        fs::create_dir(directory).unwrap();
        fs::set_permissions(directory, fs::Permissions::from_mode(mode)).unwrap();
        symlink("nowhere", directory.join("ours")).unwrap();
        symlink("nowhere", directory.join("theirs")).unwrap();
    }
    let hold = |path: &Path| HostNames.hold(path).unwrap();
    for ours in ["sticky/ours", "plain/ours", "sticky/missing", "missing/too", "sticky/ours/below"]
    {
        assert_eq!(hold(&root.path().join(ours)), Hold::Ours, "{ours}");
    }
    assert_eq!(hold(Path::new("/")), Hold::Ours);
    // Only root can change the owner.
    if rustix::process::geteuid().is_root() {
        for directory in [&sticky, &plain] {
            lchown(directory.join("theirs"), Some(54321), None).unwrap();
        }
        assert_eq!(hold(&sticky.join("theirs")), Hold::Foreign { owner: 54321 });
        assert_eq!(hold(&plain.join("theirs")), Hold::Ours);
    } else {
        // This user cannot replace a name of root in `/tmp`, which root owns. A name may be removed
        // during the test.
        let held = fs::read_dir("/tmp").unwrap().flatten().find_map(|entry| {
            let held = hold(&entry.path());
            entry.metadata().is_ok_and(|metadata| metadata.uid() == 0).then_some(held)
        });
        match held {
            Some(held) => assert_eq!(held, Hold::OutOfReach),
            None => skipped("names of root: /tmp has none"),
        }
    }
}

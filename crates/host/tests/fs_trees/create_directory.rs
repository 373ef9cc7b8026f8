use std::path::Path;

use exec_server_host::fs::{FileKind, FsError, Symlinks, create_directory};
use exec_server_test_support::{Scratch, as_nobody};

use crate::set_mode;

const BOTH: [Symlinks; 2] = [Symlinks::Follow, Symlinks::Refuse];

#[test]
fn a_single_directory_is_created_once() {
    for symlinks in BOTH {
        let scratch = Scratch::new();
        create_directory(&scratch.path("new"), false, symlinks).unwrap();
        assert!(scratch.path("new").is_dir());
        let again = create_directory(&scratch.path("new"), false, symlinks);
        assert!(matches!(again, Err(FsError::Conflict { .. })), "{again:?}");
        let deep = create_directory(&scratch.path("a/b"), false, symlinks).unwrap_err();
        assert!(deep.is_not_found(), "{deep:?}");
        let root = create_directory(Path::new("/"), false, symlinks);
        assert!(matches!(root, Err(FsError::Unsuitable { .. })), "{root:?}");
    }
}

#[test]
fn missing_parents_are_created() {
    for symlinks in BOTH {
        let scratch = Scratch::new();
        for path in ["a/b/c", "a/b/c", "a/b/d/", "a/./e/.", "x/../y/z"] {
            create_directory(&scratch.path(path), true, symlinks).unwrap();
            assert!(scratch.path(path).is_dir(), "{path}");
        }
        assert!(scratch.path("x").is_dir() && scratch.path("y/z").is_dir());
        create_directory(Path::new("/"), true, symlinks).unwrap();
    }
}

#[test]
fn other_files_are_not_replaced() {
    for symlinks in BOTH {
        let scratch = Scratch::new();
        let file = scratch.file("file", "kept");
        let fifo = scratch.fifo("fifo");
        for (path, kind) in [(&file, FileKind::Regular), (&fifo, FileKind::Fifo)] {
            match create_directory(path, true, symlinks) {
                Err(FsError::WrongKind { found, .. }) => assert_eq!(found, kind),
                other => panic!("{other:?}"),
            }
            assert!(create_directory(&path.join("below"), true, symlinks).is_err());
        }
        assert_eq!(std::fs::read(file).unwrap(), b"kept");
    }
}

#[test]
fn a_symlink_in_the_path_is_followed_or_refused() {
    let scratch = Scratch::new();
    scratch.directory("real");
    scratch.symlink("real", "link");
    scratch.symlink("nothing", "dangling");
    for path in ["link", "link/new", "link/a/b", "dangling", "dangling/a"] {
        let refused = create_directory(&scratch.path(path), true, Symlinks::Refuse);
        assert!(matches!(refused, Err(FsError::Symlink { .. })), "{path}: {refused:?}");
    }
    let refused = create_directory(&scratch.path("link/new"), false, Symlinks::Refuse);
    assert!(matches!(refused, Err(FsError::Symlink { .. })), "{refused:?}");
    assert_eq!(std::fs::read_dir(scratch.path("real")).unwrap().count(), 0);

    for path in ["link", "link/new", "link/a/b"] {
        create_directory(&scratch.path(path), true, Symlinks::Follow).unwrap();
    }
    assert!(scratch.path("real/a/b").is_dir());
    for path in ["dangling", "dangling/a"] {
        let refused = create_directory(&scratch.path(path), true, Symlinks::Follow);
        assert!(matches!(refused, Err(FsError::WrongKind { .. })), "{path}: {refused:?}");
    }
    assert!(!scratch.path("nothing").exists());
}

#[test]
fn two_concurrent_creations_both_succeed() {
    let scratch = Scratch::new();
    for round in 0..200 {
        let path = scratch.path(format!("{round}/a/b/c"));
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| create_directory(&path, true, Symlinks::Refuse).unwrap());
            }
        });
        assert!(path.is_dir());
    }
}

#[test]
fn the_error_names_the_unwritable_directory() {
    let scratch = Scratch::new();
    let closed = scratch.directory("closed");
    set_mode(scratch.root(), 0o755);
    set_mode(&closed, 0o555);
    as_nobody(|| {
        let refused = create_directory(&closed.join("a/b"), true, Symlinks::Refuse).unwrap_err();
        assert!(refused.to_string().contains("closed/a: Permission denied"), "{refused}");
    });
}

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;

use exec_server_host::fs::{CancelFlag, FileKind, FsError, RemoveOptions, Symlinks, copy, remove};
use exec_server_test_support::{Scratch, TemporaryMode, as_nobody};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::{chain, exists, file_in, give_away, inode, mode, set_mode};

#[test]
fn a_tree_is_copied_without_special_files() {
    let scratch = Scratch::new();
    scratch.file("source/a/b/file", "content");
    scratch.file(OsStr::from_bytes(b"source/\xff"), "not UTF-8");
    scratch.directory("source/empty");
    scratch.fifo("source/fifo");
    scratch.symlink("../../outside", "source/a/link");
    scratch.symlink("a", "source/to_directory");
    set_mode(scratch.path("source/a/b/file"), 0o751);
    let _closed = TemporaryMode::set(scratch.path("source/a"), 0o555);
    set_mode(scratch.path("source/empty"), 0o1777);
    set_mode(scratch.path("source"), 0o2750);
    let copied = scratch.path("copy");
    copy(&scratch.path("source"), &copied, true, &CancelFlag::never()).unwrap();
    assert_eq!(std::fs::read(copied.join("a/b/file")).unwrap(), b"content");
    assert_eq!(std::fs::read(copied.join(OsStr::from_bytes(b"\xff"))).unwrap(), b"not UTF-8");
    assert_eq!(std::fs::read_link(copied.join("a/link")).unwrap().to_str(), Some("../../outside"));
    assert!(copied.join("to_directory").is_symlink());
    assert!(!exists(copied.join("fifo")));
    let modes = ["", "a", "a/b/file", "empty"].map(|name| mode(copied.join(name)));
    set_mode(copied.join("a"), 0o755);
    assert_eq!(modes, [0o750, 0o555, 0o751, 0o1777]);
}

#[test]
fn directories_without_write_permission_are_filled() {
    let scratch = Scratch::new();
    scratch.file("source/a/file", "content");
    let _closed = ["source/a", "source"].map(|name| TemporaryMode::set(scratch.path(name), 0o555));
    give_away(scratch.root());
    let remove_all = RemoveOptions { recursive: true, force: false, symlinks: Symlinks::Refuse };
    as_nobody(|| {
        copy(&scratch.path("source"), &scratch.path("copy"), true, &CancelFlag::never()).unwrap();
        assert_eq!(std::fs::read(scratch.path("copy/a/file")).unwrap(), b"content");
        assert_eq!(mode(scratch.path("copy/a")), 0o555);
        assert!(remove(&scratch.path("copy"), &remove_all, &CancelFlag::never()).is_err());
        set_mode(scratch.path("copy/a"), 0o755);
        set_mode(scratch.path("copy"), 0o755);
        remove(&scratch.path("copy"), &remove_all, &CancelFlag::never()).unwrap();
    });
}

#[test]
fn an_existing_directory_is_merged() {
    let scratch = Scratch::new();
    scratch.file("source/both/file", "new");
    scratch.file("source/both/only_source", "1");
    scratch.file("copy/both/file", "old");
    scratch.file("copy/both/only_copy", "2");
    set_mode(scratch.path("copy/both"), 0o700);
    let before = inode(scratch.path("copy/both/file"));
    copy(&scratch.path("source"), &scratch.path("copy"), true, &CancelFlag::never()).unwrap();
    for (name, content) in [("file", "new"), ("only_source", "1"), ("only_copy", "2")] {
        let path = scratch.path("copy/both").join(name);
        assert_eq!(std::fs::read_to_string(path).unwrap(), content);
    }
    assert_eq!(mode(scratch.path("copy/both")), 0o700);
    assert_eq!(inode(scratch.path("copy/both/file")), before);
}

#[test]
fn no_symlink_in_the_destination_is_followed() {
    let scratch = Scratch::new();
    scratch.file("outside/file", "kept");
    for (source, link) in [("file", "../outside/file"), ("file", "missing"), ("d/x", "../outside")]
    {
        let name = source.split('/').next().unwrap();
        scratch.file(format!("source/{source}"), "new");
        scratch.directory("copy");
        scratch.symlink(link, format!("copy/{name}"));
        match copy(&scratch.path("source"), &scratch.path("copy"), true, &CancelFlag::never()) {
            Err(FsError::WrongKind { path, found, .. }) => {
                assert_eq!((path, found), (scratch.path("copy").join(name), FileKind::Symlink));
            }
            other => panic!("{other:?}"),
        }
        for path in ["source", "copy"] {
            std::fs::remove_dir_all(scratch.path(path)).unwrap();
        }
    }
    assert_eq!(std::fs::read(scratch.path("outside/file")).unwrap(), b"kept");
    assert_eq!(std::fs::read_dir(scratch.path("outside")).unwrap().count(), 1);
}

#[test]
fn a_file_of_another_kind_is_not_replaced() {
    let scratch = Scratch::new();
    scratch.file("source/a/file", "");
    for destination in [scratch.file("file", "kept"), scratch.fifo("fifo")] {
        let refused = copy(&scratch.path("source"), &destination, true, &CancelFlag::never());
        assert!(matches!(refused, Err(FsError::WrongKind { .. })), "{refused:?}");
    }
    scratch.file("copy/a", "kept");
    let refused = copy(&scratch.path("source"), &scratch.path("copy"), true, &CancelFlag::never());
    assert!(matches!(refused, Err(FsError::WrongKind { .. })), "{refused:?}");
    assert_eq!(std::fs::read(scratch.path("copy/a")).unwrap(), b"kept");
}

#[test]
fn a_tree_is_not_copied_into_itself() {
    let scratch = Scratch::new();
    scratch.file("source/a/b/file", "");
    scratch.symlink("source/a", "link");
    for destination in
        ["source", "source/new", "source/a", "source/a/b/new", "link", "link/new", "link/b/../new"]
    {
        let refused =
            copy(&scratch.path("source"), &scratch.path(destination), true, &CancelFlag::never());
        assert!(matches!(refused, Err(FsError::Unsuitable { .. })), "{destination}: {refused:?}");
    }
    for new in ["source/new", "source/a/new", "source/a/b/new"] {
        assert!(!exists(scratch.path(new)));
    }
    // The other direction is an ordinary copy.
    copy(&scratch.path("source/a"), &scratch.path("source"), true, &CancelFlag::never()).unwrap();
    assert!(exists(scratch.path("source/b/file")));
}

#[test]
fn a_very_deep_tree_is_copied() {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(200), ..limit }).unwrap();
    let scratch = Scratch::in_memory();
    scratch.directory("source");
    file_in(&chain(&scratch.path("source"), "deep", 5_000), "file", b"x");
    copy(&scratch.path("source"), &scratch.path("copy"), true, &CancelFlag::never()).unwrap();
    let all = RemoveOptions { recursive: true, force: false, symlinks: Symlinks::Refuse };
    for name in ["source", "copy"] {
        let mut here = std::fs::File::open(scratch.path(name)).unwrap();
        let mut depth = 0;
        let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::CLOEXEC;
        while let Ok(below) = rustix::fs::openat(&here, "deep", flags, rustix::fs::Mode::empty()) {
            here = below.into();
            depth += 1;
        }
        assert_eq!(depth, 5_000, "{name}");
        assert!(rustix::fs::openat(&here, "file", flags, rustix::fs::Mode::empty()).is_ok());
        remove(&scratch.path(name), &all, &CancelFlag::never()).unwrap();
    }
}

#[test]
fn the_error_names_the_entry_and_earlier_copies_stay() {
    let scratch = Scratch::new();
    scratch.file("source/a/secret", "");
    scratch.directory("unreadable/below");
    give_away(scratch.root());
    give_away(&scratch.path("unreadable"));
    set_mode(scratch.path("source/a/secret"), 0o000);
    let _closed = TemporaryMode::set(scratch.path("unreadable/below"), 0o000);
    as_nobody(|| {
        let refused =
            copy(&scratch.path("source"), &scratch.path("copy"), true, &CancelFlag::never())
                .unwrap_err();
        assert!(refused.to_string().contains("source/a/secret: Permission denied"), "{refused}");
        assert!(scratch.path("copy/a").is_dir());
        let refused =
            copy(&scratch.path("unreadable"), &scratch.path("copy2"), true, &CancelFlag::never())
                .unwrap_err();
        assert!(refused.to_string().contains("unreadable/below: Permission denied"), "{refused}");
    });
}

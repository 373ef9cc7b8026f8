use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use exec_server_host::fs::{
    CancelFlag, FsError, RemoveOptions, Symlinks, create_directory, remove,
};
use exec_server_test_support::{Scratch, TemporaryMode, as_nobody};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::{chain, exists, file_in, give_away};

const ALL: RemoveOptions =
    RemoveOptions { recursive: true, force: false, symlinks: Symlinks::Follow };
const ONE: RemoveOptions = RemoveOptions { recursive: false, ..ALL };
const FORCE: RemoveOptions = RemoveOptions { force: true, ..ALL };

#[test]
fn any_kind_of_file_can_be_removed() {
    for options in [ALL, ONE] {
        let scratch = Scratch::new();
        scratch.symlink("nothing", "dangling");
        for path in [
            scratch.file("file", ""),
            scratch.fifo("fifo"),
            scratch.directory("empty"),
            scratch.path("dangling"),
        ] {
            remove(&path, &options, &CancelFlag::never()).unwrap();
            assert!(!exists(&path));
            assert!(remove(&path, &options, &CancelFlag::never()).unwrap_err().is_not_found());
        }
    }
}

#[test]
fn a_symlink_is_removed_and_its_target_stays() {
    let scratch = Scratch::new();
    scratch.file("kept/file", "kept");
    for (name, path) in [("link", "link"), ("slash", "slash/")] {
        scratch.symlink("kept", name);
        remove(&scratch.path(path), &FORCE, &CancelFlag::never()).unwrap();
        assert!(!exists(scratch.path(name)));
    }
    scratch.directory("tree/sub");
    scratch.symlink("../kept", "tree/to_directory");
    scratch.symlink("../../kept/file", "tree/sub/to_file");
    remove(&scratch.path("tree"), &ALL, &CancelFlag::never()).unwrap();
    assert!(!exists(scratch.path("tree")));
    assert_eq!(std::fs::read(scratch.path("kept/file")).unwrap(), b"kept");
}

#[test]
fn a_symlink_in_the_path_is_followed_or_refused() {
    let scratch = Scratch::new();
    scratch.file("real/a", "");
    scratch.symlink("real", "link");
    let refuse = RemoveOptions { symlinks: Symlinks::Refuse, ..FORCE };
    let refused = remove(&scratch.path("link/a"), &refuse, &CancelFlag::never());
    assert!(matches!(refused, Err(FsError::Symlink { .. })), "{refused:?}");
    assert!(exists(scratch.path("real/a")));
    remove(&scratch.path("link/a"), &ALL, &CancelFlag::never()).unwrap();
    assert!(!exists(scratch.path("real/a")));
}

#[test]
fn a_symlink_as_the_last_component_is_refused() {
    let scratch = Scratch::new();
    scratch.directory("tree");
    for (target, name) in [("tree", "to_directory"), ("nothing", "dangling"), ("..", "tree/inside")]
    {
        scratch.symlink(target, name);
    }
    for options in [ALL, ONE, FORCE] {
        let options = RemoveOptions { symlinks: Symlinks::Refuse, ..options };
        for name in ["to_directory", "to_directory/", "dangling"] {
            let refused = remove(&scratch.path(name), &options, &CancelFlag::never());
            assert!(matches!(refused, Err(FsError::Symlink { .. })), "{name}: {refused:?}");
            assert!(exists(scratch.path(name.trim_end_matches('/'))));
        }
    }
    // Symlinks inside a tree are not part of the path.
    let refuse = RemoveOptions { symlinks: Symlinks::Refuse, ..ALL };
    remove(&scratch.path("tree"), &refuse, &CancelFlag::never()).unwrap();
    assert!(!exists(scratch.path("tree")));
}

#[test]
fn a_directory_with_content_is_removed_only_recursively() {
    let scratch = Scratch::new();
    scratch.file("d/file", "");
    let refused = remove(&scratch.path("d"), &ONE, &CancelFlag::never()).unwrap_err();
    assert!(refused.to_string().contains("not empty"), "{refused}");
    assert!(exists(scratch.path("d/file")));
    remove(&scratch.path("d"), &ALL, &CancelFlag::never()).unwrap();
    assert!(!exists(scratch.path("d")));
}

#[test]
fn a_missing_path_is_not_an_error_with_force() {
    let scratch = Scratch::new();
    for path in ["missing", "missing/below"] {
        remove(&scratch.path(path), &FORCE, &CancelFlag::never()).unwrap();
        assert!(
            remove(&scratch.path(path), &ALL, &CancelFlag::never()).unwrap_err().is_not_found()
        );
    }
}

#[test]
fn a_path_without_a_final_name_is_refused() {
    let scratch = Scratch::new();
    scratch.file("a/file", "");
    for path in [Path::new("/"), &scratch.path("a/.."), &scratch.path("a/."), &scratch.path("a/./")]
    {
        let refused = remove(path, &FORCE, &CancelFlag::never());
        assert!(matches!(refused, Err(FsError::Unsuitable { .. })), "{path:?}: {refused:?}");
    }
    assert!(exists(scratch.path("a/file")));
}

#[test]
fn a_very_deep_tree_is_removed() {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(200), ..limit }).unwrap();
    let scratch = Scratch::in_memory();
    scratch.file("top/file", "");
    let lowest = chain(&scratch.path("top"), "deep", 10_000);
    file_in(&lowest, "file", b"x");
    remove(&scratch.path("top"), &ALL, &CancelFlag::never()).unwrap();
    assert!(!exists(scratch.path("top")));
}

#[test]
fn a_very_wide_directory_is_removed() {
    let scratch = Scratch::new();
    for directory in 0..300 {
        for file in 0..20 {
            scratch.file(format!("top/{directory}/{file}"), "");
        }
        scratch.directory(format!("top/{directory}/sub"));
    }
    remove(&scratch.path("top"), &ALL, &CancelFlag::never()).unwrap();
    assert!(!exists(scratch.path("top")));
}

#[test]
fn a_directory_that_is_refilled_is_removed_or_reported() {
    let scratch = Scratch::new();
    let top = scratch.path("top");
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let _ = create_directory(&top.join("a/b"), true, Symlinks::Refuse);
                let _ = std::fs::write(top.join("a/file"), "");
            }
        });
        for _ in 0..500 {
            match remove(&top, &FORCE, &CancelFlag::never()) {
                Ok(()) => {}
                Err(FsError::Os { path, source, .. }) => {
                    assert!(path.starts_with(&top));
                    assert_eq!(source.kind(), std::io::ErrorKind::DirectoryNotEmpty);
                }
                Err(other) => panic!("{other}"),
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    remove(&top, &FORCE, &CancelFlag::never()).unwrap();
    assert!(!exists(&top));
}

#[test]
fn the_error_names_the_entry_that_cannot_be_removed() {
    let scratch = Scratch::new();
    let fixed = scratch.file("top/a/fixed/file", "").parent().unwrap().to_owned();
    let unreadable = scratch.file("other/unreadable/file", "").parent().unwrap().to_owned();
    let empty = scratch.directory("empty/unreadable");
    for path in ["", "top", "top/a", "top/a/fixed", "other", "other/unreadable", "empty"] {
        give_away(&scratch.path(path));
    }
    give_away(&empty);
    let _fixed = TemporaryMode::set(fixed, 0o555);
    let _closed = [unreadable, empty].map(|path| TemporaryMode::set(path, 0o000));
    as_nobody(|| {
        let refused = remove(&scratch.path("top"), &ALL, &CancelFlag::never()).unwrap_err();
        assert!(refused.to_string().contains("top/a/fixed/file: Permission denied"), "{refused}");
        let refused = remove(&scratch.path("other"), &ALL, &CancelFlag::never()).unwrap_err();
        assert!(refused.to_string().contains("other/unreadable: Permission denied"), "{refused}");
        // An empty directory need not be readable.
        remove(&scratch.path("empty"), &ALL, &CancelFlag::never()).unwrap();
    });
}

#[test]
fn a_path_below_a_file_does_not_exist() {
    let scratch = Scratch::new();
    scratch.file("file", "content");
    for below in ["file/below", "file/a/b"] {
        remove(&scratch.path(below), &FORCE, &CancelFlag::never()).unwrap();
        remove(&scratch.path(below), &ALL, &CancelFlag::never()).unwrap_err();
    }
    assert_eq!(std::fs::read(scratch.path("file")).unwrap(), b"content");
}

#[test]
fn a_cancelled_removal_ends() {
    let scratch = Scratch::new();
    scratch.directory("top");
    scratch.file("top/file", "");
    let cancel = CancelFlag::new();
    cancel.request();
    let abandoned = remove(&scratch.path("top"), &FORCE, &cancel).unwrap_err();
    assert!(abandoned.to_string().contains("no longer waits"), "{abandoned}");
    assert!(exists(scratch.path("top/file")));
}

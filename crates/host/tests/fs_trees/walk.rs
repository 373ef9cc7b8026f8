use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use exec_server_host::fs::{CancelFlag, Tree, TreeKind, WalkOptions, walk};
use exec_server_test_support::{Scratch, TemporaryMode, as_nobody};

use crate::{chain, file_in, set_mode};

const EVERYTHING: WalkOptions = WalkOptions {
    max_depth: 64,
    max_directories: 10_000,
    max_entries: 50_000,
    max_bytes: 4 << 20,
    follow_directory_symlinks: false,
    prune_hidden_directories: false,
};

/// Returns relative names; directories end with a slash.
fn names(root: &Path, tree: &Tree) -> Vec<String> {
    let name = |path: &Path| path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
    let slash = |kind| if kind == TreeKind::Directory { "/" } else { "" };
    tree.entries.iter().map(|entry| name(&entry.path) + slash(entry.kind)).collect()
}

fn sample() -> Scratch {
    let scratch = Scratch::new();
    for file in ["b/x/deep", "b/1", "a/2", "z", "a/.hidden/h", ".dot"] {
        scratch.file(file, "");
    }
    scratch.fifo("a/fifo");
    scratch.symlink("nothing", "a/dangling");
    scratch.symlink("/dev/null", "a/device");
    scratch.symlink("../z", "a/to_file");
    scratch.symlink("../b", "a/to_directory");
    scratch
}

#[test]
fn a_walk_is_breadth_first_and_sorted() {
    let scratch = sample();
    let tree = walk(scratch.root(), &EVERYTHING, &CancelFlag::never()).unwrap();
    let expected =
        [".dot", "a/", "b/", "z", "a/.hidden/", "a/2", "b/1", "b/x/", "a/.hidden/h", "b/x/deep"];
    assert_eq!(names(scratch.root(), &tree), expected);
    assert!(tree.errors.is_empty() && !tree.truncated);
}

#[test]
fn the_root_may_be_reached_by_any_path() {
    let scratch = sample();
    scratch.symlink("b", "link");
    let root = scratch.path("link/../a/./../b/");
    let tree = walk(&root, &EVERYTHING, &CancelFlag::never()).unwrap();
    assert_eq!(names(&root, &tree), ["1", "x/", "x/deep"]);
    let link = scratch.path("link");
    assert_eq!(
        names(&link, &walk(&link, &EVERYTHING, &CancelFlag::never()).unwrap()),
        ["1", "x/", "x/deep"]
    );
    for path in ["a/fifo", "a/dangling", "missing", "z/below", "z/"] {
        assert!(walk(&scratch.path(path), &EVERYTHING, &CancelFlag::never()).is_err(), "{path}");
    }
}

#[test]
fn a_walk_of_a_file_is_empty() {
    let scratch = sample();
    for path in ["z", "a/to_file"] {
        let tree = walk(&scratch.path(path), &EVERYTHING, &CancelFlag::never()).unwrap();
        assert_eq!(tree, Tree::default(), "{path}");
    }
}

#[test]
fn hidden_directories_are_listed_but_not_entered() {
    let scratch = Scratch::new();
    for file in [".hidden/h", ".hidden/.deeper/h", "open/file", ".dot"] {
        scratch.file(file, "");
    }
    scratch.symlink("open", ".to_directory");
    let options = WalkOptions {
        prune_hidden_directories: true,
        follow_directory_symlinks: true,
        ..EVERYTHING
    };
    let tree = walk(scratch.root(), &options, &CancelFlag::never()).unwrap();
    let expected = [".dot", ".hidden/", ".to_directory/", "open/", "open/file"];
    assert_eq!(names(scratch.root(), &tree), expected);
}

#[test]
fn followed_symlinks_to_directories_are_entered_once() {
    let scratch = Scratch::new();
    scratch.file("a/file", "");
    scratch.symlink("..", "a/up");
    scratch.symlink("a", "b");
    scratch.symlink(".", "c");
    scratch.symlink("a/file", "to_file");
    let tree = walk(scratch.root(), &EVERYTHING, &CancelFlag::never()).unwrap();
    assert_eq!(names(scratch.root(), &tree), ["a/", "a/file"]);
    let options = WalkOptions { follow_directory_symlinks: true, ..EVERYTHING };
    let tree = walk(scratch.root(), &options, &CancelFlag::never()).unwrap();
    assert_eq!(names(scratch.root(), &tree), ["a/", "b/", "c/", "a/file", "a/up/"]);
    assert!(!tree.truncated);

    let outside = Scratch::new();
    outside.file("o/file", "");
    scratch.symlink(outside.path("o"), "d");
    let tree = walk(scratch.root(), &options, &CancelFlag::never()).unwrap();
    assert!(names(scratch.root(), &tree).contains(&"d/file".to_owned()));
}

#[test]
fn the_cost_of_a_name_is_its_length_as_a_uri() {
    let scratch = Scratch::new();
    let odd = scratch.file("odd \u{fc}%name", "");
    let plain = scratch.root().as_os_str().len() + "/oddname".len();
    let max_bytes = plain + 4 * 3 + 48;
    for (max_bytes, truncated) in [(max_bytes, false), (max_bytes - 1, true)] {
        let options = WalkOptions { max_bytes, ..EVERYTHING };
        let tree = walk(scratch.root(), &options, &CancelFlag::never()).unwrap();
        assert_eq!(tree.truncated, truncated);
        assert_eq!(tree.entries.iter().any(|entry| entry.path == odd), !truncated);
    }
}

#[test]
fn a_cancelled_walk_ends() {
    let scratch = sample();
    let cancel = CancelFlag::new();
    cancel.request();
    let abandoned = walk(scratch.root(), &EVERYTHING, &cancel).unwrap_err();
    assert!(abandoned.to_string().contains("no longer waits"), "{abandoned}");
}

#[test]
fn every_limit_truncates_the_walk() {
    let scratch = sample();
    let whole = walk(scratch.root(), &EVERYTHING, &CancelFlag::never()).unwrap();
    let bytes: usize = whole.entries.iter().map(|entry| entry.path.as_os_str().len() + 48).sum();
    let exact = WalkOptions {
        max_depth: 2,
        max_directories: 5,
        max_entries: whole.entries.len(),
        max_bytes: bytes,
        ..EVERYTHING
    };
    assert_eq!(walk(scratch.root(), &exact, &CancelFlag::never()).unwrap(), whole);
    // The depth is an option of the walk, not a limit of the response.
    for (max_depth, count) in [(1, 8), (0, 4)] {
        let tree =
            walk(scratch.root(), &WalkOptions { max_depth, ..exact.clone() }, &CancelFlag::never())
                .unwrap();
        assert_eq!((tree.entries.len(), tree.truncated), (count, false), "{max_depth}");
    }
    let short = [
        (WalkOptions { max_directories: 4, ..exact.clone() }, 9),
        (WalkOptions { max_directories: 1, ..exact.clone() }, 4),
        (WalkOptions { max_directories: 0, ..exact.clone() }, 0),
        (WalkOptions { max_entries: 9, ..exact.clone() }, 9),
        (WalkOptions { max_entries: 0, ..exact.clone() }, 0),
        (WalkOptions { max_bytes: bytes - 1, ..exact.clone() }, 9),
        (WalkOptions { max_bytes: 0, ..exact }, 0),
    ];
    for (options, count) in short {
        let tree = walk(scratch.root(), &options, &CancelFlag::never()).unwrap();
        assert_eq!((tree.entries.len(), tree.truncated), (count, true), "{options:?}");
        if options.max_entries == whole.entries.len() {
            assert_eq!(tree.entries, whole.entries[..count], "{options:?}");
        }
    }
}

#[test]
fn paths_longer_than_the_kernel_accepts_are_walked() {
    let scratch = Scratch::new();
    let lowest = chain(scratch.root(), &"n".repeat(250), 30);
    file_in(&lowest, OsStr::from_bytes(b"\xff"), b"");
    for follow_directory_symlinks in [false, true] {
        let options = WalkOptions { follow_directory_symlinks, ..EVERYTHING };
        let tree = walk(scratch.root(), &options, &CancelFlag::never()).unwrap();
        assert_eq!((tree.entries.len(), tree.truncated), (31, false), "{:?}", tree.errors);
        assert_eq!(tree.entries[30].path.file_name().unwrap().as_bytes(), b"\xff");
    }
}

#[test]
fn unreadable_paths_are_reported_and_the_rest_is_walked() {
    let scratch = sample();
    let closed = scratch.directory("closed/below");
    scratch.file("ok/file", "");
    scratch.symlink("../closed/below", "ok/link");
    set_mode(scratch.root(), 0o755);
    let _closed = TemporaryMode::set(closed.parent().unwrap(), 0o000);
    as_nobody(|| {
        let options = WalkOptions { follow_directory_symlinks: true, ..EVERYTHING };
        let tree = walk(scratch.root(), &options, &CancelFlag::never()).unwrap();
        let names = names(scratch.root(), &tree);
        assert!(names.contains(&"closed/".to_owned()) && names.contains(&"ok/file".to_owned()));
        let failed: Vec<_> = tree.errors.iter().map(|error| error.path.clone()).collect();
        assert_eq!(failed, [scratch.path("closed"), scratch.path("ok/link")]);
        assert!(tree.errors[0].message.ends_with("closed: Permission denied (os error 13)"));
        assert!(!tree.truncated);
    });
}

#[test]
fn the_number_of_errors_is_bounded() {
    let scratch = Scratch::new();
    let close = |number| TemporaryMode::set(scratch.directory(format!("{number}")), 0o000);
    let _closed: Vec<_> = (0..1_001).map(close).collect();
    set_mode(scratch.root(), 0o755);
    as_nobody(|| {
        let tree = walk(scratch.root(), &EVERYTHING, &CancelFlag::never()).unwrap();
        assert_eq!((tree.entries.len(), tree.errors.len(), tree.truncated), (1_001, 1_000, true));
    });
}

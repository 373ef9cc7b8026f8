//! Trees, and what happens to the directories in them.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::sync::atomic::{AtomicBool, Ordering};

use exec_server_host::fs::watch::{ChangeKind, WatchDepth};
use exec_server_test_support::TemporaryMode;

use crate::as_nobody::as_nobody;
use crate::place::{Place, is_watched, on_this_thread};

#[tokio::test]
async fn links_below_a_tree_are_not_followed() {
    let place = Place::new();
    place.mkdir("tree");
    place.mkdir("outside");
    std::os::unix::fs::symlink("../outside", place.at("tree/before")).unwrap();
    let mut told = place.watch("tree", WatchDepth::Tree);
    std::os::unix::fs::symlink("../outside", place.at("tree/after")).unwrap();
    told.until(ChangeKind::Created, &place.at("tree/after")).await;
    place.write("outside/file");
    place.write("tree/end");
    told.until(ChangeKind::Created, &place.at("tree/end")).await;
    assert!(!told.mentions(&place.at("tree/before/file")));
    assert!(!told.mentions(&place.at("tree/after/file")));
}

#[tokio::test]
async fn directories_made_fast_lose_nothing() {
    let place = Place::new();
    let mut told = place.watch("", WatchDepth::Tree);
    for round in 0..50 {
        place.mkdir(&format!("{round}/b/c"));
        place.write(&format!("{round}/b/c/file"));
    }
    for round in 0..50 {
        for name in ["", "b", "b/c", "b/c/file"] {
            let path = place.at(&round.to_string()).join(name);
            told.until(ChangeKind::Created, path.components().as_path()).await;
        }
    }
    assert!(!told.rescan);
    told.forget();
    for round in 0..50 {
        place.write(&format!("{round}/b/c/later"));
    }
    for round in 0..50 {
        told.until(ChangeKind::Created, &place.at(&format!("{round}/b/c/later"))).await;
    }
}

#[tokio::test]
async fn a_directory_that_is_moved_in_is_told_with_its_content() {
    let place = Place::new();
    place.mkdir("tree");
    place.mkdir("d/e");
    place.write("d/e/file");
    let mut told = place.watch("tree", WatchDepth::Tree);
    fs::rename(place.at("d"), place.at("tree/d")).unwrap();
    told.until(ChangeKind::Created, &place.at("tree/d/e/file")).await;
    place.write("tree/d/e/later");
    told.until(ChangeKind::Created, &place.at("tree/d/e/later")).await;
    assert!(!told.rescan);
}

#[tokio::test]
async fn a_renamed_directory_is_watched_under_its_new_name() {
    let place = Place::new();
    place.mkdir("d/e");
    let mut told = place.watch("", WatchDepth::Tree);
    fs::rename(place.at("d"), place.at("f")).unwrap();
    told.until(ChangeKind::Renamed, &place.at("f")).await;
    assert!(told.rescan, "what happened in it meanwhile is not known");
    place.write("f/e/file");
    told.until(ChangeKind::Created, &place.at("f/e/file")).await;
}

/// As a checkout or a build does. What is told last of a file that exists is not that it was removed.
#[tokio::test]
async fn a_directory_that_is_made_again_has_its_files() {
    let place = Place::new();
    let mut told = place.watch("", WatchDepth::Tree);
    let file = place.at("src/a");
    for round in 0..30 {
        place.mkdir("src");
        place.write("src/a");
        for end in ["first", "second"] {
            let end = format!("{round} {end}");
            place.write(&end);
            told.until(ChangeKind::Created, &place.at(&end)).await;
        }
        let last = told.changes.iter().rfind(|change| change.path == file).unwrap();
        assert_ne!(last.kind, ChangeKind::Removed, "round {round}: {:?}", told.changes);
        assert!(!told.rescan);
        told.forget();
        fs::remove_dir_all(place.at("src")).unwrap();
    }
}

/// It says of itself that it is gone when nobody has it open any more. Another may have its name by then.
#[tokio::test]
async fn a_directory_that_ends_after_its_name_is_taken_removes_nothing() {
    let place = Place::in_memory();
    let directory = place.at("d");
    place.mkdir("d");
    let mut told = place.watch("", WatchDepth::Tree);
    for round in 0..30 {
        let held = fs::File::open(&directory).unwrap();
        fs::remove_dir(&directory).unwrap();
        fs::create_dir(&directory).unwrap();
        drop(held);
        for end in ["first", "second"] {
            let end = format!("{round} {end}");
            place.write(&end);
            told.until(ChangeKind::Created, &place.at(&end)).await;
        }
        let last = told.changes.iter().rfind(|change| change.path == directory).unwrap();
        assert_ne!(last.kind, ChangeKind::Removed, "round {round}: {:?}", told.changes);
        told.forget();
    }
}

#[test]
fn what_may_not_be_read_is_left_out() {
    let place = Place::new();
    place.mkdir("open");
    place.mkdir("closed/below");
    let mode = |path: &str, mode| {
        fs::set_permissions(place.at(path), fs::Permissions::from_mode(mode)).unwrap();
    };
    mode("", 0o755);
    mode("open", 0o777);
    let _closed = TemporaryMode::set(place.at("closed"), 0o000);
    let _ = as_nobody(|| {
        // Its queue is emptied by a thread of this user.
        let place = Place::at_path(place.root.clone());
        let mut told = place.watch_by("", WatchDepth::Tree, on_this_thread);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        place.write("open/file");
        runtime.block_on(told.until(ChangeKind::Created, &place.at("open/file")));
        assert!(is_watched(&place.at("open")) && !is_watched(&place.at("closed")));
        for depth in [WatchDepth::Single, WatchDepth::Tree] {
            let closed = place.at("closed");
            let refused = place.watcher.watch(&closed, depth, on_this_thread).unwrap_err();
            let text = refused.to_string();
            assert!(text.contains(closed.to_str().unwrap()), "{text}");
            assert!(text.contains("Permission denied"), "{text}");
        }
    });
}

/// A build that runs is no reason why its tree cannot be watched.
#[test]
fn what_vanishes_meanwhile_is_left_out() {
    let place = Place::new();
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for name in ["one", "other"] {
            let (busy, ended) = (place.at(name), &ended);
            scope.spawn(move || {
                while !ended.load(Ordering::Relaxed) {
                    fs::create_dir_all(busy.join("a/b/c")).unwrap();
                    fs::remove_dir_all(&busy).unwrap();
                }
            });
        }
        let watch = || place.watcher.watch(&place.root, WatchDepth::Tree, on_this_thread);
        let failed: Vec<_> = (0..300).filter_map(|_| watch().err()).collect();
        ended.store(true, Ordering::Relaxed);
        assert!(failed.is_empty(), "{} times: {}", failed.len(), failed[0]);
    });
}

#[tokio::test]
async fn more_new_directories_than_are_told_are_watched() {
    let place = Place::in_memory();
    let mut told = place.watch("", WatchDepth::Tree);
    place.make_more_than_is_told(|path| fs::create_dir(path).unwrap()).await;
    told.until_rescan().await;
    assert_eq!(told.changes, []);
    place.write("4999/file");
    told.until(ChangeKind::Created, &place.at("4999/file")).await;
}

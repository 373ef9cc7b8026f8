//! Trees, and changes to the directories in them.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::sync::atomic::{AtomicBool, Ordering};

use exec_server_host::fs::watch::{ChangeKind, WatchDepth};
use exec_server_test_support::{TemporaryMode, as_nobody};

use crate::scene::{WatchScene, is_watched, on_this_thread};

#[tokio::test]
async fn links_below_a_tree_are_not_followed() {
    let scene = WatchScene::new();
    scene.mkdir("tree");
    scene.mkdir("outside");
    std::os::unix::fs::symlink("../outside", scene.at("tree/before")).unwrap();
    let mut told = scene.watch("tree", WatchDepth::Tree);
    std::os::unix::fs::symlink("../outside", scene.at("tree/after")).unwrap();
    told.until(ChangeKind::Created, &scene.at("tree/after")).await;
    scene.write("outside/file");
    scene.write("tree/end");
    told.until(ChangeKind::Created, &scene.at("tree/end")).await;
    assert!(!told.mentions(&scene.at("tree/before/file")));
    assert!(!told.mentions(&scene.at("tree/after/file")));
}

#[tokio::test]
async fn directories_created_quickly_lose_no_changes() {
    let scene = WatchScene::new();
    let mut told = scene.watch("", WatchDepth::Tree);
    for round in 0..50 {
        scene.mkdir(&format!("{round}/b/c"));
        scene.write(&format!("{round}/b/c/file"));
    }
    for round in 0..50 {
        for name in ["", "b", "b/c", "b/c/file"] {
            let path = scene.at(&round.to_string()).join(name);
            told.until(ChangeKind::Created, path.components().as_path()).await;
        }
    }
    assert!(!told.rescan);
    told.forget();
    for round in 0..50 {
        scene.write(&format!("{round}/b/c/later"));
    }
    for round in 0..50 {
        told.until(ChangeKind::Created, &scene.at(&format!("{round}/b/c/later"))).await;
    }
}

#[tokio::test]
async fn a_directory_moved_into_a_tree_is_reported_with_its_content() {
    let scene = WatchScene::new();
    scene.mkdir("tree");
    scene.mkdir("d/e");
    scene.write("d/e/file");
    let mut told = scene.watch("tree", WatchDepth::Tree);
    fs::rename(scene.at("d"), scene.at("tree/d")).unwrap();
    told.until(ChangeKind::Created, &scene.at("tree/d/e/file")).await;
    scene.write("tree/d/e/later");
    told.until(ChangeKind::Created, &scene.at("tree/d/e/later")).await;
    assert!(!told.rescan);
}

#[tokio::test]
async fn a_renamed_directory_is_watched_under_its_new_name() {
    let scene = WatchScene::new();
    scene.mkdir("d/e");
    let mut told = scene.watch("", WatchDepth::Tree);
    fs::rename(scene.at("d"), scene.at("f")).unwrap();
    told.until(ChangeKind::Renamed, &scene.at("f")).await;
    assert!(told.rescan, "changes in it in the meantime are unknown");
    scene.write("f/e/file");
    told.until(ChangeKind::Created, &scene.at("f/e/file")).await;
}

/// Checkouts and builds recreate directories. The last change reported for an existing file must
/// not be its removal.
#[tokio::test]
async fn files_of_a_recreated_directory_are_reported() {
    let scene = WatchScene::new();
    let mut told = scene.watch("", WatchDepth::Tree);
    let file = scene.at("src/a");
    for round in 0..30 {
        scene.mkdir("src");
        scene.write("src/a");
        for end in ["first", "second"] {
            let end = format!("{round} {end}");
            scene.write(&end);
            told.until(ChangeKind::Created, &scene.at(&end)).await;
        }
        let last = told.changes.iter().rfind(|change| change.path == file).unwrap();
        assert_ne!(last.kind, ChangeKind::Removed, "round {round}: {:?}", told.changes);
        assert!(!told.rescan);
        told.forget();
        fs::remove_dir_all(scene.at("src")).unwrap();
    }
}

/// The kernel reports the end of a removed directory only once no process has it open. By then
/// another directory may have its name.
#[tokio::test]
async fn the_late_end_of_a_directory_does_not_affect_its_successor() {
    let scene = WatchScene::in_memory();
    let directory = scene.at("d");
    scene.mkdir("d");
    let mut told = scene.watch("", WatchDepth::Tree);
    for round in 0..30 {
        let held = fs::File::open(&directory).unwrap();
        fs::remove_dir(&directory).unwrap();
        fs::create_dir(&directory).unwrap();
        drop(held);
        for end in ["first", "second"] {
            let end = format!("{round} {end}");
            scene.write(&end);
            told.until(ChangeKind::Created, &scene.at(&end)).await;
        }
        let last = told.changes.iter().rfind(|change| change.path == directory).unwrap();
        assert_ne!(last.kind, ChangeKind::Removed, "round {round}: {:?}", told.changes);
        told.forget();
    }
}

#[test]
fn unreadable_directories_are_left_out() {
    let scene = WatchScene::new();
    scene.mkdir("open");
    scene.mkdir("closed/below");
    let mode = |path: &str, mode| {
        fs::set_permissions(scene.at(path), fs::Permissions::from_mode(mode)).unwrap();
    };
    mode("", 0o755);
    mode("open", 0o777);
    let _closed = TemporaryMode::set(scene.at("closed"), 0o000);
    as_nobody(|| {
        // A new watcher: the thread that empties its queue must run as this user.
        let scene = WatchScene::at_path(scene.root.clone());
        let mut told = scene.watch_by("", WatchDepth::Tree, on_this_thread);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        scene.write("open/file");
        runtime.block_on(told.until(ChangeKind::Created, &scene.at("open/file")));
        assert!(is_watched(&scene.at("open")) && !is_watched(&scene.at("closed")));
        for depth in [WatchDepth::Single, WatchDepth::Tree] {
            let closed = scene.at("closed");
            let refused = scene.watcher.watch(&closed, depth, on_this_thread).unwrap_err();
            let text = refused.to_string();
            assert!(text.contains(closed.to_str().unwrap()), "{text}");
            assert!(text.contains("Permission denied"), "{text}");
        }
    });
}

/// A running build must not prevent watching its tree.
#[test]
fn directories_that_vanish_during_the_setup_are_left_out() {
    let scene = WatchScene::new();
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for name in ["one", "other"] {
            let (busy, ended) = (scene.at(name), &ended);
            scope.spawn(move || {
                while !ended.load(Ordering::Relaxed) {
                    fs::create_dir_all(busy.join("a/b/c")).unwrap();
                    fs::remove_dir_all(&busy).unwrap();
                }
            });
        }
        let watch = || scene.watcher.watch(&scene.root, WatchDepth::Tree, on_this_thread);
        let failed: Vec<_> = (0..300).filter_map(|_| watch().err()).collect();
        ended.store(true, Ordering::Relaxed);
        assert!(failed.is_empty(), "{} watches failed, the first: {}", failed.len(), failed[0]);
    });
}

#[tokio::test]
async fn all_new_directories_are_watched_beyond_the_report_limit() {
    let scene = WatchScene::in_memory();
    let mut told = scene.watch("", WatchDepth::Tree);
    scene.make_more_than_is_told(|path| fs::create_dir(path).unwrap()).await;
    told.until_rescan().await;
    assert_eq!(told.changes, []);
    scene.write("4999/file");
    told.until(ChangeKind::Created, &scene.at("4999/file")).await;
}

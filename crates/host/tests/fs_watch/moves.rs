//! Moved directories: a directory keeps its kernel watch wherever it moves, but changes are
//! reported by name.

use std::fs;

use exec_server_host::fs::watch::{ChangeKind, WatchDepth};
use rustix::fs::{CWD, RenameFlags};

use crate::scene::{WatchScene, is_watched};

#[tokio::test]
async fn a_directory_moved_to_another_watch_is_reported_there() {
    let scene = WatchScene::new();
    scene.mkdir("from/d/e");
    scene.mkdir("to");
    scene.write("from/d/e/file");
    let mut from = scene.watch("from", WatchDepth::Tree);
    let mut to = scene.watch("to", WatchDepth::Tree);
    fs::rename(scene.at("from/d"), scene.at("to/d")).unwrap();
    from.until(ChangeKind::Removed, &scene.at("from/d")).await;
    to.until(ChangeKind::Created, &scene.at("to/d/e/file")).await;
    from.forget();
    scene.write("to/d/e/later");
    to.until(ChangeKind::Created, &scene.at("to/d/e/later")).await;
    scene.write("from/end");
    from.until(ChangeKind::Created, &scene.at("from/end")).await;
    assert!(from.changes.iter().all(|change| change.path == scene.at("from/end")));
}

#[tokio::test]
async fn exchanged_directories_are_watched_under_their_new_names() {
    let scene = WatchScene::new();
    scene.mkdir("a/of_a");
    scene.mkdir("b/of_b");
    let mut told = scene.watch("", WatchDepth::Tree);
    let (a, b) = (scene.at("a"), scene.at("b"));
    rustix::fs::renameat_with(CWD, &a, CWD, &b, RenameFlags::EXCHANGE).unwrap();
    told.until_rescan().await;
    told.forget();
    for new in ["a/of_b/new", "b/of_a/new"] {
        scene.write(new);
        told.until(ChangeKind::Created, &scene.at(new)).await;
    }
    for old in ["a/of_a/new", "b/of_b/new"] {
        assert!(!told.mentions(&scene.at(old)), "{:?}", told.changes);
    }
}

#[tokio::test]
async fn a_root_replaced_by_another_directory_stays_watched() {
    let scene = WatchScene::new();
    scene.mkdir("root");
    let root = scene.at("root");
    for depth in [WatchDepth::Single, WatchDepth::Tree] {
        let mut told = scene.watch("root", depth);
        for round in 0..3 {
            scene.mkdir("new");
            fs::rename(scene.at("new"), &root).unwrap();
            told.until(ChangeKind::Modified, &root).await;
            assert!(told.rescan);
            let file = root.join(round.to_string());
            fs::write(&file, "x").unwrap();
            told.until(ChangeKind::Created, &file).await;
            told.forget();
            fs::remove_file(&file).unwrap();
            told.until(ChangeKind::Removed, &file).await;
        }
    }
}

/// Neither the directory nor those below it still have a name inside a watched directory.
#[tokio::test]
async fn a_directory_that_leaves_a_tree_is_no_longer_watched() {
    let scene = WatchScene::new();
    scene.mkdir("tree/d/e");
    let mut told = scene.watch("tree", WatchDepth::Tree);
    fs::rename(scene.at("tree/d"), scene.at("outside")).unwrap();
    told.until(ChangeKind::Removed, &scene.at("tree/d")).await;
    assert!(!is_watched(&scene.at("outside")) && !is_watched(&scene.at("outside/e")));
    scene.write("outside/e/file");
    scene.write("tree/end");
    told.until(ChangeKind::Created, &scene.at("tree/end")).await;
    assert!(!told.mentions(&scene.at("tree/d/e/file")));
}

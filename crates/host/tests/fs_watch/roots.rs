//! A watch is on a path: the file there may disappear and return.

use std::fs;
use std::os::unix::fs::symlink;

use exec_server_host::fs::watch::{ChangeKind, WatchDepth};

use crate::scene::{WatchScene, is_watched, on_this_thread};

#[tokio::test]
async fn a_watched_file_survives_replacement_and_removal() {
    let scene = WatchScene::new();
    scene.write("file");
    scene.write("other");
    let file = scene.at("file");
    let mut told = scene.watch("file", WatchDepth::Single);
    assert_eq!(told.watch.path(), file);
    for _ in 0..3 {
        scene.write("file.tmp");
        fs::rename(scene.at("file.tmp"), &file).unwrap();
        told.until(ChangeKind::Created, &file).await;
        told.forget();
        scene.write("other");
        scene.write("file");
        told.until(ChangeKind::Modified, &file).await;
        told.forget();
        fs::remove_file(&file).unwrap();
        told.until(ChangeKind::Removed, &file).await;
        assert!(told.changes.iter().all(|change| change.path == file && change.from.is_none()));
        assert!(!told.rescan);
        told.forget();
    }
}

#[tokio::test]
async fn a_watched_file_whose_directory_is_removed_is_reported_removed() {
    let scene = WatchScene::new();
    scene.mkdir("d");
    scene.write("d/file");
    let mut told = scene.watch("d/file", WatchDepth::Single);
    fs::rename(scene.at("d"), scene.at("elsewhere")).unwrap();
    told.until(ChangeKind::Removed, &scene.at("d/file")).await;
    told.until_rescan().await;
}

#[tokio::test]
async fn a_symlink_is_watched_at_its_target() {
    let scene = WatchScene::new();
    scene.mkdir("real");
    std::os::unix::fs::symlink("real", scene.at("link")).unwrap();
    let mut told = scene.watch("link", WatchDepth::Single);
    assert_eq!(told.watch.path(), scene.at("real"));
    scene.write("real/file");
    told.until(ChangeKind::Created, &scene.at("real/file")).await;
}

#[tokio::test]
async fn moving_a_tree_affects_the_watches_inside() {
    let scene = WatchScene::new();
    scene.mkdir("d/e");
    scene.write("d/e/file");
    let mut tree = scene.watch("", WatchDepth::Tree);
    let mut file = scene.watch("d/e/file", WatchDepth::Single);
    let mut inner = scene.watch("d/e", WatchDepth::Single);
    fs::rename(scene.at("d"), scene.at("gone")).unwrap();
    file.until(ChangeKind::Removed, &scene.at("d/e/file")).await;
    inner.until(ChangeKind::Removed, &scene.at("d/e")).await;
    assert!(file.rescan && inner.rescan);
    tree.until(ChangeKind::Renamed, &scene.at("gone")).await;
    fs::rename(scene.at("gone"), scene.at("d")).unwrap();
    inner.forget();
    inner.until_rescan().await;
    scene.write("d/e/new");
    inner.until(ChangeKind::Created, &scene.at("d/e/new")).await;
}

#[tokio::test]
async fn a_removed_root_is_reported() {
    let scene = WatchScene::new();
    scene.mkdir("root");
    let mut told = scene.watch("root", WatchDepth::Tree);
    fs::remove_dir(scene.at("root")).unwrap();
    told.until(ChangeKind::Removed, &scene.at("root")).await;
    assert!(told.rescan);
}

/// The directories above may disappear too, and may return slowly.
#[tokio::test]
async fn a_file_is_watched_again_when_its_directory_returns() {
    let scene = WatchScene::new();
    scene.mkdir("d/e");
    scene.write("d/e/file");
    let file = scene.at("d/e/file");
    let mut told = scene.watch("d/e/file", WatchDepth::Single);
    for _ in 0..3 {
        fs::remove_dir_all(scene.at("d")).unwrap();
        told.until(ChangeKind::Removed, &file).await;
        // Waits until the nearest existing directory is watched for the return of the others.
        told.until_rescan().await;
        for directory in ["d", "d/e"] {
            scene.mkdir(directory);
        }
        told.forget();
        told.until_rescan().await;
        assert_eq!(told.changes, [], "it does not exist yet");
        scene.write("d/e/file");
        told.until(ChangeKind::Created, &file).await;
        told.forget();
        scene.write("d/e/file");
        told.until(ChangeKind::Modified, &file).await;
    }
}

#[tokio::test]
async fn a_file_that_returns_with_its_directory_is_found() {
    let scene = WatchScene::new();
    scene.mkdir("d");
    scene.write("d/file");
    let file = scene.at("d/file");
    let mut told = scene.watch("d/file", WatchDepth::Single);
    fs::rename(scene.at("d"), scene.at("elsewhere")).unwrap();
    told.until(ChangeKind::Removed, &file).await;
    assert!(!is_watched(&scene.at("elsewhere")), "it would be reported under the old name");
    fs::rename(scene.at("elsewhere"), scene.at("d")).unwrap();
    told.until(ChangeKind::Created, &file).await;
    told.forget();
    scene.write("d/file");
    told.until(ChangeKind::Modified, &file).await;
}

#[tokio::test]
async fn a_tree_that_returns_is_watched_again() {
    let scene = WatchScene::new();
    scene.mkdir("a/b/root/sub");
    let root = scene.at("a/b/root");
    let mut told = scene.watch("a/b/root", WatchDepth::Tree);
    for round in 0..3 {
        fs::remove_dir_all(scene.at("a")).unwrap();
        told.until(ChangeKind::Removed, &root).await;
        told.forget();
        scene.mkdir("a/b/root/sub");
        told.until(ChangeKind::Created, &root).await;
        assert!(told.rescan);
        let name = format!("a/b/root/sub/{round}");
        scene.write(&name);
        told.until(ChangeKind::Created, &scene.at(&name)).await;
        told.forget();
    }
}

#[tokio::test]
async fn a_symlink_in_the_place_of_a_removed_root_is_not_followed() {
    let scene = WatchScene::new();
    for path in ["d", "above/d"] {
        scene.mkdir(path);
        let (root, first) = (scene.at(path), scene.at(path.split('/').next().unwrap()));
        let mut told = scene.watch(path, WatchDepth::Tree);
        fs::rename(&root, scene.at("elsewhere")).unwrap();
        if first != root {
            fs::rename(scene.at("elsewhere"), first.join("e")).unwrap();
            fs::rename(&first, scene.at("elsewhere")).unwrap();
            fs::rename(scene.at("elsewhere/e"), scene.at("elsewhere/d")).unwrap();
        }
        symlink("elsewhere", &first).unwrap();
        told.until(ChangeKind::Removed, &root).await;
        assert!(!is_watched(&root), "the target of the link is watched");
        fs::remove_file(&first).unwrap();
        fs::rename(scene.at("elsewhere"), &first).unwrap();
        told.until(ChangeKind::Created, &root).await;
        scene.write(&format!("{path}/file"));
        told.until(ChangeKind::Created, &root.join("file")).await;
    }
}

/// The kernel has one watch per directory, whatever its names. Removing the old name must not end
/// the watch for the new name.
#[tokio::test]
async fn removing_the_old_name_keeps_the_new_name_watched() {
    let scene = WatchScene::new();
    scene.mkdir("0");
    let mut old = scene.watch("0", WatchDepth::Single);
    for round in 0..20 {
        let (from, to) = (round.to_string(), (round + 1).to_string());
        fs::rename(scene.at(&from), scene.at(&to)).unwrap();
        let mut new = scene.watch(&to, WatchDepth::Single);
        old.until(ChangeKind::Removed, &scene.at(&from)).await;
        scene.write(&format!("{to}/{from}"));
        new.until(ChangeKind::Created, &scene.at(&to).join(from)).await;
        old = new;
    }
}

#[tokio::test]
async fn parents_are_watched_only_while_a_root_is_awaited() {
    let scene = WatchScene::new();
    scene.mkdir("above/d");
    let root = scene.at("above/d");
    let mut told = scene.watch_by("above/d", WatchDepth::Tree, on_this_thread);
    assert!(!is_watched(&scene.at("above")));
    fs::remove_dir(&root).unwrap();
    told.until(ChangeKind::Removed, &root).await;
    assert!(is_watched(&scene.at("above")) && !is_watched(&scene.root));
    fs::remove_dir(scene.at("above")).unwrap();
    told.forget();
    told.until_rescan().await;
    assert!(is_watched(&scene.root));
    scene.mkdir("above/d");
    told.until(ChangeKind::Created, &root).await;
    assert!(is_watched(&root) && !is_watched(&scene.at("above")) && !is_watched(&scene.root));
    fs::remove_dir(&root).unwrap();
    told.until(ChangeKind::Removed, &root).await;
    drop(told);
    assert!(!is_watched(&scene.at("above")));
}

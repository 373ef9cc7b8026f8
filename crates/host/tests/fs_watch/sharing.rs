//! The watches of one watcher share a kernel queue, but do not affect each other.

use exec_server_host::fs::watch::{ChangeKind, WatchDepth};

use crate::scene::{TIMEOUT, Told, WatchScene, is_watched, on_a_thread, on_this_thread};

#[tokio::test]
async fn watching_a_path_twice_makes_two_watches() {
    let scene = WatchScene::new();
    let first = scene.watch("", WatchDepth::Single);
    let mut second = scene.watch("", WatchDepth::Single);
    scene.write("one");
    second.until(ChangeKind::Created, &scene.at("one")).await;
    let mut first = first;
    first.until(ChangeKind::Created, &scene.at("one")).await;
    drop(first);
    scene.write("two");
    second.until(ChangeKind::Created, &scene.at("two")).await;
}

#[tokio::test]
async fn a_single_watch_inside_a_tree_does_not_affect_the_tree() {
    let scene = WatchScene::new();
    scene.mkdir("d");
    let mut tree = scene.watch("", WatchDepth::Tree);
    let single = scene.watch_by("d", WatchDepth::Single, on_this_thread);
    scene.mkdir("d/new");
    tree.until(ChangeKind::Created, &scene.at("d/new")).await;
    scene.write("d/new/file");
    tree.until(ChangeKind::Created, &scene.at("d/new/file")).await;
    drop(single);
    scene.write("d/new/other");
    tree.until(ChangeKind::Created, &scene.at("d/new/other")).await;
}

#[tokio::test]
async fn ending_a_tree_watch_keeps_the_watches_below_it() {
    let scene = WatchScene::new();
    scene.mkdir("d/e");
    scene.write("d/file");
    let mut single = scene.watch("d", WatchDepth::Single);
    let mut inner = scene.watch("d/e", WatchDepth::Tree);
    let mut file = scene.watch("d/file", WatchDepth::Single);
    drop(scene.watch_by("", WatchDepth::Tree, on_this_thread));
    scene.write("d/new");
    single.until(ChangeKind::Created, &scene.at("d/new")).await;
    scene.write("d/file");
    file.until(ChangeKind::Modified, &scene.at("d/file")).await;
    scene.mkdir("d/e/deep");
    scene.write("d/e/deep/new");
    inner.until(ChangeKind::Created, &scene.at("d/e/deep/new")).await;
    assert!(!single.rescan && !inner.rescan && !file.rescan, "no events were lost");
}

#[tokio::test]
async fn watches_end_with_their_watcher() {
    let scene = WatchScene::new();
    let Told { mut watch, .. } = scene.watch("", WatchDepth::Tree);
    drop(scene);
    assert_eq!(tokio::time::timeout(TIMEOUT, watch.next()).await.unwrap(), None);
}

#[test]
fn a_watch_may_be_dropped_without_a_runtime() {
    let scene = WatchScene::new();
    let tree = scene.watch("", WatchDepth::Tree);
    drop(tree);
    let error =
        scene.watcher.watch(&scene.at("missing"), WatchDepth::Tree, on_a_thread).unwrap_err();
    assert!(error.is_not_found(), "{error}");
}

#[test]
fn kernel_watches_end_with_the_last_watch() {
    let scene = WatchScene::new();
    scene.mkdir("d/e/f");
    let watched = || ["", "d", "d/e", "d/e/f"].map(|path| is_watched(&scene.at(path)));
    let tree = scene.watch_by("", WatchDepth::Tree, on_this_thread);
    let inner = scene.watch_by("d/e", WatchDepth::Tree, on_this_thread);
    let single = scene.watch_by("d", WatchDepth::Single, on_this_thread);
    assert_eq!(watched(), [true, true, true, true]);
    drop(tree);
    assert_eq!(watched(), [false, true, true, true]);
    drop(inner);
    assert_eq!(watched(), [false, true, false, false]);
    drop(single);
    assert_eq!(watched(), [false, false, false, false]);
}

/// A job may wait for a thread longer than its watch exists.
#[tokio::test]
async fn a_late_job_watches_nothing() {
    let scene = WatchScene::new();
    let (sender, mut jobs) = tokio::sync::mpsc::channel(2);
    let threads = move |job| sender.try_send(job).unwrap_or_else(|_| panic!("too many jobs"));
    let mut told = scene.watch_by("", WatchDepth::Tree, threads);
    scene.mkdir("new");
    let look = tokio::select! {
        () = told.more() => panic!("a change was reported before the new directory was scanned"),
        look = jobs.recv() => look.unwrap(),
    };
    drop(told);
    jobs.recv().await.unwrap()();
    look();
    assert!(!is_watched(&scene.at("new")));
}

#[test]
fn a_closed_watcher_stops_scanning() {
    let scene = WatchScene::new();
    scene.mkdir("d");
    let _first = scene.watch_by("", WatchDepth::Single, on_this_thread);
    scene.watcher.close();
    let _late = scene.watch_by("", WatchDepth::Tree, on_this_thread);
    assert!(!is_watched(&scene.at("d")));
}

/// A watch whose jobs are dropped cannot know all changes.
#[tokio::test]
async fn a_dropped_job_causes_a_rescan() {
    let scene = WatchScene::new();
    let mut told = scene.watch_by("", WatchDepth::Tree, drop);
    scene.mkdir("new");
    told.until(ChangeKind::Created, &scene.at("new")).await;
    assert!(told.rescan);
}

//! The watches of one watcher share a queue of the kernel, and nothing else.

use exec_server_host::fs::watch::{ChangeKind, WatchDepth};

use crate::place::{PATIENCE, Place, Told, is_watched, on_a_thread, on_this_thread};

#[tokio::test]
async fn the_same_path_twice_is_two_watches() {
    let place = Place::new();
    let first = place.watch("", WatchDepth::Single);
    let mut second = place.watch("", WatchDepth::Single);
    place.write("one");
    second.until(ChangeKind::Created, &place.at("one")).await;
    let mut first = first;
    first.until(ChangeKind::Created, &place.at("one")).await;
    drop(first);
    place.write("two");
    second.until(ChangeKind::Created, &place.at("two")).await;
}

#[tokio::test]
async fn a_single_watch_inside_a_tree_leaves_the_tree_whole() {
    let place = Place::new();
    place.mkdir("d");
    let mut tree = place.watch("", WatchDepth::Tree);
    let single = place.watch_by("d", WatchDepth::Single, on_this_thread);
    place.mkdir("d/new");
    tree.until(ChangeKind::Created, &place.at("d/new")).await;
    place.write("d/new/file");
    tree.until(ChangeKind::Created, &place.at("d/new/file")).await;
    drop(single);
    place.write("d/new/other");
    tree.until(ChangeKind::Created, &place.at("d/new/other")).await;
}

#[tokio::test]
async fn the_end_of_a_tree_does_not_silence_what_is_below_it() {
    let place = Place::new();
    place.mkdir("d/e");
    place.write("d/file");
    let mut single = place.watch("d", WatchDepth::Single);
    let mut inner = place.watch("d/e", WatchDepth::Tree);
    let mut file = place.watch("d/file", WatchDepth::Single);
    drop(place.watch_by("", WatchDepth::Tree, on_this_thread));
    place.write("d/new");
    single.until(ChangeKind::Created, &place.at("d/new")).await;
    place.write("d/file");
    file.until(ChangeKind::Modified, &place.at("d/file")).await;
    place.mkdir("d/e/deep");
    place.write("d/e/deep/new");
    inner.until(ChangeKind::Created, &place.at("d/e/deep/new")).await;
    assert!(!single.rescan && !inner.rescan && !file.rescan, "nothing was lost");
}

#[tokio::test]
async fn watches_end_with_their_watcher() {
    let place = Place::new();
    let Told { mut watch, .. } = place.watch("", WatchDepth::Tree);
    drop(place);
    assert_eq!(tokio::time::timeout(PATIENCE, watch.next()).await.unwrap(), None);
}

#[test]
fn a_watch_may_be_dropped_without_a_runtime() {
    let place = Place::new();
    let tree = place.watch("", WatchDepth::Tree);
    drop(tree);
    let error =
        place.watcher.watch(&place.at("missing"), WatchDepth::Tree, on_a_thread).unwrap_err();
    assert!(error.is_not_found(), "{error}");
}

#[test]
fn what_nobody_wants_is_not_watched() {
    let place = Place::new();
    place.mkdir("d/e/f");
    let watched = || ["", "d", "d/e", "d/e/f"].map(|path| is_watched(&place.at(path)));
    let tree = place.watch_by("", WatchDepth::Tree, on_this_thread);
    let inner = place.watch_by("d/e", WatchDepth::Tree, on_this_thread);
    let single = place.watch_by("d", WatchDepth::Single, on_this_thread);
    assert_eq!(watched(), [true, true, true, true]);
    drop(tree);
    assert_eq!(watched(), [false, true, true, true]);
    drop(inner);
    assert_eq!(watched(), [false, true, false, false]);
    drop(single);
    assert_eq!(watched(), [false, false, false, false]);
}

/// A job may wait for a thread for longer than anybody wants it.
#[tokio::test]
async fn a_job_that_comes_too_late_watches_nothing() {
    let place = Place::new();
    let (sender, mut jobs) = tokio::sync::mpsc::channel(2);
    let threads = move |job| sender.try_send(job).unwrap_or_else(|_| panic!("too many jobs"));
    let mut told = place.watch_by("", WatchDepth::Tree, threads);
    place.mkdir("new");
    let look = tokio::select! {
        () = told.more() => panic!("it has not looked"),
        look = jobs.recv() => look.unwrap(),
    };
    drop(told);
    jobs.recv().await.unwrap()();
    look();
    assert!(!is_watched(&place.at("new")));
}

#[test]
fn a_watcher_that_is_closed_looks_no_further() {
    let place = Place::new();
    place.mkdir("d");
    let _first = place.watch_by("", WatchDepth::Single, on_this_thread);
    place.watcher.close();
    let _late = place.watch_by("", WatchDepth::Tree, on_this_thread);
    assert!(!is_watched(&place.at("d")));
}

/// Whose jobs are not done does not believe that he knows everything.
#[tokio::test]
async fn a_job_that_is_dropped_is_a_rescan() {
    let place = Place::new();
    let mut told = place.watch_by("", WatchDepth::Tree, drop);
    place.mkdir("new");
    told.until(ChangeKind::Created, &place.at("new")).await;
    assert!(told.rescan);
}

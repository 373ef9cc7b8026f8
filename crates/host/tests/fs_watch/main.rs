//! Watches on real directories. The tests wait only for events. To show that a change is not
//! reported, they wait for a later one that is.

#![expect(clippy::unwrap_used, reason = "a failed step fails its test")]

mod moves;
mod random;
mod roots;
mod scene;
mod sharing;
mod trees;

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::time::Duration;

use exec_server_host::fs::watch::{ChangeKind, WatchDepth};

use crate::scene::WatchScene;

#[tokio::test]
async fn create_modify_remove_and_rename_are_reported() {
    let scene = WatchScene::new();
    scene.write("old");
    let mut told = scene.watch("", WatchDepth::Single);
    assert_eq!(told.watch.path(), scene.root);

    scene.write("new");
    told.until(ChangeKind::Created, &scene.at("new")).await;
    scene.write("old");
    told.until(ChangeKind::Modified, &scene.at("old")).await;
    fs::rename(scene.at("old"), scene.at("renamed")).unwrap();
    told.until(ChangeKind::Renamed, &scene.at("renamed")).await;
    let renamed = told.changes.iter().find(|change| change.kind == ChangeKind::Renamed).unwrap();
    assert_eq!(renamed.from.as_deref(), Some(scene.at("old").as_path()));
    fs::remove_file(scene.at("new")).unwrap();
    told.until(ChangeKind::Removed, &scene.at("new")).await;
    assert!(!told.rescan);
    assert!(!told.has(ChangeKind::Removed, &scene.at("old")), "a rename is reported once");
}

#[tokio::test]
async fn reading_is_not_a_change() {
    let scene = WatchScene::new();
    scene.write("read");
    scene.mkdir("listed");
    let mut told = scene.watch("", WatchDepth::Tree);
    fs::read(scene.at("read")).unwrap();
    assert_eq!(fs::read_dir(scene.at("listed")).unwrap().count(), 0);
    scene.write("end");
    told.until(ChangeKind::Created, &scene.at("end")).await;
    assert!(!told.mentions(&scene.at("read")) && !told.mentions(&scene.at("listed")));
}

#[tokio::test]
async fn a_single_watch_does_not_cover_subdirectories() {
    let scene = WatchScene::new();
    scene.mkdir("deep");
    let mut told = scene.watch("", WatchDepth::Single);
    scene.write("deep/file");
    scene.write("end");
    told.until(ChangeKind::Created, &scene.at("end")).await;
    assert!(!told.mentions(&scene.at("deep/file")));
}

#[tokio::test]
async fn a_move_across_the_root_is_a_creation_or_removal() {
    let scene = WatchScene::new();
    scene.mkdir("in");
    scene.write("outside");
    scene.write("in/inside");
    let mut told = scene.watch("in", WatchDepth::Tree);
    fs::rename(scene.at("outside"), scene.at("in/came")).unwrap();
    fs::rename(scene.at("in/inside"), scene.at("went")).unwrap();
    told.until(ChangeKind::Created, &scene.at("in/came")).await;
    told.until(ChangeKind::Removed, &scene.at("in/inside")).await;
}

#[tokio::test]
async fn too_many_changes_cause_a_rescan() {
    let scene = WatchScene::in_memory();
    let mut told = scene.watch("", WatchDepth::Single);
    scene.make_more_than_is_told(|path| drop(fs::File::create(path).unwrap())).await;
    told.until_rescan().await;
    assert_eq!(told.changes, []);
    scene.write("after");
    told.until(ChangeKind::Created, &scene.at("after")).await;
}

#[tokio::test]
async fn a_name_that_is_not_utf8_is_reported_unchanged() {
    let scene = WatchScene::new();
    let odd = scene.root.join(OsStr::from_bytes(b"odd\xff\xfe"));
    let mut told = scene.watch("", WatchDepth::Tree);
    fs::create_dir(&odd).unwrap();
    fs::write(odd.join(OsStr::from_bytes(b"\x80")), "x").unwrap();
    told.until(ChangeKind::Created, &odd.join(OsStr::from_bytes(b"\x80"))).await;
}

#[tokio::test]
async fn a_cancelled_wait_loses_nothing() {
    let scene = WatchScene::new();
    let mut told = scene.watch("", WatchDepth::Tree);
    scene.mkdir("a/b");
    scene.write("a/b/file");
    for _ in 0..20 {
        let impatient = tokio::time::timeout(Duration::from_millis(5), told.watch.next());
        if let Ok(Some(batch)) = impatient.await {
            told.changes.extend(batch.changes);
        }
    }
    told.until(ChangeKind::Created, &scene.at("a/b/file")).await;
}

//! Watches on real directories. Every wait is for an event; what must not be told is shown by a later event that comes
//! without it.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a step that fails fails its test, and what was left out is said"
)]

#[path = "../support/as_nobody.rs"]
mod as_nobody;
mod place;
mod roots;
mod sharing;
mod trees;

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::time::Duration;

use exec_server_host::fs::watch::{ChangeKind, WatchDepth};

use crate::place::Place;

#[tokio::test]
async fn create_modify_remove_and_rename_are_told() {
    let place = Place::new();
    place.write("old");
    let mut told = place.watch("", WatchDepth::Single);
    assert_eq!(told.watch.path(), place.root);

    place.write("new");
    told.until(ChangeKind::Created, &place.at("new")).await;
    place.write("old");
    told.until(ChangeKind::Modified, &place.at("old")).await;
    fs::rename(place.at("old"), place.at("renamed")).unwrap();
    told.until(ChangeKind::Renamed, &place.at("renamed")).await;
    let renamed = told.changes.iter().find(|change| change.kind == ChangeKind::Renamed).unwrap();
    assert_eq!(renamed.from.as_deref(), Some(place.at("old").as_path()));
    fs::remove_file(place.at("new")).unwrap();
    told.until(ChangeKind::Removed, &place.at("new")).await;
    assert!(!told.rescan);
    assert!(!told.has(ChangeKind::Removed, &place.at("old")), "a rename is told once");
}

#[tokio::test]
async fn reading_is_no_change() {
    let place = Place::new();
    place.write("read");
    place.mkdir("listed");
    let mut told = place.watch("", WatchDepth::Tree);
    fs::read(place.at("read")).unwrap();
    assert_eq!(fs::read_dir(place.at("listed")).unwrap().count(), 0);
    place.write("end");
    told.until(ChangeKind::Created, &place.at("end")).await;
    assert!(!told.mentions(&place.at("read")) && !told.mentions(&place.at("listed")));
}

#[tokio::test]
async fn a_single_watch_does_not_look_deeper() {
    let place = Place::new();
    place.mkdir("deep");
    let mut told = place.watch("", WatchDepth::Single);
    place.write("deep/file");
    place.write("end");
    told.until(ChangeKind::Created, &place.at("end")).await;
    assert!(!told.mentions(&place.at("deep/file")));
}

#[tokio::test]
async fn what_comes_from_or_goes_outside_is_created_or_removed() {
    let place = Place::new();
    place.mkdir("in");
    place.write("outside");
    place.write("in/inside");
    let mut told = place.watch("in", WatchDepth::Tree);
    fs::rename(place.at("outside"), place.at("in/came")).unwrap();
    fs::rename(place.at("in/inside"), place.at("went")).unwrap();
    told.until(ChangeKind::Created, &place.at("in/came")).await;
    told.until(ChangeKind::Removed, &place.at("in/inside")).await;
}

#[tokio::test]
async fn too_many_changes_become_a_rescan() {
    let place = Place::in_memory();
    let mut told = place.watch("", WatchDepth::Single);
    place.make_more_than_is_told(|path| drop(fs::File::create(path).unwrap())).await;
    told.until_rescan().await;
    assert_eq!(told.changes, []);
    place.write("after");
    told.until(ChangeKind::Created, &place.at("after")).await;
}

#[tokio::test]
async fn a_name_that_is_not_utf8_is_told_as_it_is() {
    let place = Place::new();
    let odd = place.root.join(OsStr::from_bytes(b"odd\xff\xfe"));
    let mut told = place.watch("", WatchDepth::Tree);
    fs::create_dir(&odd).unwrap();
    fs::write(odd.join(OsStr::from_bytes(b"\x80")), "x").unwrap();
    told.until(ChangeKind::Created, &odd.join(OsStr::from_bytes(b"\x80"))).await;
}

#[tokio::test]
async fn a_cancelled_wait_loses_nothing() {
    let place = Place::new();
    let mut told = place.watch("", WatchDepth::Tree);
    place.mkdir("a/b");
    place.write("a/b/file");
    for _ in 0..20 {
        let impatient = tokio::time::timeout(Duration::from_millis(5), told.watch.next());
        if let Ok(Some(batch)) = impatient.await {
            told.changes.extend(batch.changes);
        }
    }
    told.until(ChangeKind::Created, &place.at("a/b/file")).await;
}

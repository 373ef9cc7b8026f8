//! A watch is for a path: what is there may go, and come back.

use std::fs;
use std::os::unix::fs::symlink;

use exec_server_host::fs::watch::{ChangeKind, WatchDepth};

use crate::place::{Place, is_watched, on_this_thread};

#[tokio::test]
async fn a_watched_file_survives_replacement_and_removal() {
    let place = Place::new();
    place.write("file");
    place.write("other");
    let file = place.at("file");
    let mut told = place.watch("file", WatchDepth::Single);
    assert_eq!(told.watch.path(), file);
    for _ in 0..3 {
        place.write("file.tmp");
        fs::rename(place.at("file.tmp"), &file).unwrap();
        told.until(ChangeKind::Created, &file).await;
        told.forget();
        place.write("other");
        place.write("file");
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
async fn a_watched_file_whose_directory_goes_is_removed() {
    let place = Place::new();
    place.mkdir("d");
    place.write("d/file");
    let mut told = place.watch("d/file", WatchDepth::Single);
    fs::rename(place.at("d"), place.at("elsewhere")).unwrap();
    told.until(ChangeKind::Removed, &place.at("d/file")).await;
    told.until_rescan().await;
}

#[tokio::test]
async fn a_link_is_watched_where_it_leads() {
    let place = Place::new();
    place.mkdir("real");
    std::os::unix::fs::symlink("real", place.at("link")).unwrap();
    let mut told = place.watch("link", WatchDepth::Single);
    assert_eq!(told.watch.path(), place.at("real"));
    place.write("real/file");
    told.until(ChangeKind::Created, &place.at("real/file")).await;
}

#[tokio::test]
async fn a_tree_that_moves_takes_the_watches_inside_with_it() {
    let place = Place::new();
    place.mkdir("d/e");
    place.write("d/e/file");
    let mut tree = place.watch("", WatchDepth::Tree);
    let mut file = place.watch("d/e/file", WatchDepth::Single);
    let mut inner = place.watch("d/e", WatchDepth::Single);
    fs::rename(place.at("d"), place.at("gone")).unwrap();
    file.until(ChangeKind::Removed, &place.at("d/e/file")).await;
    inner.until(ChangeKind::Removed, &place.at("d/e")).await;
    assert!(file.rescan && inner.rescan);
    tree.until(ChangeKind::Renamed, &place.at("gone")).await;
    fs::rename(place.at("gone"), place.at("d")).unwrap();
    inner.forget();
    inner.until_rescan().await;
    place.write("d/e/new");
    inner.until(ChangeKind::Created, &place.at("d/e/new")).await;
}

#[tokio::test]
async fn a_root_that_is_removed_says_so() {
    let place = Place::new();
    place.mkdir("root");
    let mut told = place.watch("root", WatchDepth::Tree);
    fs::remove_dir(place.at("root")).unwrap();
    told.until(ChangeKind::Removed, &place.at("root")).await;
    assert!(told.rescan);
}

/// Also when the directories above go along, and however slowly they come back.
#[tokio::test]
async fn a_file_whose_directory_comes_back_is_watched_again() {
    let place = Place::new();
    place.mkdir("d/e");
    place.write("d/e/file");
    let file = place.at("d/e/file");
    let mut told = place.watch("d/e/file", WatchDepth::Single);
    for _ in 0..3 {
        fs::remove_dir_all(place.at("d")).unwrap();
        told.until(ChangeKind::Removed, &file).await;
        // Until it is waited for where there is something.
        told.until_rescan().await;
        for directory in ["d", "d/e"] {
            place.mkdir(directory);
        }
        told.forget();
        told.until_rescan().await;
        assert_eq!(told.changes, [], "it is not there yet");
        place.write("d/e/file");
        told.until(ChangeKind::Created, &file).await;
        told.forget();
        place.write("d/e/file");
        told.until(ChangeKind::Modified, &file).await;
    }
}

#[tokio::test]
async fn a_file_that_comes_back_with_its_directory_is_found() {
    let place = Place::new();
    place.mkdir("d");
    place.write("d/file");
    let file = place.at("d/file");
    let mut told = place.watch("d/file", WatchDepth::Single);
    fs::rename(place.at("d"), place.at("elsewhere")).unwrap();
    told.until(ChangeKind::Removed, &file).await;
    assert!(!is_watched(&place.at("elsewhere")), "it would be told under the old name");
    fs::rename(place.at("elsewhere"), place.at("d")).unwrap();
    told.until(ChangeKind::Created, &file).await;
    told.forget();
    place.write("d/file");
    told.until(ChangeKind::Modified, &file).await;
}

#[tokio::test]
async fn a_tree_that_comes_back_is_watched_again() {
    let place = Place::new();
    place.mkdir("a/b/root/sub");
    let root = place.at("a/b/root");
    let mut told = place.watch("a/b/root", WatchDepth::Tree);
    for round in 0..3 {
        fs::remove_dir_all(place.at("a")).unwrap();
        told.until(ChangeKind::Removed, &root).await;
        told.forget();
        place.mkdir("a/b/root/sub");
        told.until(ChangeKind::Created, &root).await;
        assert!(told.rescan);
        let name = format!("a/b/root/sub/{round}");
        place.write(&name);
        told.until(ChangeKind::Created, &place.at(&name)).await;
        told.forget();
    }
}

#[tokio::test]
async fn a_link_in_the_place_of_what_is_gone_is_not_followed() {
    let place = Place::new();
    for path in ["d", "above/d"] {
        place.mkdir(path);
        let (root, first) = (place.at(path), place.at(path.split('/').next().unwrap()));
        let mut told = place.watch(path, WatchDepth::Tree);
        fs::rename(&root, place.at("elsewhere")).unwrap();
        if first != root {
            fs::rename(place.at("elsewhere"), first.join("e")).unwrap();
            fs::rename(&first, place.at("elsewhere")).unwrap();
            fs::rename(place.at("elsewhere/e"), place.at("elsewhere/d")).unwrap();
        }
        symlink("elsewhere", &first).unwrap();
        told.until(ChangeKind::Removed, &root).await;
        assert!(!is_watched(&root), "that is where the link leads");
        fs::remove_file(&first).unwrap();
        fs::rename(place.at("elsewhere"), &first).unwrap();
        told.until(ChangeKind::Created, &root).await;
        place.write(&format!("{path}/file"));
        told.until(ChangeKind::Created, &root.join("file")).await;
    }
}

/// The kernel has one watch for each directory, whatever its names. The end of the old name is not that of the new.
#[tokio::test]
async fn a_directory_is_watched_by_its_new_name_while_the_old_one_is_given_up() {
    let place = Place::new();
    place.mkdir("0");
    let mut old = place.watch("0", WatchDepth::Single);
    for round in 0..20 {
        let (from, to) = (round.to_string(), (round + 1).to_string());
        fs::rename(place.at(&from), place.at(&to)).unwrap();
        let mut new = place.watch(&to, WatchDepth::Single);
        old.until(ChangeKind::Removed, &place.at(&from)).await;
        place.write(&format!("{to}/{from}"));
        new.until(ChangeKind::Created, &place.at(&to).join(from)).await;
        old = new;
    }
}

#[tokio::test]
async fn where_something_is_waited_for_is_watched_only_as_long() {
    let place = Place::new();
    place.mkdir("above/d");
    let root = place.at("above/d");
    let mut told = place.watch_by("above/d", WatchDepth::Tree, on_this_thread);
    assert!(!is_watched(&place.at("above")));
    fs::remove_dir(&root).unwrap();
    told.until(ChangeKind::Removed, &root).await;
    assert!(is_watched(&place.at("above")) && !is_watched(&place.root));
    fs::remove_dir(place.at("above")).unwrap();
    told.forget();
    told.until_rescan().await;
    assert!(is_watched(&place.root));
    place.mkdir("above/d");
    told.until(ChangeKind::Created, &root).await;
    assert!(is_watched(&root) && !is_watched(&place.at("above")) && !is_watched(&place.root));
    fs::remove_dir(&root).unwrap();
    told.until(ChangeKind::Removed, &root).await;
    drop(told);
    assert!(!is_watched(&place.at("above")));
}

//! Watches on real directories. Every wait is for an event; what must not be told is shown by a later event that comes
//! without it.

#![expect(clippy::unwrap_used, reason = "a step that fails fails its test")]

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use exec_server_host::fs::watch::{Change, ChangeKind, Watch, WatchDepth, Watcher};
use tempfile::TempDir;

/// Long enough that only a lost event reaches it.
const PATIENCE: Duration = Duration::from_secs(20);

struct Place {
    _keep: TempDir,
    root: PathBuf,
    watcher: Watcher,
}

impl Place {
    fn new() -> Self {
        let keep = tempfile::tempdir().unwrap();
        let root = keep.path().canonicalize().unwrap();
        Self { _keep: keep, root, watcher: Watcher::new().unwrap() }
    }

    fn at(&self, path: &str) -> PathBuf {
        self.root.join(path)
    }

    fn write(&self, path: &str) {
        fs::write(self.at(path), path).unwrap();
    }

    fn mkdir(&self, path: &str) {
        fs::create_dir_all(self.at(path)).unwrap();
    }

    fn watch(&self, path: &str, depth: WatchDepth) -> Told {
        Told::by(self.watcher.watch(&self.at(path), depth).unwrap())
    }
}

/// A watch and everything it has told so far.
struct Told {
    watch: Watch,
    changes: Vec<Change>,
    rescan: bool,
}

impl Told {
    fn by(watch: Watch) -> Self {
        Self { watch, changes: Vec::new(), rescan: false }
    }

    async fn more(&mut self) {
        let next = tokio::time::timeout(PATIENCE, self.watch.next()).await;
        let batch = next.unwrap_or_else(|_| panic!("nothing more after {:?}", self.changes));
        let batch = batch.expect("the watcher lives");
        assert!(batch.rescan || !batch.changes.is_empty(), "a batch says something");
        self.changes.extend(batch.changes);
        self.rescan |= batch.rescan;
    }

    async fn until(&mut self, kind: ChangeKind, path: &Path) {
        while !self.has(kind, path) {
            self.more().await;
        }
    }

    async fn until_rescan(&mut self) {
        while !self.rescan {
            self.more().await;
        }
    }

    fn has(&self, kind: ChangeKind, path: &Path) -> bool {
        self.changes.iter().any(|change| change.kind == kind && change.path == path)
    }

    fn mentions(&self, path: &Path) -> bool {
        self.changes
            .iter()
            .any(|change| change.path == path || change.from.as_deref() == Some(path))
    }

    fn forget(&mut self) {
        self.changes.clear();
        self.rescan = false;
    }
}

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

/// `notify` alone would end the recursion at the directory that is watched singly.
#[tokio::test]
async fn a_single_watch_inside_a_tree_leaves_the_tree_whole() {
    let place = Place::new();
    place.mkdir("d");
    let mut tree = place.watch("", WatchDepth::Tree);
    let single = place.watch("d", WatchDepth::Single);
    place.mkdir("d/new");
    tree.until(ChangeKind::Created, &place.at("d/new")).await;
    place.write("d/new/file");
    tree.until(ChangeKind::Created, &place.at("d/new/file")).await;
    // Without a runtime around it, dropping waits until the kernel knows.
    std::thread::spawn(move || drop(single)).join().unwrap();
    place.write("d/new/other");
    tree.until(ChangeKind::Created, &place.at("d/new/other")).await;
}

/// `notify` alone would remove everything below the tree's root.
#[tokio::test]
async fn the_end_of_a_tree_does_not_silence_what_is_below_it() {
    let place = Place::new();
    place.mkdir("d/e");
    place.write("d/file");
    let mut single = place.watch("d", WatchDepth::Single);
    let mut inner = place.watch("d/e", WatchDepth::Tree);
    let mut file = place.watch("d/file", WatchDepth::Single);
    let tree = place.watch("", WatchDepth::Tree);
    drop(tree);
    single.until_rescan().await;
    inner.until_rescan().await;
    file.until_rescan().await;
    place.write("d/new");
    single.until(ChangeKind::Created, &place.at("d/new")).await;
    place.write("d/file");
    file.until(ChangeKind::Modified, &place.at("d/file")).await;
    place.mkdir("d/e/deep");
    place.write("d/e/deep/new");
    inner.until(ChangeKind::Created, &place.at("d/e/deep/new")).await;
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

#[tokio::test]
async fn too_many_changes_become_a_rescan() {
    let place = Place::new();
    let mut told = place.watch("", WatchDepth::Single);
    for index in 0..5000 {
        fs::File::create(place.at(&index.to_string())).unwrap();
    }
    told.until_rescan().await;
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
    let error = place.watcher.watch(&place.at("missing"), WatchDepth::Tree).unwrap_err();
    assert!(error.is_not_found(), "{error}");
}

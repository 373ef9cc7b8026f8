//! Listings, searches and watches leave out paths that the policy denies.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use exec_server_host::fs::glob::glob;
use exec_server_host::fs::search::{Search, SearchOptions};
use exec_server_host::fs::watch::{ChangeKind, Job, WatchDepth, Watcher};
use exec_server_host::fs::{
    CancelFlag, Entry, EntryTypes, FileKind, FsError, Replace, Symlinks, read_directory,
    read_directory_page, rename, walk,
};
use exec_server_host::sandbox::Access;

use crate::operations::{WALK, everything};
use crate::scene::{Scene, User, on_confined_thread, policy};

fn names(path: &Path, types: EntryTypes) -> Vec<String> {
    let entries = read_directory(path, types, 100).unwrap();
    assert_eq!(in_pages(path, types), entries);
    entries.into_iter().map(|entry| entry.name.to_string_lossy().into_owned()).collect()
}

fn in_pages(path: &Path, types: EntryTypes) -> Vec<Entry> {
    let (mut entries, mut after) = (Vec::new(), None);
    loop {
        let limit = 2.try_into().unwrap();
        let page = read_directory_page(path, types, after.as_deref(), limit).unwrap();
        entries.extend(page.entries);
        after = page.last;
        if after.is_none() {
            return entries;
        }
    }
}

#[test]
fn listings_leave_out_denied_entries() {
    let scene = Scene::new();
    std::fs::write(scene.at("work/key.pem"), "secret").unwrap();
    let work = scene.at("work");
    scene.confined(&scene.policy(), User::Own, || {
        let own = names(&work, EntryTypes::Own);
        let expected = [
            ".git",
            "h\u{fffd}rd",
            "in",
            "movable",
            "out",
            "out_file",
            "out_nothing",
            "plain",
            "sub",
        ];
        assert_eq!(own, expected);
        // A link to a denied path looks like a broken link.
        let followed = names(&work, EntryTypes::Followed);
        assert_eq!(followed, [".git", "h\u{fffd}rd", "in", "movable", "plain", "sub"]);
        let entries = read_directory(&work, EntryTypes::Followed, 100).unwrap();
        let link = entries.iter().find(|entry| entry.name == "in").unwrap();
        assert_eq!((link.kind, link.is_symlink), (FileKind::Directory, true));
        assert_eq!(names(&work.join("plain"), EntryTypes::Own), ["file", "link", "sub"]);
    });
}

fn found(scene: &Scene, paths: impl Iterator<Item = PathBuf>) -> Vec<String> {
    let relative =
        |path: PathBuf| path.strip_prefix(scene.at("")).unwrap().to_string_lossy().into_owned();
    paths.map(relative).collect()
}

fn expect_nothing_secret(what: &str, paths: &[String]) {
    // A directory with two names is entered once, under either name.
    let is_plain = |path: &String| path == "work/plain/file" || path == "work/in/file";
    assert!(paths.iter().any(is_plain), "{what}: {paths:?}");
    assert!(paths.iter().any(|path| path == "work/.git/file"), "{what}: {paths:?}");
    for path in paths {
        let is_secret = path.contains("secret") || path.contains(".pem");
        let is_outside = !path.starts_with("work/") || path.starts_with("work/out/");
        assert!(!is_secret && !is_outside, "{what}: {path}");
    }
}

#[test]
fn walks_leave_out_denied_entries() {
    let scene = Scene::new();
    let work = scene.at("work");
    scene.confined(&scene.policy(), User::Own, || {
        for follow_directory_symlinks in [false, true] {
            let mut options = WALK;
            options.follow_directory_symlinks = follow_directory_symlinks;
            let tree = walk(&work, &options, &CancelFlag::never()).unwrap();
            assert_eq!(tree.errors, []);
            expect_nothing_secret("walk", &found(&scene, tree.entries.into_iter().map(|e| e.path)));
        }
        let tree = glob(&work, &everything(), &CancelFlag::never()).unwrap();
        assert_eq!(tree.errors, []);
        expect_nothing_secret("glob", &found(&scene, tree.entries.into_iter().map(|e| e.path)));
    });
}

#[test]
fn a_search_reads_no_denied_file() {
    let scene = Scene::new();
    let work = scene.at("work");
    let paths = scene.confined(&scene.policy(), User::Own, || {
        let options = SearchOptions {
            pattern: ".".to_owned(),
            hidden: true,
            ignored: true,
            max_matches: 1_000,
            ..SearchOptions::default()
        };
        let mut paths = Vec::new();
        let summary =
            Search::new(&options).unwrap().run(&work, &AtomicBool::new(false), &mut |found| {
                assert_eq!(found.text, "inside");
                paths.push(found.path);
                ControlFlow::Continue(())
            });
        assert_eq!(summary.unwrap().unreadable, 0);
        paths
    });
    expect_nothing_secret("search", &found(&scene, paths.into_iter()));
}

#[test]
fn a_search_does_not_use_ignore_files_outside() {
    let scene = Scene::new();
    std::fs::create_dir(scene.at(".git")).unwrap();
    std::fs::write(scene.at(".gitignore"), "file\n").unwrap();
    let sub = scene.at("work/plain");
    let matches = || matches_in(&sub);
    std::fs::remove_file(scene.at("work/plain/deep.pem")).unwrap();
    std::fs::remove_dir_all(scene.at("work/.git")).unwrap();
    assert_eq!(matches(), 1, "an unconfined search ignores the file");
    assert_eq!(scene.confined(&scene.policy(), User::Own, matches), 2);
    // Like an ignore file outside the policy, a denied one has no effect.
    std::fs::create_dir(scene.at("work/.git")).unwrap();
    std::fs::write(scene.at("work/.gitignore"), "file\n").unwrap();
    let work = [(scene.at("work"), Access::Write)];
    let denied = policy(&scene.at("work"), &work, &["**/.gitignore"]);
    assert_eq!(scene.confined(&scene.policy(), User::Own, matches), 1);
    assert_eq!(scene.confined(&denied, User::Own, matches), 2);
}

/// Counts the lines in all files that are not ignored.
fn matches_in(root: &Path) -> u64 {
    let options =
        SearchOptions { pattern: ".".to_owned(), max_matches: 1_000, ..SearchOptions::default() };
    let search = Search::new(&options).unwrap();
    let go_on = &mut |_| ControlFlow::Continue(());
    search.run(root, &AtomicBool::new(false), go_on).unwrap().matches
}

#[test]
fn a_watch_does_not_report_denied_paths() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let scene = Scene::new();
    let watcher = Watcher::new().unwrap();
    let (work, outside) = (scene.at("work"), scene.at("outside"));
    let policy = scene.policy();
    let jobs_policy = policy.clone();
    let threads = move |job: Job| {
        let policy = jobs_policy.clone();
        drop(std::thread::spawn(move || on_confined_thread(&policy, User::Own, job)));
    };
    let watch = |path| watcher.watch(path, WatchDepth::Tree, threads.clone());
    let mut watched = scene.confined(&policy, User::Own, || watch(&work).unwrap());
    let refused = scene.confined(&policy, User::Own, || watch(&outside));
    assert!(matches!(refused, Err(FsError::Denied { .. })));
    for denied in ["work/secret/file", "work/key.pem", "outside/file"] {
        std::fs::write(scene.at(denied), "changed").unwrap();
    }
    std::fs::rename(scene.at("work/movable"), scene.at("work/secret/movable")).unwrap();
    std::fs::rename(scene.at("work/secret/sub"), scene.at("work/revealed")).unwrap();
    std::fs::create_dir(scene.at("work/new")).unwrap();
    std::fs::write(scene.at("work/new/key.pem"), "secret").unwrap();
    std::fs::write(scene.at("work/last"), "").unwrap();
    let mut told = Vec::new();
    runtime.block_on(async {
        while !told.iter().any(|(path, _)| *path == scene.at("work/last")) {
            let next = tokio::time::timeout(Duration::from_secs(20), watched.next());
            let changes = next.await.unwrap().unwrap();
            told.extend(changes.changes.into_iter().map(|change| {
                assert_eq!(change.from, None, "{change:?}");
                (change.path, change.kind)
            }));
        }
    });
    for (path, _) in &told {
        let path = path.to_str().unwrap();
        assert!(!path.contains("secret") && !path.ends_with(".pem"), "{told:?}");
    }
    // A file moved to a denied place counts as removed, and one moved from there as created.
    for change in [("work/movable", ChangeKind::Removed), ("work/revealed", ChangeKind::Created)] {
        assert!(told.contains(&(scene.at(change.0), change.1)), "{told:?}");
    }
}

#[test]
fn a_directory_above_a_grant_can_be_passed_but_not_listed() {
    let scene = Scene::new();
    let granted = policy(&scene.at("work"), &[(scene.at("outside/sub"), Access::Read)], &[]);
    let (above, sub) = (scene.at("outside"), scene.at("outside/sub"));
    scene.confined(&granted, User::Own, || {
        assert_eq!(names(&sub, EntryTypes::Own), ["inner"]);
        assert_eq!(names(&above.join("sub/../sub"), EntryTypes::Own), ["inner"]);
        let listed = read_directory(&above, EntryTypes::Own, 100);
        assert!(matches!(listed, Err(FsError::Denied { .. })), "{listed:?}");
        let (from, to) = (sub.join("inner"), above.join("inner"));
        let moved = rename(&from, &to, Replace::No, Symlinks::Follow);
        assert!(matches!(moved, Err(FsError::Denied { .. })), "{moved:?}");
    });
}

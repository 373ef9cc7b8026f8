//! Watches and searches.

use std::ops::ControlFlow;

use exec_server::protocol::{ChangeKind, FileChange, FsSearchParams, FsWatchParams};
use exec_server::{ExecutorFileSystem as _, WatchEvents};

use super::*;

in_every_environment! {
    whole:
    changes_below_a_directory_are_reported,
    a_watched_file_may_be_replaced,
    a_watch_that_cannot_start_is_an_error,
    lines_are_found_with_their_context,
    a_search_that_cannot_start_is_an_error,
    a_dropped_search_is_cancelled,
}

fn watching(path: PathUri, recursive: bool) -> FsWatchParams {
    FsWatchParams { path, watch_id: "ignored".into(), recursive, sandbox: None }
}

async fn until(watch: &mut WatchEvents, mut wanted: impl FnMut(&FileChange) -> bool) {
    loop {
        let told = watch.next().await.unwrap().unwrap();
        assert!(!told.rescan);
        let seen = told.changes.iter().try_for_each(|change| match wanted(change) {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        });
        if seen.is_break() {
            return;
        }
    }
}

async fn changes_below_a_directory_are_reported(environment: Environment) {
    let place = Place::new();
    std::fs::create_dir(place.path("deep")).unwrap();
    let mut watch = environment.watch(watching(place.uri(""), true)).await.unwrap();
    let root = std::fs::canonicalize(place.path("")).unwrap();
    assert_eq!(watch.path().as_path(), root);
    let is = |kind: ChangeKind, name: &str| {
        let path = PathUri::from_path(root.join(name)).unwrap();
        move |change: &FileChange| change.path == path && change.kind == kind
    };
    place.write("deep/new", "1");
    until(&mut watch, is(ChangeKind::Created, "deep/new")).await;
    place.write("deep/new", "22");
    until(&mut watch, is(ChangeKind::Modified, "deep/new")).await;
    std::fs::rename(place.path("deep/new"), place.path("moved")).unwrap();
    let from = PathUri::from_path(root.join("deep/new"));
    let renamed = is(ChangeKind::Renamed, "moved");
    until(&mut watch, |change| renamed(change) && change.from == from).await;
    std::fs::remove_file(place.path("moved")).unwrap();
    until(&mut watch, is(ChangeKind::Removed, "moved")).await;
}

async fn a_watched_file_may_be_replaced(environment: Environment) {
    let place = Place::new();
    place.write("file", "1");
    let mut watch = environment.watch(watching(place.uri("file"), false)).await.unwrap();
    let path = watch.path().clone();
    for content in ["2", "3"] {
        place.write("next", content);
        std::fs::rename(place.path("next"), place.path("file")).unwrap();
        until(&mut watch, |change| change.path == path).await;
    }
}

async fn a_watch_that_cannot_start_is_an_error(environment: Environment) {
    let place = Place::new();
    let missing = environment.watch(watching(place.uri("missing"), false)).await.unwrap_err();
    assert!(missing.to_string().contains("missing"), "{missing}");
}

async fn lines_are_found_with_their_context(environment: Environment) {
    let place = Place::new();
    place.write("a.txt", "one\ntwo needle\nthree\n");
    place.write("b.txt", "nothing\n");
    place.write("c.log", "needle\n");
    let params = FsSearchParams {
        globs: vec!["*.txt".into()],
        before: 1,
        after: 1,
        ..FsSearchParams::new(place.uri(""), "ne+dle")
    };
    let mut search = environment.search(params).await.unwrap();
    let mut found = Vec::new();
    while let Some(results) = search.next().await {
        assert_eq!(search.summary(), None);
        found.extend(results.unwrap());
    }
    assert_eq!(found.len(), 1);
    let line = &found[0];
    assert!(line.path.as_path().ends_with("a.txt"));
    assert_eq!((line.line_number, line.text.as_str()), (2, "two needle"));
    assert_eq!((line.submatches[0].start, line.submatches[0].end), (4, 10));
    assert_eq!((line.before[0].text.as_str(), line.after[0].text.as_str()), ("one", "three"));
    let summary = search.summary().unwrap();
    assert_eq!((summary.matches, summary.truncated, summary.cancelled), (1, false, false));
    assert!(search.next().await.is_none());

    let none = FsSearchParams::new(place.uri(""), "not there");
    let mut search = environment.search(none).await.unwrap();
    assert!(search.next().await.is_none());
    assert_eq!(search.summary().unwrap().matches, 0);
}

async fn a_search_that_cannot_start_is_an_error(environment: Environment) {
    let place = Place::new();
    let error = environment.search(FsSearchParams::new(place.uri(""), "(")).await.unwrap_err();
    assert!(error.to_string().contains("invalid pattern \"(\""), "{error}");
    let nowhere = FsSearchParams::new(place.uri("nowhere"), "x");
    let error = environment.search(nowhere).await.unwrap_err();
    assert!(error.to_string().contains("nowhere"), "{error}");
}

async fn a_dropped_search_is_cancelled(environment: Environment) {
    let place = Place::new();
    place.write("many", "needle and more\n".repeat(200_000));
    let params = FsSearchParams {
        max_matches: Some(100_000),
        ..FsSearchParams::new(place.uri(""), "needle")
    };
    for _ in 0..3 {
        let mut search = environment.search(params.clone()).await.unwrap();
        assert!(!search.next().await.unwrap().unwrap().is_empty());
    }
    // Few searches may run at once; the dropped ones no longer count.
    let mut search = environment.search(params).await.unwrap();
    let mut found = 0;
    while let Some(results) = search.next().await {
        found += results.unwrap().len() as u64;
    }
    let summary = search.summary().unwrap();
    assert_eq!((found, summary.truncated), (summary.matches, true));
}

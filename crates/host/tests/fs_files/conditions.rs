//! Compare and swap: no writer overwrites content that it has not seen.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};

use exec_server_host::fs::{Condition, FsError, Symlinks, WriteOptions, metadata, write_file};
use exec_server_test_support::Scratch;

use crate::scene::{ATOMIC, BOTH, PLAIN, mode};

#[test]
fn every_conditional_write_has_a_later_time() {
    let scene = Scratch::new();
    for (index, options) in BOTH.into_iter().enumerate() {
        let path = scene.path(index.to_string());
        let mut last = write_file(&path, b"0", &options).unwrap();
        for _ in 0..100 {
            let condition = Condition {
                modified_at_ms: Some(last.modified_at_ms),
                size: Some(last.size),
                create_new: false,
            };
            let next = write_file(&path, b"1", &WriteOptions { condition, ..options }).unwrap();
            assert!(next.modified_at_ms > last.modified_at_ms, "{next:?} after {last:?}");
            let stale = write_file(&path, b"2", &WriteOptions { condition, ..options });
            assert!(matches!(stale, Err(FsError::Conflict { .. })), "{stale:?}");
            last = next;
        }
        assert_eq!(std::fs::read(&path).unwrap(), b"1");
    }
    assert_eq!(scene.names(), ["0", "1"]);
}

/// Tries to increment the number in a file. Returns false if another writer was faster.
fn count_up(path: &Path, options: WriteOptions) -> bool {
    let before = metadata(path, Symlinks::Refuse).unwrap();
    // The content may be half written; then the condition fails.
    let content = std::fs::read_to_string(path).unwrap();
    let next = content.parse::<u64>().unwrap_or(0) + 1;
    let condition = Condition {
        modified_at_ms: Some(before.modified_at_ms),
        size: Some(before.size),
        create_new: false,
    };
    let options = WriteOptions { condition, ..options };
    match write_file(path, format!("{next:08}").as_bytes(), &options) {
        Ok(_) => true,
        Err(FsError::Conflict { .. }) => false,
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn no_conditional_write_is_lost() {
    const WRITERS: u64 = 20;
    let scene = Scratch::new();
    for (index, (options, each)) in [(PLAIN, 25), (ATOMIC, 3)].into_iter().enumerate() {
        let path = scene.file_with_mode(index.to_string(), "00000000", 0o644);
        std::thread::scope(|threads| {
            for _ in 0..WRITERS {
                threads.spawn(|| {
                    let mut counted = 0;
                    while counted < each {
                        counted += u64::from(count_up(&path, options));
                    }
                });
            }
        });
        let count: u64 = std::fs::read_to_string(&path).unwrap().parse().unwrap();
        assert_eq!(count, WRITERS * each, "atomic: {}", options.atomic);
    }
    assert_eq!(scene.names(), ["0", "1"]);
}

#[test]
fn exactly_one_of_many_writers_creates_a_file() {
    let scene = Scratch::new();
    let condition = Condition { create_new: true, ..Condition::default() };
    for round in 0..20 {
        let path = scene.path(round.to_string());
        let winners = AtomicUsize::new(0);
        let start = Barrier::new(8);
        std::thread::scope(|threads| {
            for writer in 0..8 {
                let (path, winners, start) = (&path, &winners, &start);
                threads.spawn(move || {
                    let options = WriteOptions {
                        atomic: writer % 2 == 0,
                        condition,
                        ..WriteOptions::default()
                    };
                    let content = [b'0' + writer; 5000];
                    start.wait();
                    match write_file(path, &content, &options) {
                        Ok(_) => {
                            winners.fetch_add(1, Ordering::SeqCst);
                            assert_eq!(std::fs::read(path).unwrap(), content);
                        }
                        Err(FsError::Conflict { is, .. }) => assert_eq!(is, "already exists"),
                        Err(other) => panic!("{other}"),
                    }
                });
            }
        });
        assert_eq!(winners.into_inner(), 1);
    }
    assert_eq!(scene.names().len(), 20);
}

#[test]
fn create_new_conflicts_with_any_file() {
    let scene = Scratch::new();
    symlink("nowhere", scene.path("dangling")).unwrap();
    std::fs::create_dir(scene.path("directory")).unwrap();
    let condition = Condition { create_new: true, ..Condition::default() };
    for options in BOTH {
        for name in ["dangling", "directory"] {
            let options = WriteOptions { condition, ..options };
            let error = write_file(&scene.path(name), b"x", &options).unwrap_err();
            assert!(matches!(error, FsError::Conflict { .. }), "{name}: {error}");
        }
    }
    assert_eq!(scene.names(), ["dangling", "directory"]);
}

#[test]
fn a_refused_write_changes_nothing() {
    let scene = Scratch::new();
    let path = scene.file_with_mode("file", "content", 0o644);
    for options in BOTH {
        let condition = Condition { size: Some(1), ..Condition::default() };
        let options = WriteOptions { condition, mode: Some(0o777), ..options };
        let error = write_file(&path, b"new", &options).unwrap_err();
        assert_eq!(error.to_string(), format!("{} has 7 bytes, not 1", path.display()));
        let missing = write_file(&scene.path("missing"), b"new", &options).unwrap_err();
        assert!(missing.to_string().ends_with("does not exist"), "{missing}");
    }
    assert_eq!((std::fs::read(&path).unwrap(), mode(&path)), (b"content".to_vec(), 0o644));
    assert_eq!(scene.names(), ["file"]);
}

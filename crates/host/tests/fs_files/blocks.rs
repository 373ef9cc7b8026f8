//! Files that are written in blocks.

use std::os::unix::fs::symlink;
use std::path::Path;

use exec_server_host::fs::{Condition, FileKind, FsError, NewFile, NewFileOptions, write_file};
use exec_server_test_support::{NOBODY, Scratch};

use crate::scene::{PLAIN, mode, umask};

fn create(path: &Path) -> NewFile {
    NewFile::create(path, NewFileOptions::default()).unwrap()
}

fn resumed(path: &Path, key: &str) -> Result<NewFile, FsError> {
    let resume_key = Some(key.to_owned());
    NewFile::create(path, NewFileOptions { resume_key, ..NewFileOptions::default() })
}

#[test]
fn the_old_content_stays_until_the_commit() {
    let scene = Scratch::new();
    let path = scene.file_with_mode("file", "old", 0o640);
    let file = create(&path);
    std::thread::scope(|threads| {
        for index in (0..64_u8).rev() {
            let file = &file;
            threads.spawn(move || {
                file.write_block(u64::from(index) * 1000, &[index; 1000]).unwrap();
            });
        }
    });
    assert_eq!(file.written(), 64_000);
    assert_eq!(std::fs::read(&path).unwrap(), b"old");
    let written = file.commit().unwrap();
    let content = std::fs::read(&path).unwrap();
    assert_eq!((written.size, content.len(), mode(&path)), (64_000, 64_000, 0o640));
    assert!(content.chunks(1000).enumerate().all(|(index, chunk)| chunk == [index as u8; 1000]));
    assert_eq!(scene.names(), ["file"]);
}

#[test]
fn gaps_read_as_zeros() {
    let scene = Scratch::new();
    let file = create(&scene.path("file"));
    file.write_block(5, b"x").unwrap();
    assert_eq!(file.commit().unwrap().size, 6);
    assert_eq!(std::fs::read(scene.path("file")).unwrap(), b"\0\0\0\0\0x");
}

#[test]
fn a_dropped_or_discarded_file_leaves_nothing() {
    let scene = Scratch::new();
    let path = scene.path("file");
    drop(create(&path));
    create(&path).discard();
    let resumable = resumed(&path, "key").unwrap();
    assert_eq!(scene.names().len(), 1);
    resumable.discard();
    assert!(scene.names().is_empty());
}

#[test]
fn a_failed_write_is_never_committed() {
    let scene = Scratch::new();
    let path = scene.file_with_mode("file", "old", 0o644);
    let file = create(&path);
    file.write_block(0, b"good").unwrap();
    let too_far = file.write_block(u64::MAX - 1, b"xxx").unwrap_err();
    let after = file.write_block(4, b"good").unwrap_err();
    assert_eq!(after.to_string(), too_far.to_string());
    assert_eq!(file.commit().unwrap_err().to_string(), too_far.to_string());
    assert_eq!(std::fs::read(&path).unwrap(), b"old");
    assert_eq!(scene.names(), ["file"]);
}

#[test]
fn the_condition_must_hold_at_the_commit() {
    let scene = Scratch::new();
    let path = scene.file_with_mode("file", "old", 0o644);
    let condition = Condition { size: Some(3), ..Condition::default() };
    let options = NewFileOptions { condition, ..NewFileOptions::default() };
    let file = NewFile::create(&path, options.clone()).unwrap();
    write_file(&path, b"other", &PLAIN).unwrap();
    let error = file.commit().unwrap_err();
    assert!(matches!(error, FsError::Conflict { .. }), "{error}");
    assert!(NewFile::create(&path, options).is_err(), "refused early");

    let condition = Condition { create_new: true, ..Condition::default() };
    let new = scene.path("new");
    let options = NewFileOptions { condition, ..NewFileOptions::default() };
    let file = NewFile::create(&new, options).unwrap();
    std::fs::write(&new, "the other program's").unwrap();
    let error = file.commit().unwrap_err();
    assert!(error.to_string().ends_with("already exists"), "{error}");
    assert_eq!(std::fs::read(&new).unwrap(), b"the other program's");
    assert_eq!(scene.names(), ["file", "new"]);
}

#[test]
fn a_commit_does_not_replace_a_special_file() {
    let scene = Scratch::new();
    let path = scene.path("file");
    let file = create(&path);
    scene.fifo("file");
    let error = file.commit().unwrap_err();
    assert!(matches!(error, FsError::WrongKind { found: FileKind::Fifo, .. }), "{error}");
    assert_eq!(scene.names(), ["file"]);
}

#[test]
fn a_file_is_resumed_by_its_key() {
    let scene = Scratch::new();
    let path = scene.path("file");
    let first = resumed(&path, "upload-1").unwrap();
    first.write_block(0, b"hello ").unwrap();
    let twice = resumed(&path, "upload-1").unwrap_err();
    assert!(matches!(twice, FsError::Conflict { .. }), "{twice}");
    let other = resumed(&path, "upload-2").unwrap();
    assert_eq!(other.written(), 0);
    drop(first);

    let second = resumed(&path, "upload-1").unwrap();
    assert_eq!(second.written(), 6);
    second.write_block(6, b"world").unwrap();
    assert_eq!(second.commit().unwrap().size, 11);
    assert_eq!(std::fs::read(&path).unwrap(), b"hello world");
    assert_eq!(mode(&path), 0o666 & !umask());
    let third = resumed(&path, "upload-1").unwrap();
    assert_eq!(third.written(), 0, "the finished file is not resumed");
    third.discard();
    other.discard();
    assert_eq!(scene.names(), ["file"]);
}

#[test]
fn a_failed_commit_keeps_the_resumable_file() {
    let scene = Scratch::new();
    let path = scene.file_with_mode("file", "old", 0o644);
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(&path, Some(NOBODY), None).unwrap();
    }
    let condition = Condition { size: Some(3), ..Condition::default() };
    let begin = |resume_key: Option<&str>| {
        let resume_key = resume_key.map(ToOwned::to_owned);
        let file =
            NewFile::create(&path, NewFileOptions { condition, resume_key, ..Default::default() });
        file.unwrap()
    };
    let (keyed, plain) = (begin(Some("key")), begin(None));
    for file in [&keyed, &plain] {
        file.write_block(0, b"new content").unwrap();
    }
    std::fs::write(&path, "changed").unwrap();
    for file in [keyed, plain] {
        let conflict = file.commit().unwrap_err();
        assert!(matches!(conflict, FsError::Conflict { .. }), "{conflict}");
    }
    assert_eq!(scene.names().len(), 2, "{:?}", scene.names());
    let again = resumed(&path, "key").unwrap();
    assert_eq!(again.written(), 11);
    again.commit().unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), b"new content");
    assert_eq!(scene.names(), ["file"]);
}

#[test]
fn a_resumed_file_is_as_private_as_the_file_it_replaces() {
    let scene = Scratch::new();
    let path = scene.path("file");
    drop(resumed(&path, "key").unwrap());
    let names = scene.names();
    scene.file_with_mode("file", "old", 0o600);
    let file = resumed(&path, "key").unwrap();
    assert_eq!(mode(&scene.path(&names[0])), 0o600);
    file.commit().unwrap();
    assert_eq!((mode(&path), scene.names()), (0o600, vec!["file".to_owned()]));
}

#[test]
fn an_invalid_resume_key_is_refused() {
    let scene = Scratch::new();
    for key in ["", "a/b", "..", "ä", "a b", &"x".repeat(65)] {
        let error = resumed(&scene.path("file"), key).unwrap_err();
        assert!(matches!(error, FsError::Unsuitable { .. }), "{key}: {error}");
    }
    resumed(&scene.path("file"), &"x".repeat(64)).unwrap().discard();
}

#[test]
fn a_foreign_file_under_the_temporary_name_is_not_written() {
    let scene = Scratch::new();
    let path = scene.path("file");
    let victim = scene.file_with_mode("victim", "precious", 0o600);
    drop(resumed(&path, "key").unwrap());
    let names = scene.names();
    let draft = scene.path(names.iter().find(|name| name.ends_with(".tmp")).unwrap());

    std::fs::remove_file(&draft).unwrap();
    symlink(&victim, &draft).unwrap();
    let error = resumed(&path, "key").unwrap_err();
    assert!(matches!(error, FsError::WrongKind { .. }), "{error}");

    std::fs::remove_file(&draft).unwrap();
    std::fs::hard_link(&victim, &draft).unwrap();
    let error = resumed(&path, "key").unwrap_err();
    assert!(matches!(error, FsError::Unsuitable { .. }), "{error}");

    std::fs::remove_file(&draft).unwrap();
    scene.fifo(&draft);
    let error = resumed(&path, "key").unwrap_err();
    assert!(matches!(error, FsError::WrongKind { .. }), "{error}");
    assert_eq!(std::fs::read(&victim).unwrap(), b"precious");
}

#[test]
fn a_commit_fails_if_the_path_leads_elsewhere() {
    let scene = Scratch::new();
    let directory = scene.path("directory");
    let path = directory.join("file");
    for is_made_again in [false, true] {
        std::fs::create_dir(&directory).unwrap();
        let file = create(&path);
        file.write_block(0, b"x").unwrap();
        let moved = scene.path("moved");
        std::fs::rename(&directory, &moved).unwrap();
        if is_made_again {
            std::fs::create_dir(&directory).unwrap();
        }
        let error = file.commit().unwrap_err();
        assert!(matches!(error, FsError::Conflict { .. }), "{error}");
        assert_eq!(std::fs::read_dir(&moved).unwrap().count(), 0);
        assert!(!path.exists());
        std::fs::remove_dir(&moved).unwrap();
    }
    // Moving the directory away and back does not matter.
    let file = create(&path);
    std::fs::rename(&directory, scene.path("moved")).unwrap();
    std::fs::rename(scene.path("moved"), &directory).unwrap();
    file.commit().unwrap();
    assert!(path.exists());

    let link = scene.path("link");
    symlink("one", &link).unwrap();
    let file = create(&link);
    std::fs::remove_file(&link).unwrap();
    symlink("two", &link).unwrap();
    let error = file.commit().unwrap_err();
    assert!(matches!(error, FsError::Conflict { .. }), "{error}");
    assert!(!scene.path("one").exists() && !scene.path("two").exists());
}

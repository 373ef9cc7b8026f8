//! Copies of single files and symlinks.

use std::io::ErrorKind;
use std::os::unix::fs::FileExt as _;
use std::os::unix::net::UnixListener;

use exec_server_host::fs::{CancelFlag, FileKind, FsError, copy};
use exec_server_test_support::{Scratch, as_nobody, skipped};

use crate::{exists, give_away, inode, mode, set_mode};

#[test]
fn content_and_permission_bits_are_copied() {
    let scratch = Scratch::new();
    let content: Vec<u8> = (0..1_000_000_u32).flat_map(u32::to_le_bytes).collect();
    let source = scratch.file("source", &content);
    for (bits, copied) in [(0o640, 0o640), (0o777, 0o777), (0o444, 0o444), (0o6755, 0o755)] {
        set_mode(&source, bits);
        let destination = scratch.path(format!("{bits:o}"));
        copy(&source, &destination, false, &CancelFlag::never()).unwrap();
        assert_eq!(mode(&destination), copied);
        assert!(std::fs::read(&destination).unwrap() == content);
    }
}

#[test]
fn an_existing_file_keeps_its_inode() {
    let scratch = Scratch::new();
    let source = scratch.file("source", "new");
    let destination = scratch.file("destination", "old and longer");
    std::fs::hard_link(&destination, scratch.path("other_name")).unwrap();
    set_mode(&source, 0o600);
    set_mode(&destination, 0o4755);
    let before = inode(&destination);
    copy(&source, &destination, true, &CancelFlag::never()).unwrap();
    assert_eq!(std::fs::read(scratch.path("other_name")).unwrap(), b"new");
    assert_eq!((inode(&destination), mode(&destination)), (before, 0o600));
}

#[test]
fn copying_a_file_onto_itself_is_refused() {
    let scratch = Scratch::new();
    let source = scratch.file("source", "kept");
    std::fs::hard_link(&source, scratch.path("hard")).unwrap();
    scratch.symlink("source", "soft");
    for destination in ["source", "hard", "soft", "./../source"] {
        let path = if destination.starts_with('.') {
            scratch.root().join("x/../source")
        } else {
            scratch.path(destination)
        };
        scratch.directory("x");
        let refused = copy(&source, &path, false, &CancelFlag::never());
        assert!(matches!(refused, Err(FsError::Unsuitable { .. })), "{destination}: {refused:?}");
    }
    let link = scratch.path("soft");
    let refused = copy(&link, &link, false, &CancelFlag::never());
    assert!(matches!(refused, Err(FsError::Unsuitable { .. })), "{refused:?}");
    assert_eq!(std::fs::read(&link).unwrap(), b"kept");
}

#[test]
fn a_destination_symlink_is_followed_only_to_a_regular_file() {
    let scratch = Scratch::new();
    let source = scratch.file("source", "new");
    scratch.file("target", "old");
    copy(&source, &scratch.symlink("target", "link"), false, &CancelFlag::never()).unwrap();
    assert_eq!(std::fs::read(scratch.path("target")).unwrap(), b"new");
    assert!(scratch.path("link").is_symlink());

    let refused =
        copy(&source, &scratch.symlink("nothing", "dangling"), false, &CancelFlag::never());
    assert!(matches!(refused, Err(FsError::Unsuitable { .. })), "{refused:?}");
    assert!(!exists(scratch.path("nothing")));

    scratch.fifo("fifo");
    let _listener = UnixListener::bind(scratch.path("socket")).unwrap();
    scratch.directory("directory");
    scratch.symlink("/dev/null", "device");
    for name in ["fifo", "socket", "directory", "device"] {
        let refused = copy(&source, &scratch.path(name), false, &CancelFlag::never());
        assert!(matches!(refused, Err(FsError::WrongKind { .. })), "{name}: {refused:?}");
        let refused = copy(
            &source,
            &scratch.symlink(name, format!("to_{name}")),
            false,
            &CancelFlag::never(),
        );
        assert!(matches!(refused, Err(FsError::WrongKind { .. })), "{name}: {refused:?}");
    }
    assert!(
        copy(&source, &scratch.path("missing/file"), false, &CancelFlag::never())
            .unwrap_err()
            .is_not_found()
    );
}

#[test]
fn special_files_are_refused_without_blocking() {
    let scratch = Scratch::new();
    scratch.fifo("fifo");
    let _listener = UnixListener::bind(scratch.path("socket")).unwrap();
    for (source, kind) in [
        (scratch.path("fifo"), FileKind::Fifo),
        (scratch.path("socket"), FileKind::Socket),
        ("/dev/zero".into(), FileKind::CharacterDevice),
    ] {
        match copy(&source, &scratch.path("copy"), true, &CancelFlag::never()) {
            Err(FsError::WrongKind { found, .. }) => assert_eq!(found, kind),
            other => panic!("{other:?}"),
        }
    }
    scratch.directory("directory");
    let refused =
        copy(&scratch.path("directory"), &scratch.path("copy"), false, &CancelFlag::never());
    assert!(matches!(refused, Err(FsError::Unsuitable { .. })), "{refused:?}");
    assert!(
        copy(&scratch.path("missing"), &scratch.path("copy"), true, &CancelFlag::never())
            .unwrap_err()
            .is_not_found()
    );
    assert!(!exists(scratch.path("copy")));
}

#[test]
fn a_symlink_is_copied_as_a_symlink() {
    let scratch = Scratch::new();
    let source = scratch.symlink("any/where", "source");
    let copied = scratch.path("copy");
    copy(&source, &copied, false, &CancelFlag::never()).unwrap();
    assert_eq!(std::fs::read_link(&copied).unwrap().to_str(), Some("any/where"));
    let other = scratch.symlink("elsewhere", "other");
    copy(&other, &copied, false, &CancelFlag::never()).unwrap();
    assert_eq!(std::fs::read_link(&copied).unwrap().to_str(), Some("elsewhere"));
    let file = scratch.file("file", "kept");
    let refused = copy(&source, &file, false, &CancelFlag::never());
    assert!(matches!(refused, Err(FsError::WrongKind { .. })), "{refused:?}");
    assert_eq!(std::fs::read(&file).unwrap(), b"kept");
}

#[test]
fn holes_stay_holes() {
    const TEBIBYTE: u64 = 1 << 40;
    let scratch = Scratch::new();
    let source = scratch.file("source", "start");
    let file = std::fs::OpenOptions::new().write(true).open(&source).unwrap();
    file.write_all_at(b"middle", TEBIBYTE / 2).unwrap();
    file.set_len(TEBIBYTE).unwrap();
    let destination = scratch.path("destination");
    copy(&source, &destination, false, &CancelFlag::never()).unwrap();
    let copied = std::fs::File::open(&destination).unwrap();
    assert_eq!(copied.metadata().unwrap().len(), TEBIBYTE);
    let mut middle = [0; 8];
    copied.read_exact_at(&mut middle, TEBIBYTE / 2 - 1).unwrap();
    assert_eq!(&middle, b"\0middle\0");
    assert!(rustix::fs::fstat(&copied).unwrap().st_blocks < 1_000);
}

/// Old content must not show in the holes of the new content.
#[test]
fn holes_replace_old_content() {
    const MIB: u64 = 1 << 20;
    let scratch = Scratch::new();
    for (data, size) in [(&[0, 2 * MIB][..], 3 * MIB), (&[MIB], 2 * MIB), (&[], 6 * MIB)] {
        let source = scratch.file("source", "");
        let file = std::fs::OpenOptions::new().write(true).open(&source).unwrap();
        file.set_len(size).unwrap();
        for at in data {
            file.write_all_at(b"data", *at).unwrap();
        }
        let destination = scratch.file("destination", vec![b'o'; 4 << 20]);
        let before = inode(&destination);
        copy(&source, &destination, false, &CancelFlag::never()).unwrap();
        let copied = std::fs::read(&destination).unwrap();
        assert!(copied == std::fs::read(&source).unwrap(), "{data:?} of {size}");
        let stat = rustix::fs::stat(&destination).unwrap();
        assert_eq!(stat.st_ino, before);
        assert!(stat.st_blocks < 1_000, "{} blocks", stat.st_blocks);
    }
}

#[test]
fn files_without_a_size_are_copied_and_copies_may_cross_file_systems() {
    let scratch = Scratch::new();
    let destination = scratch.path("destination");
    copy("/proc/self/status".as_ref(), &destination, false, &CancelFlag::never()).unwrap();
    assert!(std::fs::read_to_string(&destination).unwrap().contains("VmSize"));
    set_mode(&destination, 0o644);
    copy(&scratch.file("empty", ""), &destination, false, &CancelFlag::never()).unwrap();
    assert_eq!(std::fs::read(&destination).unwrap(), b"");
    let Ok(other) = tempfile::tempdir_in("/dev/shm") else {
        return skipped("a copy to another file system: /dev/shm is missing");
    };
    let source = scratch.file("source", vec![7; 3_000_000]);
    copy(&source, &other.path().join("copy"), false, &CancelFlag::never()).unwrap();
    assert!(std::fs::read(other.path().join("copy")).unwrap() == vec![7; 3_000_000]);
}

#[test]
fn permission_is_checked_before_any_change() {
    let scratch = Scratch::new();
    let secret = scratch.file("secret", "secret");
    let readable = scratch.file("readable", "readable");
    let foreign = scratch.file("foreign", "kept");
    set_mode(&secret, 0o000);
    set_mode(&readable, 0o644);
    set_mode(&foreign, 0o444);
    give_away(scratch.root());
    as_nobody(|| {
        let refused =
            copy(&secret, &scratch.path("copy"), false, &CancelFlag::never()).unwrap_err();
        assert!(refused.to_string().contains("secret: Permission denied"), "{refused}");
        assert!(!exists(scratch.path("copy")));
        let refused = copy(&readable, &foreign, false, &CancelFlag::never()).unwrap_err();
        assert!(refused.to_string().contains("foreign: Permission denied"), "{refused}");
        assert_eq!(std::fs::read(&foreign).unwrap(), b"kept");
        copy(&readable, &scratch.path("copy"), false, &CancelFlag::never()).unwrap();
    });
}

#[test]
fn copying_a_file_without_size_or_end_fails_at_a_limit() {
    let scratch = Scratch::new();
    let parent = rustix::process::getppid().unwrap().as_raw_nonzero();
    // Contains eight bytes per page of the address space.
    let endless = format!("/proc/{parent}/pagemap");
    let destination = scratch.path("copy");
    match copy(endless.as_ref(), &destination, false, &CancelFlag::never()) {
        Err(FsError::TooLarge { max, .. }) => assert_eq!(max, 64 << 20),
        Err(FsError::Os { source, .. }) if source.kind() == ErrorKind::PermissionDenied => {
            skipped(format_args!("this user may not read {endless}"));
        }
        other => panic!("{other:?}"),
    }
    assert!(!exists(&destination));
    let existing = scratch.file("existing", "kept");
    copy(endless.as_ref(), &existing, false, &CancelFlag::never()).unwrap_err();
    assert_eq!(std::fs::read(&existing).unwrap(), b"kept");
}

#[test]
fn a_cancelled_copy_ends() {
    let scratch = Scratch::new();
    scratch.directory("tree");
    let file = scratch.file("tree/file", "content");
    let cancel = CancelFlag::new();
    cancel.request();
    for source in [&file, &scratch.path("tree")] {
        let abandoned = copy(source, &scratch.path("copy"), true, &cancel).unwrap_err();
        assert!(abandoned.to_string().contains("no longer waits"), "{abandoned}");
    }
    assert!(!exists(scratch.path("copy/file")));
}

//! Whole-file writes: what they keep and what they change.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use exec_server_host::fs::{
    FsError, NewFile, NewFileOptions, OpenFile, Symlinks, WriteOptions, metadata, write_file,
};
use exec_server_test_support::{Scratch, skipped};
use rustix::fs::XattrFlags;

use crate::scene::{ATOMIC, BOTH, PLAIN, mode, umask};

#[test]
fn a_plain_write_keeps_the_inode_and_its_metadata() {
    let scene = Scratch::new();
    let path = scene.file_with_mode("file", "old and longer", 0o640);
    let link = scene.path("link");
    std::fs::hard_link(&path, &link).unwrap();
    let inode = std::fs::metadata(&path).unwrap().ino();
    let written = write_file(&path, b"new", &PLAIN).unwrap();
    assert_eq!(std::fs::read(&link).unwrap(), b"new");
    assert_eq!(std::fs::metadata(&path).unwrap().ino(), inode);
    assert_eq!(mode(&path), 0o640);
    let seen = metadata(&path, Symlinks::Refuse).unwrap();
    assert_eq!((written.modified_at_ms, written.size), (seen.modified_at_ms, 3));

    write_file(&path, b"", &WriteOptions { mode: Some(0o4711), ..PLAIN }).unwrap();
    assert_eq!((mode(&path), std::fs::read(&link).unwrap().len()), (0o4711, 0));
    write_file(&path, b"x", &WriteOptions { mode: Some(0o600), ..PLAIN }).unwrap();
    assert_eq!((mode(&link), std::fs::metadata(&path).unwrap().ino()), (0o600, inode));
}

#[test]
fn an_atomic_write_keeps_the_mode_and_other_links() {
    let scene = Scratch::new();
    let path = scene.file_with_mode("file", "old", 0o2751);
    let link = scene.path("link");
    std::fs::hard_link(&path, &link).unwrap();
    let written = write_file(&path, b"newer", &ATOMIC).unwrap();
    let seen = metadata(&path, Symlinks::Refuse).unwrap();
    assert_eq!((written.modified_at_ms, written.size), (seen.modified_at_ms, 5));
    assert_eq!(std::fs::read(&path).unwrap(), b"newer");
    assert_eq!(std::fs::read(&link).unwrap(), b"old");
    assert_eq!(mode(&path), 0o2751);
    write_file(&path, b"", &WriteOptions { mode: Some(0o604), ..ATOMIC }).unwrap();
    assert_eq!(mode(&path), 0o604);
    assert_eq!(scene.names(), ["file", "link"]);
}

#[test]
fn an_atomic_write_as_root_keeps_the_owner() {
    if !rustix::process::geteuid().is_root() {
        skipped("only root may change the owner of a file");
        return;
    }
    let scene = Scratch::new();
    let path = scene.file_with_mode("file", "old", 0o4640);
    std::os::unix::fs::chown(&path, Some(1234), Some(4321)).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o4640)).unwrap();
    write_file(&path, b"new", &ATOMIC).unwrap();
    let now = std::fs::metadata(&path).unwrap();
    assert_eq!((now.uid(), now.gid(), mode(&path)), (1234, 4321, 0o4640));
}

#[test]
fn an_atomic_write_keeps_the_access_list_and_takes_none_from_the_directory() {
    const ACCESS: &str = "system.posix_acl_access";
    // Version 2: owner rw, user 1234 rw, group none, mask rw, others none. stat(2) shows it as
    // 0660.
    let entries =
        [(1, 6, u32::MAX), (2, 6, 1234), (4, 0, u32::MAX), (16, 6, u32::MAX), (32, 0, u32::MAX)];
    let mut list = 2_u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        list.extend([tag, 0, permissions, 0]);
        list.extend(id.to_le_bytes());
    }
    let list_of = |path: &Path| {
        let mut value = vec![0; 1000];
        let len = rustix::fs::getxattr(path, ACCESS, &mut value)?;
        value.truncate(len);
        Ok::<_, rustix::io::Errno>(value)
    };
    let scene = Scratch::new();
    let listed = scene.file_with_mode("listed", "old", 0o600);
    let plain = scene.file_with_mode("plain", "old", 0o660);
    if let Err(errno) = rustix::fs::setxattr(&listed, ACCESS, &list, XattrFlags::empty()) {
        skipped(format_args!("the file system has no access lists: {errno}"));
        return;
    }
    let inherited = "system.posix_acl_default";
    rustix::fs::setxattr(scene.root(), inherited, &list, XattrFlags::empty()).unwrap();
    for path in [&listed, &plain] {
        write_file(path, b"new", &ATOMIC).unwrap();
        assert_eq!(mode(path), 0o660);
    }
    assert_eq!(list_of(&listed).unwrap(), list);
    assert_eq!(list_of(&plain), Err(rustix::io::Errno::NODATA));
}

#[test]
fn a_new_file_has_the_default_mode_unless_one_is_given() {
    let scene = Scratch::new();
    for (index, options) in BOTH.into_iter().enumerate() {
        let usual = scene.path(format!("usual{index}"));
        write_file(&usual, b"x", &options).unwrap();
        assert_eq!(mode(&usual), 0o666 & !umask());
        let asked = scene.path(format!("asked{index}"));
        write_file(&asked, b"x", &WriteOptions { mode: Some(0o1777), ..options }).unwrap();
        assert_eq!(mode(&asked), 0o1777);
        let beyond = WriteOptions { mode: Some(0o10_000), ..options };
        let error = write_file(&scene.path("beyond"), b"x", &beyond).unwrap_err();
        assert!(matches!(error, FsError::Unsuitable { .. }), "{error}");
        assert!(!scene.path("beyond").exists());
    }
}

#[test]
fn symlinks_are_followed_or_refused() {
    for options in BOTH {
        let scene = Scratch::new();
        let target = scene.file_with_mode("target", "old", 0o600);
        std::fs::create_dir(scene.path("directory")).unwrap();
        symlink("target", scene.path("link")).unwrap();
        symlink("directory/created", scene.path("dangling")).unwrap();
        symlink("directory", scene.path("through")).unwrap();

        let refusing = WriteOptions { symlinks: Symlinks::Refuse, ..options };
        for path in ["link", "dangling", "through/file"] {
            let error = write_file(&scene.path(path), b"no", &refusing).unwrap_err();
            assert!(matches!(error, FsError::Symlink { .. }), "{path}: {error}");
        }
        assert_eq!(std::fs::read(&target).unwrap(), b"old");
        assert_eq!(std::fs::read_dir(scene.path("directory")).unwrap().count(), 0);

        write_file(&scene.path("link"), b"new", &options).unwrap();
        write_file(&scene.path("dangling"), b"born", &options).unwrap();
        assert_eq!(std::fs::read(&target).unwrap(), b"new");
        assert_eq!(std::fs::read(scene.path("directory/created")).unwrap(), b"born");
        for link in ["link", "dangling"] {
            assert!(scene.path(link).symlink_metadata().unwrap().is_symlink(), "{link}");
        }
        assert_eq!(std::fs::read_dir(scene.path("directory")).unwrap().count(), 1);
    }
}

#[test]
fn any_name_can_be_written() {
    let scene = Scratch::new();
    let longest = "ü".repeat(127) + "x";
    for name in [OsStr::from_bytes(b"not\xff\xfeutf8"), OsStr::new(&longest), OsStr::new("-n\n")] {
        for options in BOTH {
            let path = scene.path(name);
            write_file(&path, b"1", &options).unwrap();
            write_file(&path, b"22", &options).unwrap();
            assert_eq!(
                OpenFile::open(&path, Symlinks::Refuse).unwrap().read_to_end(9).unwrap(),
                b"22"
            );
        }
        let options = NewFileOptions { resume_key: Some("key".to_owned()), ..Default::default() };
        NewFile::create(&scene.path(name), options).unwrap().commit().unwrap();
    }
    assert_eq!(scene.names().len(), 3);
}

#[test]
fn kernel_files_can_be_written() {
    if !rustix::process::geteuid().is_root() {
        skipped("only root may write kernel settings");
        return;
    }
    let path = Path::new("/proc/sys/kernel/core_uses_pid");
    let value = OpenFile::open(path, Symlinks::Follow).unwrap().read_to_end(100).unwrap();
    write_file(path, &value, &PLAIN).unwrap();
}

#[test]
fn readers_see_all_of_the_old_or_the_new_content() {
    let scene = Scratch::new();
    let path = scene.path("file");
    let content = |round: u8| vec![round; 700_000];
    write_file(&path, &content(0), &ATOMIC).unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|threads| {
        threads.spawn(|| {
            while !done.load(Ordering::Acquire) {
                let seen = std::fs::read(&path).unwrap();
                assert_eq!(seen, content(seen[0]));
            }
        });
        for round in 1..30 {
            write_file(&path, &content(round), &ATOMIC).unwrap();
        }
        done.store(true, Ordering::Release);
    });
    assert_eq!(scene.names(), ["file"]);
}

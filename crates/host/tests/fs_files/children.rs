//! Tests that need a separate process: this program starts itself again to run one test, with the
//! variable `FS_FILES_CHILD_DIRECTORY` set.

use std::io::{self, BufRead as _, BufReader, Read as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use exec_server_host::fs::{
    Condition, FsError, NewFile, NewFileOptions, OpenFile, Symlinks, WriteOptions, Written,
    metadata, set_permissions, write_file,
};
use exec_server_test_support::{NOBODY, Scratch, skipped};

use crate::scene::{ATOMIC, BOTH, PLAIN, denied, mode};

const DIRECTORY: &str = "FS_FILES_CHILD_DIRECTORY";

fn directory() -> Option<PathBuf> {
    std::env::var_os(DIRECTORY).map(PathBuf::from)
}

#[expect(clippy::disallowed_methods, reason = "the test runs itself as another process")]
fn command(program: &str) -> Command {
    Command::new(program)
}

fn arguments(test: &str) -> [String; 3] {
    [format!("children::{test}"), "--exact".to_owned(), "--nocapture".to_owned()]
}

/// Returns a command that runs one test of this program again. `/proc/self/exe` also works for a
/// user who cannot reach the program's directory.
fn again(test: &str, scene: &Scratch) -> Command {
    let mut again = command("/proc/self/exe");
    again.args(arguments(test)).env(DIRECTORY, scene.root());
    again
}

#[test]
fn a_process_killed_in_an_atomic_write_leaves_the_old_file() {
    if let Some(directory) = directory() {
        let file = NewFile::create(&directory.join("file"), NewFileOptions::default()).unwrap();
        file.write_block(0, &[b'n'; 100_000]).unwrap();
        println!("half");
        let _ = io::stdin().read_exact(&mut [0]);
        panic!("expected to be killed");
    }
    let scene = Scratch::new();
    let path = scene.file_with_mode("file", "old", 0o600);
    let mut child = again("a_process_killed_in_an_atomic_write_leaves_the_old_file", &scene)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().ends_with("half")));
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), b"old");
    let leftover = scene.names();
    assert!(leftover.len() == 2 && leftover[0].starts_with(".file."), "{leftover:?}");
    write_file(&path, b"new", &ATOMIC).unwrap();
}

#[test]
fn a_file_is_complete_whenever_its_writer_is_killed() {
    let content = |letter: u8| vec![letter; 300_000];
    if let Some(directory) = directory() {
        for letter in (b'a'..=b'z').cycle() {
            write_file(&directory.join("file"), &content(letter), &ATOMIC).unwrap();
            println!("written");
        }
    }
    let scene = Scratch::new();
    let path = scene.path("file");
    for writes in 1..8 {
        let mut child = again("a_file_is_complete_whenever_its_writer_is_killed", &scene)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let written = lines.map(Result::unwrap).filter(|line| line.ends_with("written"));
        assert_eq!(written.take(writes).count(), writes);
        child.kill().unwrap();
        child.wait().unwrap();
        let seen = std::fs::read(&path).unwrap();
        assert_eq!(seen, content(seen[0]));
    }
}

#[test]
fn a_full_file_system_is_reported() {
    const NO_MOUNT: i32 = 77;
    if let Some(directory) = directory() {
        on_a_full_file_system(&directory);
        return;
    }
    let scene = Scratch::new();
    let script = "mount -t tmpfs -o size=64k tmpfs \"$1\" || exit 77; shift; exec \"$@\"";
    let status = command("unshare")
        .args(["-Urm", "sh", "-c", script, "sh"])
        .arg(scene.root())
        .arg(std::env::current_exe().unwrap())
        .args(arguments("a_full_file_system_is_reported"))
        .env(DIRECTORY, scene.root())
        .status();
    match status {
        Ok(status) if status.success() => {}
        Ok(status) if matches!(status.code(), Some(1 | NO_MOUNT)) => {
            skipped(format_args!("no tmpfs in a private namespace ({status})"));
        }
        Err(error) => skipped(format_args!("cannot run unshare: {error}")),
        Ok(status) => panic!("the test on a full file system ended with {status}"),
    }
}

fn on_a_full_file_system(directory: &Path) {
    let no_space = |error: &FsError| {
        matches!(error, FsError::Os { source, .. }
            if source.kind() == io::ErrorKind::StorageFull)
    };
    let path = directory.join("file");
    let large = vec![b'x'; 100_000];
    for options in BOTH {
        let error = write_file(&path, &large, &options).unwrap_err();
        assert!(no_space(&error), "{error}");
        assert!(!path.exists(), "a file that could not be filled is removed");
        assert_eq!(std::fs::read_dir(directory).unwrap().count(), 0);
    }
    write_file(&path, b"old", &PLAIN).unwrap();
    let error = write_file(&path, &large, &ATOMIC).unwrap_err();
    assert!(no_space(&error), "{error}");
    assert_eq!(std::fs::read(&path).unwrap(), b"old");

    let file = NewFile::create(&path, NewFileOptions::default()).unwrap();
    file.write_block(0, &[0; 10_000]).unwrap();
    assert!(no_space(&file.write_block(10_000, &large).unwrap_err()));
    assert!(no_space(&file.commit().unwrap_err()));
    assert_eq!(std::fs::read(&path).unwrap(), b"old");
    assert_eq!(std::fs::read_dir(directory).unwrap().count(), 1);
    write_file(&path, &large[..50_000], &ATOMIC).unwrap();
    assert!(no_space(&write_file(&path, &large, &PLAIN).unwrap_err()));
}

#[test]
fn an_ordinary_user_gets_permission_errors() {
    if let Some(directory) = directory() {
        as_an_ordinary_user(&directory);
        return;
    }
    if !rustix::process::geteuid().is_root() {
        skipped("only root can become another user");
        return;
    }
    let scene = Scratch::new();
    let open = |name: &str, mode| {
        std::fs::set_permissions(scene.path(name), std::fs::Permissions::from_mode(mode)).unwrap();
    };
    open("", 0o755);
    scene.file_with_mode("public", "public", 0o644);
    scene.file_with_mode("secret", "secret", 0o600);
    std::fs::create_dir(scene.path("shared")).unwrap();
    open("shared", 0o777);
    scene.file_with_mode("shared/public", "public", 0o644);
    scene.file_with_mode("shared/writable", "writable", 0o646);
    let status = again("an_ordinary_user_gets_permission_errors", &scene)
        .uid(NOBODY)
        .gid(NOBODY)
        .status()
        .unwrap();
    assert!(status.success(), "{status}");
    let replaced = std::fs::metadata(scene.path("shared/writable")).unwrap();
    assert_eq!((replaced.uid(), mode(&scene.path("shared/writable"))), (NOBODY, 0o644));
}

fn as_an_ordinary_user(directory: &Path) {
    // The server does the same. Root then owns /proc/self, through which files are reopened.
    exec_server_host::protect_own_memory().unwrap();
    let path = |name: &str| directory.join(name);
    let public = OpenFile::open(&path("public"), Symlinks::Refuse).unwrap();
    assert_eq!(public.read_to_end(100).unwrap(), b"public");
    assert!(denied(&OpenFile::open(&path("secret"), Symlinks::Follow).unwrap_err()));
    assert!(denied(&set_permissions(&path("public"), 0o666, Symlinks::Follow).unwrap_err()));
    for options in BOTH {
        for name in ["public", "secret", "new", "shared/public"] {
            let error = write_file(&path(name), b"x", &options).unwrap_err();
            assert!(denied(&error), "{name}: {error}");
        }
        let own = path("shared/own");
        write_file(&own, b"one", &WriteOptions { mode: Some(0o600), ..options }).unwrap();
        write_file(&own, b"two", &options).unwrap();
        set_permissions(&own, 0o640, Symlinks::Refuse).unwrap();
        assert_eq!((std::fs::read(&own).unwrap(), mode(&own)), (b"two".to_vec(), 0o640));
    }
    every_write_to_a_foreign_file_has_a_distinct_time(&path("shared/writable"));
    // After a write in place the file still belongs to root. A replacement belongs to its writer,
    // and gives no user more access than before.
    write_file(&path("shared/writable"), b"x", &PLAIN).unwrap();
    assert_eq!(mode(&path("shared/writable")), 0o646);
    write_file(&path("shared/writable"), b"y", &ATOMIC).unwrap();
}

/// Only the owner of a file may set its modification time to an arbitrary value.
fn every_write_to_a_foreign_file_has_a_distinct_time(path: &Path) {
    let seen = metadata(path, Symlinks::Refuse).unwrap();
    let mut last = Written { modified_at_ms: seen.modified_at_ms, size: seen.size };
    for _ in 0..50 {
        let Written { modified_at_ms, size } = last;
        let condition =
            Condition { modified_at_ms: Some(modified_at_ms), size: Some(size), create_new: false };
        let next = write_file(path, b"writable", &WriteOptions { condition, ..PLAIN }).unwrap();
        assert!(next.modified_at_ms > modified_at_ms, "{next:?} after {last:?}");
        last = next;
    }
}

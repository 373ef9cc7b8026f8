//! The procfs files of the server itself cannot be opened under any name. Those of the machine and
//! of other processes can.

use std::fs::File;
use std::ops::ControlFlow;
use std::os::fd::AsRawFd as _;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc;

use exec_server_host::fs::search::{Search, SearchOptions};
use exec_server_host::fs::{
    CancelFlag, FsError, OpenFile, Symlinks, canonicalize, copy, metadata, read_directory,
    write_file,
};
use exec_server_test_support::Scratch;

use crate::scene::{BOTH, denied};

fn read(path: &str) -> Result<Vec<u8>, FsError> {
    OpenFile::open(Path::new(path), Symlinks::Follow)?.read_to_end(64 << 20)
}

/// Calls the test with the id of a second thread, which lives until the test returns.
fn beside_a_thread(test: impl FnOnce(i32)) {
    let (name, named) = mpsc::sync_channel(1);
    let (end, ended) = mpsc::sync_channel::<()>(1);
    std::thread::scope(|threads| {
        threads.spawn(move || {
            name.send(rustix::thread::gettid().as_raw_nonzero().get()).unwrap();
            let _ = ended.recv();
        });
        test(named.recv().unwrap());
        drop(end);
    });
}

#[test]
fn memory_and_environment_of_the_server_are_closed() {
    let scene = Scratch::new();
    let source = scene.file_with_mode("source", "content", 0o644);
    let own = std::process::id();
    beside_a_thread(|thread| {
        for path in [
            "/proc/self/environ".to_owned(),
            "/proc/self/mem".to_owned(),
            "/proc/self/cmdline".to_owned(),
            "/proc/thread-self/environ".to_owned(),
            format!("/proc/{own}/environ"),
            format!("/proc/{own}/../self/environ"),
            format!("/proc/{thread}/environ"),
            format!("/proc/{thread}/mem"),
            format!("/proc/self/task/{thread}/environ"),
            format!("/proc/{thread}/task/{own}/environ"),
        ] {
            let error = read(&path).unwrap_err();
            assert!(denied(&error), "{path}: {error}");
            assert!(error.to_string().contains("the server itself"), "{error}");
            let path = Path::new(&path);
            let copied = scene.path("copied");
            assert!(denied(&copy(path, &copied, false, &CancelFlag::never()).unwrap_err()));
            assert!(!copied.exists());
            assert!(denied(&copy(&source, path, false, &CancelFlag::never()).unwrap_err()));
            for options in BOTH {
                write_file(path, b"x", &options).unwrap_err();
            }
            metadata(path, Symlinks::Follow).unwrap();
        }
    });
}

#[test]
fn a_symlink_does_not_bypass_the_check() {
    let scene = Scratch::new();
    std::os::unix::fs::symlink("/proc/self/environ", scene.path("file")).unwrap();
    std::os::unix::fs::symlink("/proc/self", scene.path("directory")).unwrap();
    for way in ["file", "directory/environ"] {
        let error = read(scene.path(way).to_str().unwrap()).unwrap_err();
        assert!(denied(&error), "{way}: {error}");
    }
}

#[test]
fn a_search_does_not_reveal_the_servers_environment() {
    let options = SearchOptions {
        pattern: "PATH".to_owned(),
        max_matches: 10,
        globs: vec!["environ".to_owned()],
        ..SearchOptions::default()
    };
    let search = Search::new(&options).unwrap();
    let mut found = |found| panic!("{found:?}");
    let cancelled = AtomicBool::new(false);
    let refused = search.run(Path::new("/proc/self/environ"), &cancelled, &mut found);
    assert!(denied(&refused.unwrap_err()));
    let tree = format!("/proc/self/task/{}", std::process::id());
    let mut found = |_| ControlFlow::Break(());
    let summary = search.run(Path::new(&tree), &cancelled, &mut found).unwrap();
    assert_eq!((summary.matches, summary.files_searched), (0, 0), "{summary:?}");
}

#[test]
fn magic_links_are_not_followed() {
    let scene = Scratch::new();
    let path = scene.file_with_mode("spill", "of another client", 0o600);
    let file = File::open(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    let source = scene.file_with_mode("source", "content", 0o644);
    let number = file.as_raw_fd();
    for path in [
        format!("/proc/self/fd/{number}"),
        format!("/dev/fd/{number}"),
        "/proc/self/exe".to_owned(),
        "/proc/self/cwd/Cargo.toml".to_owned(),
        "/proc/self/root/etc/passwd".to_owned(),
    ] {
        let is_clear = |error: FsError| {
            assert!(error.to_string().contains("a magic link"), "{path}: {error}");
        };
        is_clear(read(&path).unwrap_err());
        let path = Path::new(&path);
        for options in BOTH {
            is_clear(write_file(path, b"x", &options).unwrap_err());
        }
        is_clear(copy(&source, path, false, &CancelFlag::never()).unwrap_err());
    }
    is_clear_for_directories();
}

fn is_clear_for_directories() {
    use exec_server_host::fs::EntryTypes;
    let path = Path::new("/proc/self/root");
    let error = read_directory(path, EntryTypes::Own, 1_000).unwrap_err();
    assert!(error.to_string().contains("a magic link"), "{error}");
    let error = canonicalize(&path.join("etc")).unwrap_err();
    assert!(error.to_string().contains("a magic link"), "{error}");
}

#[test]
fn procfs_files_of_the_machine_and_of_others_are_open() {
    let other = rustix::process::getppid().unwrap().as_raw_nonzero();
    for path in [
        "/proc/meminfo".to_owned(),
        "/proc/mounts".to_owned(),
        "/proc/net/dev".to_owned(),
        "/proc/sys/kernel/osrelease".to_owned(),
        format!("/proc/{other}/status"),
    ] {
        assert!(!read(&path).unwrap().is_empty(), "{path}");
    }
}

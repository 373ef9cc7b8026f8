//! Opening and reading regular files.

use std::fs::File;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use exec_server_host::fs::{
    FileKind, FsError, NewFile, NewFileOptions, OpenFile, Symlinks, metadata, write_file,
};
use exec_server_test_support::Scratch;
use rustix::fs::{Mode, OFlags};

use crate::scene::BOTH;

#[test]
fn only_regular_files_are_opened_and_no_open_blocks() {
    let scene = Scratch::new();
    let lonely = scene.fifo("lonely");
    let attended = scene.fifo("attended");
    // Both ends are open, so a careless open would succeed, and could consume or send bytes.
    let ends = rustix::fs::open(&attended, OFlags::RDWR | OFlags::NONBLOCK, Mode::empty()).unwrap();
    let socket = scene.path("socket");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let to_fifo = scene.symlink("lonely", "to_fifo");
    for (path, kind) in [
        (lonely.as_path(), FileKind::Fifo),
        (&attended, FileKind::Fifo),
        (&to_fifo, FileKind::Fifo),
        (&socket, FileKind::Socket),
        (Path::new("/dev/null"), FileKind::CharacterDevice),
        (Path::new("/dev/full"), FileKind::CharacterDevice),
        (scene.root(), FileKind::Directory),
    ] {
        let refused = |error: FsError| match error {
            FsError::WrongKind { found, .. } => assert_eq!(found, kind, "{}", path.display()),
            other => panic!("{other}"),
        };
        refused(OpenFile::open(path, Symlinks::Follow).unwrap_err());
        refused(NewFile::create(path, NewFileOptions::default()).unwrap_err());
        for options in BOTH {
            refused(write_file(path, b"x", &options).unwrap_err());
        }
        assert_eq!(metadata(path, Symlinks::Follow).unwrap().kind, kind);
    }
    let mut byte = [0];
    assert_eq!(rustix::io::read(&ends, &mut byte[..]), Err(rustix::io::Errno::AGAIN));
    assert_eq!(scene.names(), ["attended", "lonely", "socket", "to_fifo"]);
}

#[test]
fn reading_a_growing_file_ends() {
    let scene = Scratch::new();
    let path = scene.file_with_mode("growing", "x", 0o644);
    let done = AtomicBool::new(false);
    std::thread::scope(|threads| {
        threads.spawn(|| {
            use std::io::Write as _;
            let mut file = File::options().append(true).open(&path).unwrap();
            while !done.load(Ordering::Acquire) && file.metadata().unwrap().len() < 64 << 20 {
                file.write_all(&[b'x'; 64 << 10]).unwrap();
            }
        });
        for _ in 0..50 {
            let file = OpenFile::open(&path, Symlinks::Follow).unwrap();
            match file.read_to_end(4 << 20) {
                Ok(content) => assert!(content.iter().all(|&byte| byte == b'x')),
                Err(error) => assert!(matches!(error, FsError::TooLarge { .. }), "{error}"),
            }
        }
        done.store(true, Ordering::Release);
    });
}

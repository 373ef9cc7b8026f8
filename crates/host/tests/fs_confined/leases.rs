//! A lease blocks every process that opens the file until its holder gives it up or the kernel
//! breaks it after 45 seconds. A user can take a lease on a file of their own again and again, so
//! no operation may wait for a lease to end.

use std::os::fd::AsRawFd as _;
use std::path::Path;

use exec_server_host::fs::{
    CancelFlag, FsError, NewFile, NewFileOptions, OpenFile, Symlinks, WriteOptions, copy,
    write_file,
};

use crate::scene::{Scene, User};

type Opening = fn(file: &Path, work: &Path) -> Result<(), FsError>;

const OPENING: &[(&str, Opening)] = &[
    ("read", |file, _| OpenFile::open(file, Symlinks::Follow).map(drop)),
    ("write", |file, _| write_file(file, b"x", &WriteOptions::default()).map(drop)),
    ("copy from it", |file, work| copy(file, &work.join("copy"), false, &CancelFlag::never())),
    ("copy over it", |file, work| copy(&work.join("movable"), file, false, &CancelFlag::never())),
];

/// From `fcntl.h`.
const F_SETSIG: libc::c_int = 10;

/// Takes a write lease, which conflicts with any way to open the file. It ends with the descriptor.
#[expect(unsafe_code, reason = "only libc has leases")]
fn lease(path: &Path) -> std::fs::File {
    let file = std::fs::File::options().read(true).write(true).open(path).unwrap();
    // SAFETY: both calls take an open descriptor and numbers, and touch no memory. SIGURG is
    // ignored by default.
    let taken = unsafe {
        libc::fcntl(file.as_raw_fd(), F_SETSIG, libc::SIGURG);
        libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, libc::F_WRLCK)
    };
    assert_eq!(taken, 0, "{}", std::io::Error::last_os_error());
    file
}

#[test]
fn opening_a_leased_file_fails_without_waiting() {
    for (operation, run) in OPENING {
        let scene = Scene::new();
        let (file, work) = (scene.at("work/plain/file"), scene.at("work"));
        let _leased = lease(&file);
        let outcome = scene.confined(&scene.policy(), User::Own, || run(&file, &work));
        assert!(matches!(outcome, Err(FsError::Leased { .. })), "{operation}: {outcome:?}");
    }
}

#[test]
fn resuming_a_leased_draft_fails_without_waiting() {
    let scene = Scene::new();
    let plain = scene.at("work/plain");
    let resume = || {
        let resume_key = Some("key".to_owned());
        let options = NewFileOptions { resume_key, ..NewFileOptions::default() };
        NewFile::create(&plain.join("new"), options).map(drop)
    };
    resume().unwrap();
    let mut drafts = std::fs::read_dir(&plain).unwrap().map(|entry| entry.unwrap().path());
    let draft = drafts.find(|path| path.extension().is_some_and(|end| end == "tmp")).unwrap();
    let _leased = lease(&draft);
    let outcome = scene.confined(&scene.policy(), User::Own, resume);
    assert!(matches!(outcome, Err(FsError::Leased { .. })), "{outcome:?}");
}

//! The directories of the race.
//!
//! ```text
//! work/swap     a directory, or a symlink to outside
//! work/link     the other of the two
//! tree/swap     the same, in a tree that is removed as a whole
//! beside        the other of the two
//! source/swap   the source of copies to work
//! outside       must not be touched
//! ```
//! Names inside are the same as outside, so that an operation that escapes finds files there.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use exec_server_test_support::Scratch;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, RenameFlags, Stat};
use rustix::io::Errno;

pub(crate) const INSIDE: &[u8] = b"inside";
/// The content of the files outside. Its size differs from that of any file inside.
pub(crate) const OUTSIDE: &[u8] = b"this content is outside and must not be read or changed";
/// A name that exists only outside.
pub(crate) const SECRET: &str = "secret";

pub(crate) struct Arena {
    scratch: Scratch,
    /// The directory `work/swap`, whatever its current name.
    inside: OwnedFd,
    outside: Vec<(OwnedFd, Facts)>,
}

impl Arena {
    pub(crate) fn new() -> Self {
        // In memory, which allows more rounds without disk delays.
        let scratch = Scratch::in_memory();
        for path in ["outside/sub/sub", "work/swap", "source/swap/sub", "copies"] {
            scratch.directory(path);
        }
        for path in ["outside/victim", "outside/secret", "outside/sub/victim", "outside/sub/secret"]
        {
            scratch.file(path, OUTSIDE);
        }
        scratch.file("source/swap/victim", INSIDE);
        scratch.file("source/swap/sub/victim", INSIDE);
        scratch.symlink("outside", "outside/pointer");
        scratch.symlink(scratch.path("outside"), "work/link");
        let inside = File::open(scratch.path("work/swap")).unwrap().into();
        let outside =
            ["", "victim", "secret", "sub", "sub/victim", "sub/secret", "sub/sub", "pointer"]
                .map(|name| watched(&scratch.path("outside").join(name)));
        Self { scratch, inside, outside: outside.into() }
    }

    pub(crate) fn at(&self, path: &str) -> PathBuf {
        self.scratch.path(path)
    }

    /// A path through the exchanged name.
    pub(crate) fn through(&self, path: &str) -> PathBuf {
        self.scratch.path("work/swap").join(path)
    }

    /// Exchanges the names until `work` is done. Returns the number of exchanges.
    pub(crate) fn while_exchanged(&self, work: impl FnOnce()) -> u64 {
        let pairs = [("work/swap", "work/link"), ("tree/swap", "beside")]
            .map(|(one, other)| (self.at(one), self.at(other)));
        let (stop, exchanges) = (AtomicBool::new(false), AtomicU64::new(0));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    for (one, other) in &pairs {
                        let flags = RenameFlags::EXCHANGE;
                        let exchanged = rustix::fs::renameat_with(CWD, one, CWD, other, flags);
                        exchanges.fetch_add(u64::from(exchanged.is_ok()), Ordering::Relaxed);
                    }
                }
            });
            // Also stops if `work` panics; otherwise the scope would wait forever.
            let _stop = OnDrop(|| stop.store(true, Ordering::Relaxed));
            work();
        });
        exchanges.into_inner()
    }

    /// Restores the files that the last round moved or removed, and removes the symlink that it
    /// created.
    pub(crate) fn tend(&self) {
        let made =
            |result: Result<(), Errno>| assert!(matches!(result, Ok(()) | Err(Errno::EXIST)));
        let _ = rustix::fs::unlinkat(&self.inside, "symlink", AtFlags::empty());
        made(rustix::fs::mkdirat(&self.inside, "sub", Mode::RWXU));
        made(rustix::fs::symlinkat("inside", &self.inside, "pointer"));
        for name in ["victim", "sub/victim"] {
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC;
            let file =
                rustix::fs::openat(&self.inside, name, flags, Mode::RUSR | Mode::WUSR).unwrap();
            assert_eq!(rustix::io::write(&file, INSIDE), Ok(INSIDE.len()));
        }
        std::fs::write(self.at("work/movable"), INSIDE).unwrap();
    }

    /// Plants a separate tree, unless the last one still exists. In it, one directory is exchanged
    /// with a symlink beside the tree. Removing the other directories takes time, during which the
    /// exchange can happen.
    pub(crate) fn plant_tree(&self) {
        if self.at("tree").exists() {
            return;
        }
        for name in ["a/sub", "b/sub", "swap/sub", "x/sub", "y/sub"] {
            std::fs::create_dir_all(self.at("planted").join(name)).unwrap();
        }
        for name in ["victim", "sub/victim"] {
            std::fs::write(self.at("planted/swap").join(name), INSIDE).unwrap();
        }
        if !self.at("beside").is_symlink() {
            let _ = std::fs::remove_dir_all(self.at("beside"));
            std::os::unix::fs::symlink(self.at("outside"), self.at("beside")).unwrap();
        }
        std::fs::rename(self.at("planted"), self.at("tree")).unwrap();
    }

    pub(crate) fn expect_outside_untouched(&self, operation: &str, round: usize) {
        for (node, facts) in &self.outside {
            let now = Facts::of(node);
            assert!(
                now == *facts,
                "{operation} went outside in round {round}: {now:?}, not {facts:?}"
            );
        }
    }
}

/// The metadata that any change to a file or directory affects.
#[derive(Debug, PartialEq, Eq)]
struct Facts {
    mode: u32,
    links: u64,
    size: i64,
    changed: (i64, u64),
}

impl Facts {
    fn of(node: &OwnedFd) -> Self {
        let Stat { st_mode, st_nlink, st_size, st_ctime, st_ctime_nsec, .. } =
            rustix::fs::statat(node, "", AtFlags::EMPTY_PATH).unwrap();
        Self { mode: st_mode, links: st_nlink, size: st_size, changed: (st_ctime, st_ctime_nsec) }
    }
}

fn watched(path: &Path) -> (OwnedFd, Facts) {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let node = rustix::fs::open(path, flags, Mode::empty()).unwrap();
    let facts = Facts::of(&node);
    (node, facts)
}

struct OnDrop<F: Fn()>(F);

impl<F: Fn()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

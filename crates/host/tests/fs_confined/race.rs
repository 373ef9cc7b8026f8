//! Exchanges a directory inside the policy and a symlink to one outside as fast as possible, while
//! confined threads run all operations through the directory's name. An escape would change or read
//! something outside.

use std::fs::File;
use std::ops::ControlFlow;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use exec_server_host::fs::search::{Search, SearchOptions};
use exec_server_host::fs::{
    CancelFlag, EntryTypes, FsError, OpenFile, Symlinks, canonicalize, copy, metadata,
    read_directory, walk,
};
use exec_server_host::sandbox::Policy;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, RenameFlags, Stat};

use crate::operations::{Effect, OPERATIONS, WALK};
use crate::scene::{OUTSIDE, Scene, User, on_confined_thread};

#[test]
fn nothing_leaves_the_policy_while_a_directory_is_exchanged_with_a_symlink() {
    race(500);
}

#[test]
#[ignore = "soak: 100,000 rounds, run by `just soak-counts`"]
fn soak_nothing_leaves_the_policy_while_a_directory_is_exchanged_with_a_symlink() {
    race(100_000);
}

type Look = fn(swap: &Path, work: &Path) -> Result<(), FsError>;

/// Operations that fail the test if they see something outside.
const LOOKS: &[(&str, Look)] = &[
    ("read", |swap, _| {
        let content = OpenFile::open(&swap.join("file"), Symlinks::Follow)?.read_to_end(1_000)?;
        assert_ne!(content, OUTSIDE.as_bytes());
        Ok(())
    }),
    ("metadata", |swap, _| {
        let metadata = metadata(&swap.join("file"), Symlinks::Follow)?;
        assert_ne!(metadata.size, OUTSIDE.len() as u64);
        Ok(())
    }),
    ("canonicalize", |swap, work| {
        let real = canonicalize(&swap.join("file"))?;
        assert!(real.starts_with(work), "{real:?}");
        Ok(())
    }),
    ("read_directory", |swap, _| {
        let entries = read_directory(swap, EntryTypes::Own, 100)?;
        assert!(entries.iter().all(|entry| entry.name != "only_outside"));
        Ok(())
    }),
    ("walk", |_, work| {
        let tree = walk(work, &WALK, &CancelFlag::never())?;
        assert!(tree.entries.iter().all(|entry| !entry.path.ends_with("only_outside")));
        Ok(())
    }),
    ("search", |swap, _| {
        let options = SearchOptions {
            pattern: "outside".to_owned(),
            max_matches: 10,
            ..SearchOptions::default()
        };
        let search = Search::new(&options).expect("the pattern is valid");
        search.run(swap, &AtomicBool::new(false), &mut |found| {
            assert_ne!(found.text, OUTSIDE, "found outside");
            ControlFlow::Continue(())
        })?;
        Ok(())
    }),
    ("copy", |swap, work| {
        copy(&swap.join("file"), &work.join("copy"), false, &CancelFlag::never())?;
        assert_ne!(std::fs::read(work.join("copy")).unwrap(), OUTSIDE.as_bytes());
        Ok(())
    }),
];

fn race(rounds: usize) {
    for &user in User::all() {
        let arena = Arena::new();
        let (done, refused) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let exchanges = arena.while_exchanged(|| {
            on_confined_thread(&arena.policy, user, || {
                for round in 0..rounds {
                    for outcome in arena.round(round) {
                        let counter = if outcome.is_ok() { &done } else { &refused };
                        counter.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        });
        let (done, refused) = (done.into_inner(), refused.into_inner());
        println!(
            "{user:?}: {rounds} rounds, {exchanges} exchanges, {done} done, {refused} refused"
        );
        // Shows that operations really raced with exchanges.
        assert!(done > 0 && refused > 0 && exchanges > 0);
    }
}

struct Arena {
    _scene: Scene,
    policy: Policy,
    swap: PathBuf,
    work: PathBuf,
    /// The directory `work/swap`, whatever its current name.
    inside: OwnedFd,
    outside: Vec<(OwnedFd, Facts)>,
}

impl Arena {
    fn new() -> Self {
        let scene = Scene::new();
        std::fs::write(scene.at("outside/only_outside"), OUTSIDE).unwrap();
        std::fs::create_dir_all(scene.at("work/swap")).unwrap();
        std::os::unix::fs::symlink(scene.at("outside"), scene.at("work/other")).unwrap();
        let names = ["", "file", "only_outside", "sub", "sub/inner", "link"];
        let (swap, work) = (scene.at("work/swap"), scene.at("work"));
        let inside = File::open(&swap).unwrap().into();
        let policy = scene.policy();
        // Change the owners before recording the facts.
        if rustix::process::geteuid().is_root() {
            scene.confined(&policy, User::Nobody, || ());
        }
        let outside = names.map(|name| watched(&scene.at("outside").join(name)));
        Self { policy, swap, work, inside, outside: outside.into(), _scene: scene }
    }

    fn while_exchanged(&self, work: impl FnOnce()) -> usize {
        let (stop, exchanges) = (AtomicBool::new(false), AtomicUsize::new(0));
        let other = self.work.join("other");
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let flags = RenameFlags::EXCHANGE;
                    let exchanged = rustix::fs::renameat_with(CWD, &self.swap, CWD, &other, flags);
                    exchanges.fetch_add(usize::from(exchanged.is_ok()), Ordering::Relaxed);
                }
            });
            let _stop = OnDrop(|| stop.store(true, Ordering::Relaxed));
            work();
        });
        exchanges.into_inner()
    }

    fn round(&self, round: usize) -> Vec<Result<(), FsError>> {
        self.tend();
        let changes = OPERATIONS.iter().filter(|(_, effect, _)| *effect == Effect::Changes);
        let changes = changes.map(|(name, _, run)| (*name, *run));
        let mut outcomes = Vec::new();
        for (name, run) in LOOKS.iter().copied().chain(changes) {
            outcomes.push(run(&self.swap, &self.work));
            for (node, facts) in &self.outside {
                assert_eq!(Facts::of(node), *facts, "{name} went outside in round {round}");
            }
        }
        outcomes
    }

    /// Restores the files that the last round moved or removed, and removes those that it created.
    fn tend(&self) {
        let inside = PathBuf::from(format!("/proc/self/fd/{}", self.inside.as_raw_fd()));
        for gone in ["renamed", "copy"] {
            let _ = std::fs::remove_dir_all(self.work.join(gone));
            let _ = std::fs::remove_file(self.work.join(gone));
        }
        let _ = std::fs::remove_file(inside.join("new"));
        let _ = std::fs::remove_dir_all(inside.join("new"));
        let _ = std::fs::create_dir(inside.join("sub"));
        let _ = std::os::unix::fs::symlink("file", inside.join("link"));
        for (path, content) in [
            (inside.join("file"), "inside"),
            (inside.join("sub/inner"), "inside"),
            (self.work.join("movable"), "inside"),
        ] {
            std::fs::write(path, content).unwrap();
        }
    }
}

/// Facts that change with any change to a file or directory.
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
